"""The options of Spark's Kafka sink, as settings of the Python client.

    topic                     the topic of all rows; without it the column `topic` is needed
    kafka.bootstrap.servers   needed
    kafka.NAME                a config of Java's producer, or of librdkafka

Options are not case-sensitive; those without ``kafka.`` concern the source and are ignored.  Most
configs of Java's producer have the same name in librdkafka, which checks them; `JAVA_CONFIGS` and
`common.kafka_security` have the others.
Sources: org.apache.spark.sql.kafka010.KafkaSourceProvider#kafkaParamsForProducer,
org.apache.kafka.clients.producer.ProducerConfig of Kafka 3.9.
Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from driftlog.common.settings import ProducerSettings
from driftlog_spark_reader.common.kafka_security import SECURITY, security_properties

_PREFIX: Final = "kafka."
_MiB: Final = 1024 * 1024
_QUEUE_RECORDS: Final = 200_000
"""librdkafka takes some 300 bytes for a record beside the record: 60 MB."""
_CONNECT_MS: Final = 10_000
_MAX_IN_FLIGHT: Final = 5


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write."""

    servers: str
    topic: str | None
    """None: the column `topic` has it."""
    settings: ProducerSettings
    config: Mapping[str, str] = field(repr=False)
    """librdkafka's configs; passwords are among them."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A config that librdkafka has under another name, or with other words for a value."""

    name: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A config that cannot be kept; the reason continues "is not supported as"."""

    reason: str


@dataclass(frozen=True, slots=True)
class ClientArgument:
    """A config that `sink_options` turns into a setting of the client."""


_NOT_THERE: Final = Refused("librdkafka has no such config: leave it out")
_METRICS: Final = Refused("librdkafka has no metrics of Java's client: leave it out")
_JAVA_CLASS: Final = Refused("librdkafka cannot load a Java class: leave it out")
_OAUTH: Final = Refused(
    "librdkafka has another OAuth client: see its configs that begin with sasl.oauthbearer."
)

JAVA_CONFIGS: Final[Mapping[str, Renamed | Refused | ClientArgument]] = {
    "key.serializer": Refused("keys are serialized with ByteArraySerializer."),
    "value.serializer": Refused("value are serialized with ByteArraySerializer."),
    # How records become batches and wait.
    "bootstrap.servers": ClientArgument(),
    "enable.idempotence": ClientArgument(),
    "buffer.memory": ClientArgument(),
    "max.block.ms": ClientArgument(),
    "max.request.size": ClientArgument(),
    "compression.gzip.level": ClientArgument(),
    "compression.lz4.level": ClientArgument(),
    "compression.zstd.level": ClientArgument(),
    "transactional.id": Refused("the sink writes without transactions: leave it out"),
    "transaction.timeout.ms": Refused("the sink writes without transactions: leave it out"),
    "interceptor.classes": _JAVA_CLASS,
    # The partition of a record.
    "partitioner.class": Refused(
        "librdkafka cannot load a Java class: fill the column 'partition', or leave it out for the "
        "partitions that Java's default partitioner chooses"
    ),
    "partitioner.ignore.keys": Renamed(
        "partitioner", {"true": "random", "false": "murmur2_random"}
    ),
    "partitioner.adaptive.partitioning.enable": _NOT_THERE,
    "partitioner.availability.timeout.ms": _NOT_THERE,
    # Connections.
    "send.buffer.bytes": Renamed("socket.send.buffer.bytes", {"-1": "0"}),
    "receive.buffer.bytes": Renamed("socket.receive.buffer.bytes", {"-1": "0"}),
    "connections.max.idle.ms": Renamed("connections.max.idle.ms", {"-1": "0"}),
    "socket.connection.setup.timeout.max.ms": _NOT_THERE,
    "metadata.max.idle.ms": _NOT_THERE,
    # Metrics.
    "auto.include.jmx.reporter": _METRICS,
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    # Credentials and certificates.
    "sasl.client.callback.handler.class": _JAVA_CLASS,
    "sasl.login.callback.handler.class": _JAVA_CLASS,
    "sasl.login.class": _JAVA_CLASS,
    "sasl.login.connect.timeout.ms": _OAUTH,
    "sasl.login.read.timeout.ms": _OAUTH,
    "sasl.login.refresh.buffer.seconds": _OAUTH,
    "sasl.login.refresh.min.period.seconds": _OAUTH,
    "sasl.login.refresh.window.factor": _OAUTH,
    "sasl.login.refresh.window.jitter": _OAUTH,
    "sasl.login.retry.backoff.max.ms": _OAUTH,
    "sasl.login.retry.backoff.ms": _OAUTH,
    "sasl.oauthbearer.clock.skew.seconds": _OAUTH,
    "sasl.oauthbearer.expected.audience": _OAUTH,
    "sasl.oauthbearer.expected.issuer": _OAUTH,
    "sasl.oauthbearer.header.urlencode": _OAUTH,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _OAUTH,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _OAUTH,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _OAUTH,
    "sasl.oauthbearer.jwks.endpoint.url": _OAUTH,
    "sasl.oauthbearer.scope.claim.name": _OAUTH,
    "sasl.kerberos.ticket.renew.jitter": _NOT_THERE,
    "sasl.kerberos.ticket.renew.window.factor": _NOT_THERE,
    "security.providers": _JAVA_CLASS,
    "ssl.engine.factory.class": _JAVA_CLASS,
    "ssl.enabled.protocols": _NOT_THERE,
    "ssl.protocol": _NOT_THERE,
    "ssl.provider": _NOT_THERE,
    "ssl.keymanager.algorithm": _NOT_THERE,
    "ssl.trustmanager.algorithm": _NOT_THERE,
    "ssl.secure.random.implementation": _NOT_THERE,
}
"""The configs of Java's producer that librdkafka does not take as they are."""


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write.

    Raises:
        ValueError: an option is missing, cannot be kept, or has a value of another form.
    """
    given = {name.lower(): value for name, value in options.items()}
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise ValueError("option 'topic' is empty: name a topic, or leave it out for the column")
    java = {
        name.removeprefix(_PREFIX): value
        for name, value in given.items()
        if name.startswith(_PREFIX)
    }
    servers = java.get("bootstrap.servers", "").strip()
    config: dict[str, str] = {}
    for name, value in java.items():
        if name in SECURITY:
            continue
        match JAVA_CONFIGS.get(name):
            case None:
                config[name] = value
            case Renamed(known_as, values):
                config[known_as] = values.get(value.strip().lower(), value)
            case Refused(reason):
                raise ValueError(f"Kafka option '{name}' is not supported as {reason}")
            case ClientArgument():
                pass
    if not servers:
        raise ValueError(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"
        )
    config |= _level(java) | security_properties(java)
    if java.get("delivery.timeout.ms", "").strip() == "0":
        raise ValueError("Kafka option 'delivery.timeout.ms' is 0: give it milliseconds above 0")
    max_block_ms = _number(java, "max.block.ms", 60_000)
    settings = ProducerSettings(
        idempotence=_idempotence(java),
        queue_max_bytes=_number(java, "buffer.memory", 64 * _MiB),
        queue_max_records=_QUEUE_RECORDS,
        max_block_ms=max_block_ms,
        max_message_bytes=_number(java, "max.request.size", ProducerSettings().max_message_bytes),
        connect_timeout_ms=min(_CONNECT_MS, max(1_000, max_block_ms)),
    )
    return SinkOptions(servers, None if topic is None else topic.strip(), settings, config)


_AS_OPTIONS: Final = {
    "batch_bytes": "kafka.batch.size",
    "bootstrap_servers": "kafka.bootstrap.servers",
    "delivery_timeout_ms": "kafka.delivery.timeout.ms",
    "max_block_ms": "kafka.max.block.ms",
    "max_message_bytes": "kafka.max.request.size",
    "queue_max_bytes": "kafka.buffer.memory",
}
_SETTING: Final = re.compile("|".join(_AS_OPTIONS))


def in_options(text: str) -> str:
    """A message of the client, with the sink's options in place of its settings."""
    return _SETTING.sub(lambda found: _AS_OPTIONS[found[0]], text)


