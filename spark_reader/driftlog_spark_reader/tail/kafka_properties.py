"""Kafka's client properties, as Spark's options ``kafka.*`` have them, in librdkafka's words.

    kafka.bootstrap.servers=…            as it is, like all that both clients know
    kafka.sasl.jaas.config, …            `common.kafka_security`
    kafka.receive.buffer.bytes           socket.receive.buffer.bytes
    kafka.max.poll.records               left out: it tunes Java's client only

A property that is in none of the tables goes to librdkafka, which refuses what it does not know.

Sources: org.apache.kafka.clients.consumer.ConsumerConfig; librdkafka's CONFIGURATION.md;
KafkaSourceProvider#validateGeneralOptions for what Spark refuses.

Pure.
"""

from collections.abc import Mapping
from typing import Final

from driftlog_spark_reader.common.kafka_security import SECURITY, security_properties

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
        "ssl.secure.random.implementation ssl.trustmanager.algorithm"
    ).split()
)
"""They tune Java's client, its group or its class loader; the tail is read without a group."""


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
        if name not in _JAVA_ONLY and name not in SECURITY:
            found[_RENAMED.get(name, name)] = value
    return found | security_properties(java)
