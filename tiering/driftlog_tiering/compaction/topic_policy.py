"""The policy of compaction of a topic, from its configs as text.

Agents add the defaults of their own settings to the configs first.  Jobs add those of all brokers
(`broker_defaults`) for all but whether a topic is compacted; what neither sets has Kafka's default.

Pure.
"""

from collections.abc import Mapping
from typing import Final

from driftlog_tiering.compaction.policy import CompactionPolicy

_FIELDS: Final = {
    "min_lag_ms": ("min.compaction.lag.ms", int),
    "max_lag_ms": ("max.compaction.lag.ms", int),
    "min_dirty_ratio": ("min.cleanable.dirty.ratio", float),
    "delete_retention_ms": ("delete.retention.ms", int),
    "segment_bytes": ("segment.bytes", int),
}

BROKER_NAMES: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
}
"""The dynamic configs of brokers that a job follows, by what topics call them."""


def cleanup_policies(configs: Mapping[str, str]) -> list[str]:
    """What happens to old records: ``delete``, ``compact``, or both."""
    return [word.strip() for word in configs.get("cleanup.policy", "delete").split(",")]


def compaction_policy(configs: Mapping[str, str]) -> CompactionPolicy | None:
    """The policy from *configs*; None: the topic is not compacted.

    Raises:
        ValueError: a config is no number.
    """
    if "compact" not in cleanup_policies(configs):
        return None
    found = {
        field: convert(configs[name])
        for field, (name, convert) in _FIELDS.items()
        if name in configs
    }
    return CompactionPolicy(**found)
