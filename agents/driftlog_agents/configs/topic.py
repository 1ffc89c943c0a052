"""The configs of a topic: all of Apache Kafka 4.3, with their effect in driftlog.

A config without an effect in driftlog is accepted and kept, because tools set it and read it back;
its documentation says so.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigType,
    InvalidConfigError,
    Value,
    at_least,
    between,
    gzip_level,
    one_of,
    throttled_replicas,
)
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.policy import SealSettings, TopicSealPolicy
from driftlog_metadata.schema.keys import INT64_MAX
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.compaction.topic_policy import compaction_policy

_DAY_MS: Final = 86_400_000
_FOREVER: Final = str(INT64_MAX)
_SEAL: Final = SealSettings()
_NO_MEANING: Final = " Accepted and kept for tools; it changes nothing here."

BOOLEAN, DOUBLE, INT = ConfigType.BOOLEAN, ConfigType.DOUBLE, ConfigType.INT
LIST, LONG, STRING = ConfigType.LIST, ConfigType.LONG, ConfigType.STRING

_ALL: Final = (
    ConfigDef(
        name="cleanup.policy",
        type=LIST,
        default="delete",
        check=one_of("compact", "delete"),
        broker_name="log.cleanup.policy",
        documentation="What happens to old records: delete drops them by age and size, compact "
        "keeps the last one of each key. A compacted topic takes no record without a key. "
        "A topic with compact alone keeps records whatever their age.",
    ),
    ConfigDef(
        name="compression.gzip.level",
        type=INT,
        default="-1",
        check=gzip_level,
        broker_name="compression.gzip.level",
        documentation="Level of gzip where compression.type is gzip; -1 is gzip's own default.",
    ),
    ConfigDef(
        name="compression.lz4.level",
        type=INT,
        default="9",
        check=between(1, 17),
        broker_name="compression.lz4.level",
        documentation="Level of lz4 where compression.type is lz4.",
    ),
    ConfigDef(
        name="compression.type",
        type=STRING,
        default="producer",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
        documentation="Codec of the topic's batches; producer keeps them as they came. Sealed "
        "segments are zstd in any case, and give this codec back to consumers.",
    ),
    ConfigDef(
        name="compression.zstd.level",
        type=INT,
        default="3",
        check=between(-131_072, 22),
        broker_name="compression.zstd.level",
        documentation="Level of zstd where compression.type is zstd.",
    ),
    ConfigDef(
        name="delete.retention.ms",
        type=LONG,
        default=str(_DAY_MS),
        check=at_least(0),
        broker_name="log.cleaner.delete.retention.ms",
        documentation="How long compaction keeps a tombstone after it has removed the last older "
        "value of its key; about six minutes come on top.",
    ),
    ConfigDef(
        name="file.delete.delay.ms",
        type=LONG,
        default="60000",
        check=at_least(0),
        broker_name="log.segment.delete.delay.ms",
        documentation="How long Kafka keeps a deleted file. Objects have the agent's grace period."
        + _NO_MEANING,
    ),
    ConfigDef(
        name="flush.messages",
        type=LONG,
        default=_FOREVER,
        check=at_least(1),
        broker_name="log.flush.interval.messages",
        documentation="Records between two syncs of a log file. Acknowledged records are durable "
        "here in any case." + _NO_MEANING,
    ),
    ConfigDef(
        name="flush.ms",
        type=LONG,
        default=_FOREVER,
        check=at_least(0),
        documentation="Time between two syncs of a log file. Acknowledged records are durable "
        "here in any case." + _NO_MEANING,
    ),
    ConfigDef(
        name="follower.replication.throttled.replicas",
        type=LIST,
        default="",
        check=throttled_replicas,
        documentation="Replicas whose replication is throttled. There is none: the bucket is the "
        "replica." + _NO_MEANING,
    ),
    ConfigDef(
        name="index.interval.bytes",
        type=INT,
        default="4096",
        check=at_least(0),
        broker_name="log.index.interval.bytes",
        documentation="Distance of entries in Kafka's offset index; segments have a Parquet "
        "footer instead." + _NO_MEANING,
    ),
    ConfigDef(
        name="leader.replication.throttled.replicas",
        type=LIST,
        default="",
        check=throttled_replicas,
        documentation="Replicas whose replication is throttled. There is none: the bucket is the "
        "replica." + _NO_MEANING,
    ),
    ConfigDef(
        name="local.retention.bytes",
        type=LONG,
        default="-2",
        check=at_least(-2),
        broker_name="log.local.retention.bytes",
        documentation="Bytes of a tiered log that stay on the broker's disk. The local disk is a "
        "cache with a budget of the agent's." + _NO_MEANING,
    ),
    ConfigDef(
        name="local.retention.ms",
        type=LONG,
        default="-2",
        check=at_least(-2),
        broker_name="log.local.retention.ms",
        documentation="How long a tiered log stays on the broker's disk. The local disk is a "
        "cache with a budget of the agent's." + _NO_MEANING,
    ),
    ConfigDef(
        name="max.compaction.lag.ms",
        type=LONG,
        default=_FOREVER,
        check=at_least(1),
        broker_name="log.cleaner.max.compaction.lag.ms",
        documentation="A sealed record that is older than this is compacted, whatever "
        "min.cleanable.dirty.ratio says; batches are sealed at this age.",
    ),
    ConfigDef(
        name="max.message.bytes",
        type=INT,
        default="1048588",
        check=at_least(0),
        broker_name="message.max.bytes",
        documentation="Largest batch of the topic, in bytes as received, compressed.",
    ),
    ConfigDef(
        name="message.timestamp.after.max.ms",
        type=LONG,
        default="3600000",
        check=at_least(0),
        broker_name="log.message.timestamp.after.max.ms",
        documentation="How far ahead of the agent's clock a record's timestamp may be, where "
        "message.timestamp.type is CreateTime.",
    ),
    ConfigDef(
        name="message.timestamp.before.max.ms",
        type=LONG,
        default=_FOREVER,
        check=at_least(0),
        broker_name="log.message.timestamp.before.max.ms",
        documentation="How far behind the agent's clock a record's timestamp may be, where "
        "message.timestamp.type is CreateTime.",
    ),
    ConfigDef(
        name="message.timestamp.type",
        type=STRING,
        default="CreateTime",
        check=one_of("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
        documentation=(
            "Timestamp of a record: that of its producer (CreateTime), or that of its "
            "arrival (LogAppendTime)."
        ),
    ),
    ConfigDef(
        name="min.cleanable.dirty.ratio",
        type=DOUBLE,
        default="0.5",
        check=between(0, 1),
        broker_name="log.cleaner.min.cleanable.ratio",
        documentation="Compaction of a partition starts when a larger share of its sealed bytes "
        "than this came after the last compaction.",
    ),
    ConfigDef(
        name="min.compaction.lag.ms",
        type=LONG,
        default="0",
        check=at_least(0),
        broker_name="log.cleaner.min.compaction.lag.ms",
        documentation="A segment with a record younger than this is not compacted, nor what "
        "follows it.",
    ),
    ConfigDef(
        name="min.insync.replicas",
        type=INT,
        default="1",
        check=at_least(1),
        broker_name="min.insync.replicas",
        documentation="Replicas that must have a record before acks=all is answered. The bucket "
        "has the record by then, and is the only replica." + _NO_MEANING,
    ),
    ConfigDef(
        name="preallocate",
        type=BOOLEAN,
        default="false",
        broker_name="log.preallocate",
        documentation="Whether log files are preallocated." + _NO_MEANING,
    ),
    ConfigDef(
        name="remote.log.copy.disable",
        type=BOOLEAN,
        default="false",
        documentation="Stops tiering in Kafka. Here the bucket is the log." + _NO_MEANING,
    ),
    ConfigDef(
        name="remote.log.delete.on.disable",
        type=BOOLEAN,
        default="false",
        documentation="Deletes tiered data in Kafka when tiering ends. Here the bucket is the "
        "log." + _NO_MEANING,
    ),
    ConfigDef(
        name="remote.storage.enable",
        type=BOOLEAN,
        default="false",
        documentation="Turns tiering on in Kafka. Here every topic is in the bucket, and it cannot "
        "be turned on.",
    ),
    ConfigDef(
        name="retention.bytes",
        type=LONG,
        default="-1",
        broker_name="log.retention.bytes",
        documentation="Size of a partition, in bytes as received, above which its oldest segments "
        "go: while at least this much stays without them. Negative: no limit. Only where "
        "cleanup.policy has delete.",
    ),
    ConfigDef(
        name="retention.ms",
        type=LONG,
        default=str(7 * _DAY_MS),
        check=at_least(-1),
        broker_name="log.retention.ms",
        documentation="Age of a segment's largest record timestamp above which the segment goes; "
        "-1: never. Where it is less than segment.ms, batches are sealed at this age. Only where "
        "cleanup.policy has delete.",
    ),
    ConfigDef(
        name="segment.bytes",
        type=INT,
        default=str(_SEAL.segment_bytes),
        check=at_least(1024 * 1024),
        broker_name="log.segment.bytes",
        documentation="Batches of a partition, in bytes as received, that make one Parquet "
        "segment. Larger: fewer files for Spark, and more unsealed data.",
    ),
    ConfigDef(
        name="segment.index.bytes",
        type=INT,
        default="10485760",
        check=at_least(4),
        broker_name="log.index.size.max.bytes",
        documentation="Size of Kafka's offset index; segments have a Parquet footer "
        "instead." + _NO_MEANING,
    ),
    ConfigDef(
        name="segment.jitter.ms",
        type=LONG,
        default="0",
        check=at_least(0),
        documentation="Random delay of rolling segments. The agent seals one partition at a "
        "time." + _NO_MEANING,
    ),
    ConfigDef(
        name="segment.ms",
        type=LONG,
        default=str(int(_SEAL.segment_ms)),
        check=at_least(1),
        broker_name="log.roll.ms",
        documentation="Age at which committed batches become a segment, however few, counted from "
        "their flush (not from record timestamps). Where neither it nor log.roll.ms or "
        "log.roll.hours is set, less than 1 MiB waits a day: small files slow Spark down. A "
        "partition that more than 8 sessions of agents have flushed is sealed earlier.",
    ),
    ConfigDef(
        name="unclean.leader.election.enable",
        type=BOOLEAN,
        default="false",
        broker_name="unclean.leader.election.enable",
        documentation="Whether a replica that is behind may lead. No leader is ever "
        "behind." + _NO_MEANING,
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType({c.name: c for c in _ALL})
"""Topic configs by name, sorted."""


def broker_default(config: ConfigDef) -> ConfigDef:
    """The broker config with the default of a topic config."""
    return ConfigDef(
        name=config.broker_name,
        type=config.type,
        default=config.default,
        check=config.check,
        documentation=f"The default of the topic config {config.name}. {config.documentation}",
    )


def validate(configs: Mapping[str, str], agent: Mapping[str, str]) -> None:
    """Check that *configs* are valid for a topic (LogConfig#validate); *agent* as in `Inherited`.

    Raises:
        InvalidConfigError: a config is invalid; the message is Kafka's.
    """
    for name in configs:
        if name not in TOPIC_CONFIGS:
            raise InvalidConfigError(f"Unknown topic config name: {name}")
    for name, text in configs.items():
        TOPIC_CONFIGS[name].checked(text)
    least, most = (
        _int(_value(name, configs, agent))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if least > most:
        raise InvalidConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})"
        )
    tiered = TOPIC_CONFIGS["remote.storage.enable"]
    if tiered.parse(configs.get(tiered.name, "false")):
        raise InvalidConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
            "with remote log storage."
        )


# ── Values for Produce and sealing, computed once per topic ──


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """Limits and conversions of every batch of a topic.

    ``codec`` None: batches keep the producer's codec.  ``compression_level``: level of ``codec``;
    None: it has no level.  The bounds of timestamps are distances from the agent's clock in ms, and
    apply only if ``log_append_time`` is False.
    """

    max_message_bytes: int
    codec: Codec | None = None
    compression_level: int | None = None
    log_append_time: bool = False
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False
    deletes_records: bool = True
    """DeleteRecords is allowed: old records are deleted, too."""

    @property
    def bounds_age(self) -> bool:
        """Whether old timestamps are refused; a batch's header does not have its oldest one."""
        return self.timestamp_before_max_ms != INT64_MAX and not self.log_append_time


_CODECS: Final = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def topic_limits(configs: Mapping[str, str], agent: Mapping[str, str]) -> TopicLimits:
    """The limits from *configs*, which are valid; *agent* as in `Inherited`."""

    def value(name: str) -> Value:
        return _value(name, configs, agent)

    word, policies = value("compression.type"), value("cleanup.policy")
    assert isinstance(word, str)
    assert isinstance(policies, list)
    level = f"compression.{word}.level"
    return TopicLimits(
        max_message_bytes=_int(value("max.message.bytes")),
        codec=_CODECS[word],
        compression_level=_int(value(level)) if level in TOPIC_CONFIGS else None,
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=_int(value("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=_int(value("message.timestamp.after.max.ms")),
        compacted="compact" in policies,
        deletes_records="compact" not in policies or "delete" in policies,
    )


def topic_retention(configs: Mapping[str, str], agent: Mapping[str, str]) -> TopicRetention:
    """Retention from *configs*, which are valid; *agent* as in `Inherited`."""
    policies = _value("cleanup.policy", configs, agent)
    assert isinstance(policies, list)
    if "delete" not in policies:
        return TopicRetention()
    return TopicRetention(
        ms=_limit(_value("retention.ms", configs, agent)),
        size_bytes=_limit(_value("retention.bytes", configs, agent)),
    )


def topic_sealing(
    configs: Mapping[str, str], agent: Mapping[str, str], longest_ms: float | None = None
) -> TopicSealPolicy:
    """The sealing policy from *configs*; None in a field: the agent's setting applies; *agent* as
    in `Inherited`.  *longest_ms*: see `TopicSealPolicy`."""
    segment_bytes, segment_ms = (
        TOPIC_CONFIGS[name].given(configs, agent) for name in ("segment.bytes", "segment.ms")
    )
    return TopicSealPolicy(
        segment_bytes=None if segment_bytes is None else int(segment_bytes),
        segment_ms=None if segment_ms is None else int(segment_ms),
        longest_ms=longest_ms,
    )


_COMPACTION: Final = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "segment.bytes",
)


def topic_compaction(
    configs: Mapping[str, str], agent: Mapping[str, str]
) -> CompactionPolicy | None:
    """The policy of compaction from *configs*, which are valid; None: the topic is not compacted.
    *agent* as in `Inherited`."""
    found = {name: TOPIC_CONFIGS[name].effective(configs, agent) or "" for name in _COMPACTION}
    return compaction_policy(found)


def _limit(value: Value) -> int | None:
    limit = _int(value)
    return None if limit < 0 else limit


def _value(name: str, configs: Mapping[str, str], agent: Mapping[str, str]) -> Value:
    definition = TOPIC_CONFIGS[name]
    return definition.parse(definition.effective(configs, agent) or "")


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