def _idempotence(java: Mapping[str, str]) -> bool:
    """As in Java: on, unless a config excludes it; then only an explicit ``true`` is refused.

    Source: ProducerConfig#postProcessAndValidateIdempotenceConfigs.
    """
    given = java.get("enable.idempotence")
    if given is not None and given.strip().lower() not in ("true", "false"):
        raise ValueError(f"Kafka option 'enable.idempotence' is true or false, not {given!r}")
    wanted = given is None or given.strip().lower() == "true"
    in_flight = "max.in.flight.requests.per.connection"
    conflict = None
    if _number(java, "retries", 1) == 0:
        conflict = "Must set retries to non-zero when using the idempotent producer."
    elif java.get("acks", "all").strip().lower() not in ("all", "-1"):
        conflict = (
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot "
            "guarantee idempotence."
        )
    elif _number(java, in_flight, _MAX_IN_FLIGHT) > _MAX_IN_FLIGHT:
        conflict = f"Must set {in_flight} to at most 5 to use the idempotent producer."
    if conflict and wanted and given is not None:
        raise ValueError(conflict)
    return wanted and not conflict


def _level(java: Mapping[str, str]) -> dict[str, str]:
    """The level of the codec in use; Java ignores those of the others."""
    codec = java.get("compression.type", ProducerSettings().compression).strip().lower()
    level = java.get(f"compression.{codec}.level")
    return {} if level is None else {"compression.level": level}


def _number(java: Mapping[str, str], name: str, default: int) -> int:
    text = java.get(name, str(default)).strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"Kafka option '{name}' is a number, not {text!r}")
    return int(text)
