"""The policy of compaction of a topic, from its configs as text.

Agents add the defaults of their own settings to the configs first.  Jobs have the topic's file in
the bucket alone: a config that the topic does not set has Kafka's default there.

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
