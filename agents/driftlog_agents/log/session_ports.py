"""What one session of the log is built from: its settings and its ports.

Shell.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from random import Random

from driftlog_agents.cluster.cluster_file import Believed, Ownership
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.compaction.log_cleaner import CompactionSettings
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.leadership.handover_policy import LeadershipSettings
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.merging.segment_merger import MergeSettings
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.retention.policy import RetentionSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.keep_alive import KeepAlive
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.producer_budget import ProducerSettings
from driftlog_agents.log.session.session_health import SessionHealth
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.log.verification.schedule import VerificationSettings
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.quota import Quota
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.formats.file_likes import Spool
from driftlog_tiering.stores.object_store import ObjectStore


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
    drain_ms: float = 20_000
    """How long a leaving session flushes; less than a supervisor's timeout (30 s)."""

    drain_failing_ms: float = 5_000
    """The same while flushes fail: it gives up once they have failed for so long.  Longer: a short
    outage leaves less to the next start; shorter: a stop is quicker."""

    def within(self, grace: Grace) -> "EngineSettings":
        """These settings, with the bounds of what names objects for the cluster's *grace*."""
        return replace(
            self,
            flush=replace(self.flush, max_object_age_ms=grace.named_within_ms),
            consolidation=replace(self.consolidation, named_within_ms=grace.short_ms),
            seal=replace(self.seal, grace=grace),
            compaction=self.compaction.within(grace),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of the log: stores, disk, clocks, threads and shared state."""

    metadata: WitnessedStore
    objects: ObjectStore
    disk: AgentDisk
    rng: Random
    now_ms: Callable[[], float]
    """A monotonic clock that includes the time that the machine was suspended."""
    wall_ms: Callable[[], int]
    """Unix time in ms, by a clock that may jump or stand still."""
    offload: Offload
    """Runs ``fn(*args)`` outside the event loop."""
    spool: Callable[[], AbstractContextManager[Spool]]
    offload_read: Offload | None = None
    """Like *offload*, for work that must not wait behind segments; None: *offload*."""
    offload_upkeep: Offload | None = None
    """Like *offload*, for what sealing does not wait for: compaction, merging, verification; None:
    *offload*."""
    decoding: BatchDecoder = field(default_factory=BatchDecoder)
    """Decodes large batches, one at a time in the process."""
    keep_alive: KeepAlive | None = None
    """None: keep-alives are sent from the event loop."""
    ownership: Ownership = field(default_factory=Believed)
    """Whether the cluster has the bucket."""
    quota: Quota = field(default_factory=Quota)
    """How much of its quota the metadata store uses."""
    strangers: UnknownKeys = field(default_factory=UnknownKeys)
    """Unrecognised keys that are logged already, also by earlier sessions of the agent."""
    backpressure: Backpressure = field(default_factory=Backpressure)
    """Holds producers of this session back."""
    health: SessionHealth = field(default_factory=SessionHealth)
    """Health of this session."""
    counters: LogCounters = field(default_factory=LogCounters)
    """Counters of all sessions of the process."""
