"""Kafka's client properties, as Spark's options ``kafka.*`` have them, in librdkafka's words.

    kafka.bootstrap.servers=…            as it is, like all that both clients know
    kafka.sasl.jaas.config=…Login…;      sasl.username, sasl.password
    kafka.ssl.truststore.location, PEM   ssl.ca.location
    kafka.ssl.keystore.location          PKCS#12 as it is; PEM: certificate and key of one file
    kafka.receive.buffer.bytes           socket.receive.buffer.bytes
    kafka.max.poll.records               left out: it tunes Java's client only

Java's key stores (JKS) have no counterpart: convert them to PEM or PKCS#12.  A property that is in
none of the tables goes to librdkafka, which refuses what it does not know.

Sources: org.apache.kafka.clients.consumer.ConsumerConfig, SslConfigs and SaslConfigs;
librdkafka's CONFIGURATION.md; KafkaSourceProvider#validateGeneralOptions for what Spark refuses.

Pure.
"""

import re
from collections.abc import Mapping
from typing import Final

_PREFIX: Final = "kafka."

REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are binary",
    "value.deserializer": "values are binary",
    "enable.auto.commit": "the reader commits no offsets",
    "interceptor.classes": "the reader runs no code of Java's client",
}
"""As Spark's source refuses them."""

_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}

_JAVA_ONLY: Final = frozenset(
    (
        "auto.include.jmx.reporter default.api.timeout.ms enable.metrics.push "
        "exclude.internal.topics group.instance.id heartbeat.interval.ms max.poll.interval.ms "
        "max.poll.records metric.reporters metrics.num.samples metrics.recording.level "
        "metrics.sample.window.ms partition.assignment.strategy "
        "sasl.login.callback.handler.class sasl.login.class security.providers "
        "session.timeout.ms socket.connection.setup.timeout.max.ms ssl.enabled.protocols "
        "ssl.engine.factory.class ssl.keymanager.algorithm ssl.protocol ssl.provider "
        "ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.password"
    ).split()
)
"""They tune Java's client, its group or its class loader; the tail is read without a group."""

_STORES: Final = frozenset(
    ("ssl.truststore.type", "ssl.truststore.location", "ssl.keystore.type", "ssl.keystore.location")
)
_JAAS: Final = "sasl.jaas.config"
_JAAS_FIELD: Final = re.compile(r"""\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)\"""")
_JAAS_MODULE: Final = re.compile(r"\.(PlainLoginModule|ScramLoginModule)\b")


def librdkafka_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The properties of librdkafka for the options ``kafka.*``; other options are left out.

    Raises:
        ValueError: an option that the reader sets itself, or that has no counterpart.
    """
    java = {
        name.lower().removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(_PREFIX)
    }
    found: dict[str, str] = {}
    for name, value in java.items():
        if name in REFUSED:
            raise ValueError(f"option kafka.{name} cannot be set: {REFUSED[name]}")
        if name == _JAAS:
            found |= _credentials(value)
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = value or "none"
        elif name not in _JAVA_ONLY and name not in _STORES:
            found[_RENAMED.get(name, name)] = value
    return found | _stores(java)


def _credentials(jaas: str) -> dict[str, str]:
    if not _JAAS_MODULE.search(jaas):
        raise ValueError(
            "option kafka.sasl.jaas.config: librdkafka knows PlainLoginModule and ScramLoginModule "
            "only; give librdkafka's own options instead, such as kafka.sasl.oauthbearer.config"
        )
    fields = {name: re.sub(r"\\(.)", r"\1", text) for name, text in _JAAS_FIELD.findall(jaas)}
    if fields.keys() != {"username", "password"}:
        raise ValueError('option kafka.sasl.jaas.config needs username="…" and password="…"')
    return {"sasl.username": fields["username"], "sasl.password": fields["password"]}


def _stores(java: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if location := java.get("ssl.truststore.location"):
        _check_type(java, "ssl.truststore", {"PEM"}, "PEM")
        found["ssl.ca.location"] = location
    if location := java.get("ssl.keystore.location"):
        if _check_type(java, "ssl.keystore", {"PEM", "PKCS12"}, "PEM or PKCS12") == "PEM":
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
        else:
            found["ssl.keystore.location"] = location
    return found


def _check_type(java: Mapping[str, str], store: str, known: set[str], listed: str) -> str:
    kind = java.get(f"{store}.type", "JKS").upper()
    if kind not in known:
        raise ValueError(
            f"option kafka.{store}.type is {kind}: the tail is read by librdkafka, which needs "
            f"{listed}; convert the store, and set kafka.{store}.type"
        )
    return kind
