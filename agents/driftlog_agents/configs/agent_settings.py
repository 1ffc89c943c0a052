"""Settings of an agent that concern its clients: defaults, then the configs of its start.

Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigType,
    PositiveOrUnlimited,
    at_least,
    between,
    definitions_of,
    setting,
    setting_of,
    synonyms_of,
    values_of,
)
from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.configs.topic import TOPIC_CONFIGS, broker_default
from driftlog_tiering.batches.producers import EXPIRATION_MS, MAX_BODY_BYTES, STATE_BYTES
from driftlog_tiering.foundation.types import GiB


def _topic_default(name: str, parse: Callable[[str], object] = int) -> Any:
    """A field of settings with the default of the topic config *name*."""
    config = TOPIC_CONFIGS[name]
    return setting_of(broker_default(config), parse(config.default or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """See the module; a field has the name of Kafka's broker config where Kafka has one."""

    auto_create_topics_enable: bool = setting(
        True,
        "A Metadata request that names a missing topic creates it.",
        ConfigType.BOOLEAN,
    )
    num_partitions: int = setting(
        1, "Partitions of a topic that is created with -1, or automatically."
    )
    default_replication_factor: int = setting(
        1,
        "Replication factor of a topic that is created with -1, or automatically; the "
        "bucket replicates.",
        check=between(1, 32_767),
    )
    message_max_bytes: int = _topic_default("max.message.bytes")
    socket_request_max_bytes: int = setting(
        104_857_600, "Largest request; a larger one closes its connection."
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "The agent closes a connection that is idle for this long.",
        ConfigType.LONG,
    )
    max_connections: int = setting(
        10_000, "Most connections of the agent; it refuses more.", shown="2147483647"
    )
    fetch_max_bytes: int = setting(
        57_671_680, "Most bytes of one answer to Fetch.", check=at_least(1024)
    )
    driftlog_read_cache_bytes: int = setting(
        GiB,
        "Most bytes of the agent's disk for parts of segments, and lists of segments, that "
        "consumers read from S3; they survive a restart. 0: none.",
        ConfigType.LONG,
        at_least(0),
    )
    producer_id_expiration_ms: int = setting(
        int(EXPIRATION_MS),
        "A partition forgets an idempotent producer that appends nothing to it for this long.",
    )
    driftlog_producer_state_max_bytes: int = setting(
        STATE_BYTES,
        "Memory for idempotent producers, of all partitions that this agent leads. When it is "
        "used up, new producers wait until others expire (producer.id.expiration.ms).",
        ConfigType.LONG,
        between(0, MAX_BODY_BYTES),
    )
    log_cleaner_enable: bool = setting(
        True,
        "Whether this agent compacts: what it leads, and with the role seal also what agents lead "
        "that only serve.",
        ConfigType.BOOLEAN,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        "How long the cleaner waits when no partition is due for compaction, and merging when no "
        "segments are.",
        ConfigType.LONG,
        at_least(0),
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        134_217_728,
        "Memory for the keys of one run of compaction, 24 bytes each. A partition whose new "
        "records have more keys is compacted in several runs. While the agent runs, it cannot be "
        "set to more than at the start.",
        ConfigType.LONG,
        at_least(1024 * 1024),
    )
    driftlog_segment_merge_enable: bool = setting(
        True,
        "Whether this agent merges small sealed segments with their neighbours: of what it leads, "
        "and with the role seal also of what agents lead that only serve.",
        ConfigType.BOOLEAN,
    )
    log_retention_ms: int | None = setting(
        None,
        "The default of retention.ms; -1: no limit. It goes before log.retention.minutes.",
        ConfigType.LONG,
        PositiveOrUnlimited(),
    )
    log_retention_minutes: int | None = setting(
        None,
        "The default of retention.ms, in minutes; -1: no limit. It goes before "
        "log.retention.hours.",
        check=PositiveOrUnlimited(),
    )
    log_retention_hours: int = setting(
        168,
        "The default of retention.ms, in hours; -1: no limit.",
        check=PositiveOrUnlimited(),
    )
    log_retention_bytes: int = _topic_default("retention.bytes")
    log_roll_ms: int | None = setting(
        None,
        "The default of segment.ms; partitions below 1 MiB are sealed at this age, too. It goes "
        "before log.roll.hours.",
        ConfigType.LONG,
    )
    log_roll_hours: int | None = setting(
        None,
        "The default of segment.ms, in hours; partitions below 1 MiB are sealed at this age, too.",
        shown="1",
    )
    log_segment_bytes: int = _topic_default("segment.bytes")
    log_cleanup_policy: tuple[str, ...] = _topic_default("cleanup.policy", lambda one: (one,))
    compression_type: str = _topic_default("compression.type", str)
    compression_gzip_level: int = _topic_default("compression.gzip.level")
    compression_lz4_level: int = _topic_default("compression.lz4.level")
    compression_zstd_level: int = _topic_default("compression.zstd.level")
    log_message_timestamp_type: str = _topic_default("message.timestamp.type", str)
    log_message_timestamp_before_max_ms: int = _topic_default("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _topic_default("message.timestamp.after.max.ms")
    log_cleaner_delete_retention_ms: int = _topic_default("delete.retention.ms")
    log_cleaner_min_compaction_lag_ms: int = _topic_default("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _topic_default("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = _topic_default("min.cleanable.dirty.ratio", float)
    log_retention_check_interval_ms: int = setting(
        300_000,
        "How often a partition is checked for segments that have expired. A partition that has not "
        "changed, and of which nothing is due, costs no request.",
        ConfigType.LONG,
    )
    driftlog_verification_interval_ms: int = setting(
        7 * 86_400_000,
        "How often the sealed objects of a partition are verified, as by driftlog verify. Each "
        "partition has its own time of the interval.",
        ConfigType.LONG,
        at_least(1_000),
    )
    driftlog_verification_bytes_per_second: int = setting(
        8 * 1024 * 1024,
        "Most bytes of segments that this agent reads a second to verify them; nothing is read "
        "while producers are held back.",
        ConfigType.LONG,
        at_least(1024),
    )
    driftlog_traces_enable: bool = setting(
        False,
        "Whether this agent sends OpenTelemetry traces of some Produce requests, ten a second at "
        "most, by OTLP over HTTP; OTEL_EXPORTER_OTLP_ENDPOINT says where to. It needs pip install "
        "'driftlog[otel]'.",
        ConfigType.BOOLEAN,
    )
    driftlog_metrics_max_partitions: int = setting(
        500,
        "Most partitions, and most committed offsets of groups, that /metrics shows with series of "
        "their own, by name; it sums the others as (others).",
        check=at_least(0),
    )
    limits: Limits = field(default_factory=Limits)
    given: frozenset[str] = frozenset()
    """Names of the configs that were set at the start, even to their defaults."""
    log_level: str = "info"
    """Level of the log on standard error: `--log-level`."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    location: str = ""
    """Location of the objects, for display: a directory or s3://bucket/prefix."""

    @property
    def configs(self) -> dict[str, str]:
        """Effective values by config name."""
        return values_of(self) | self.groups.configs

    @property
    def topic_defaults(self) -> dict[str, str]:
        """What topics inherit and is not the default, as `Inherited` has it."""
        configs = self.configs
        return {
            name: configs[name] for name in _INHERITED if configs.get(name) != _DEFAULTS.get(name)
        }


STARTUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(definitions_of(BrokerSettings))
"""The configs that an agent takes at its start: fields of `BrokerSettings` and its nested
settings."""

_DEFAULTS: Final = values_of(BrokerSettings())
_INHERITED: Final = tuple(
    name
    for config in TOPIC_CONFIGS.values()
    for name in synonyms_of(config.broker_name)
    if name in STARTUP_CONFIGS
)
"""Configs that topics inherit."""
