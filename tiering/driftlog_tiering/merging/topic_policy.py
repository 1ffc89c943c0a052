"""The limits of merges in a topic, from its configs as text: those of a job.

A config that the topic does not set has the default of agents: Kafka's, but for the size and the
age of a segment.

Pure.
"""

from collections.abc import Mapping
from typing import Final

from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.compaction.topic_policy import cleanup_policies, compaction_policy
from driftlog_tiering.merging.policy import MergePolicy, span_ms

_RETENTION_MS: Final = 604_800_000
_SEGMENT_MS: Final = 3_600_000.0


def merge_policy(configs: Mapping[str, str], factor: int) -> MergePolicy:
    """The limits from *configs*.

    Raises:
        ValueError: a config is no number.
    """
    retention_ms = int(configs.get("retention.ms", _RETENTION_MS))
    expires = "delete" in cleanup_policies(configs) and retention_ms >= 0
    compaction = compaction_policy(configs)
    return MergePolicy(
        segment_bytes=int(configs.get("segment.bytes", CompactionPolicy().segment_bytes)),
        span_ms=span_ms(
            float(configs.get("segment.ms", _SEGMENT_MS)), retention_ms if expires else None
        ),
        min_lag_ms=0 if compaction is None else compaction.min_lag_ms,
        factor=factor,
    )
