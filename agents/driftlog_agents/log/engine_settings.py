"""All settings of one session of the log.

Pure.
"""

from dataclasses import dataclass, field, replace

from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.leadership.handover_policy import LeadershipSettings
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_agents.log.objects.availability import READ_DEADLINE_MS
from driftlog_agents.log.retention.policy import RetentionSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.producer_budget import ProducerSettings
from driftlog_agents.log.verification.schedule import VerificationSettings
from driftlog_metadata.schema.grace import Grace


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """All settings of one session."""

    session: SessionSettings = field(default_factory=SessionSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    buffer: BufferSettings = field(default_factory=BufferSettings)
    seal: SealSettings = field(default_factory=SealSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    leadership: LeadershipSettings = field(default_factory=LeadershipSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    merging: MergeSettings = field(default_factory=MergeSettings)
    consolidation: ConsolidationSettings = field(default_factory=ConsolidationSettings)
    producers: ProducerSettings = field(default_factory=ProducerSettings)
    verification: VerificationSettings = field(default_factory=VerificationSettings)
    read_deadline_ms: float = READ_DEADLINE_MS
    """How long one read repeats a failed request before the object counts as unavailable."""

    drain_ms: float = 20_000
    """How long a leaving session flushes; less than a supervisor's timeout (30 s)."""

    drain_failing_ms: float = 5_000
    """The same while flushes fail: it gives up once they have failed for so long.  Longer: a short
    outage leaves less to the next start; shorter: a stop is quicker."""

    def within(self, grace: Grace) -> "EngineSettings":
        """A copy, with the bounds of what names objects for the cluster's *grace*; what may change
        during a session is the copy's own."""
        return replace(
            self,
            flush=replace(self.flush, max_object_age_ms=grace.named_within_ms),
            consolidation=replace(self.consolidation, named_within_ms=grace.short_ms),
            seal=replace(self.seal, grace=grace),
            compaction=self.compaction.within(grace),
            merging=replace(self.merging),
            producers=replace(self.producers),
        )
