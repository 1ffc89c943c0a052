"""The limits of merges in each topic, from its policies of sealing, retention and compaction.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.policy import SealSettings, TopicSealPolicy, segment_bytes
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.merging.policy import MergePolicy, span_ms


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The policies of the topics now, by name; those of sealing default to *seal*."""

    seal: SealSettings
    sealing: Mapping[str, TopicSealPolicy] = field(default_factory=dict)
    retention: Mapping[str, TopicRetention] = field(default_factory=dict)
    compaction: Mapping[str, CompactionPolicy] = field(default_factory=dict)

    def of(self, topic: str, factor: int) -> MergePolicy | None:
        """The limits of merges in *topic*; None: it is not known (any more)."""
        retention, compaction = self.retention.get(topic), self.compaction.get(topic)
        if retention is None:
            return None
        sealing = self.sealing.get(topic)
        own_ms = None if sealing is None else sealing.segment_ms
        return MergePolicy(
            segment_bytes=segment_bytes(self.seal, sealing),
            span_ms=span_ms(self.seal.segment_ms if own_ms is None else own_ms, retention.ms),
            min_lag_ms=0 if compaction is None else compaction.min_lag_ms,
            factor=factor,
        )
