"""Health of a session: since when each kind of work has failed, and why.

Each component notes its own attempts; `health/write_health_monitor`, `/readyz` and `metrics` read
them.

Pure.
"""

from dataclasses import dataclass, field

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHealth:
    """One tracker for each kind of work."""

    requests: FailureTracker = field(default_factory=FailureTracker)
    """Requests to the metadata store."""
    flushes: FailureTracker = field(default_factory=FailureTracker)
    """PUTs and commits."""
    footers: FailureTracker = field(default_factory=FailureTracker)
    """Reads of flush objects' footers."""
    manifest_checks: FailureTracker = field(default_factory=FailureTracker)
    """Comparisons of partition keys with their manifests, at a claim."""
    loading: FailureTracker = field(default_factory=FailureTracker)
    """Reads of manifests and producer snapshots of partitions led here."""
    sealing: FailureTracker = field(default_factory=FailureTracker)
    consolidation: FailureTracker = field(default_factory=FailureTracker)

    def reads(self, now_ms: float) -> FailureTracker:
        """The longest current outage of work that reads the bucket; one without a beginning: none.

        A claimed partition has no leader until its footers are read, and at a start not before the
        manifests that judge the batches left on the disk.  Data that cannot be sealed makes
        producers wait once there is enough of it; flush records that cannot be consolidated fill
        etcd.
        """
        outages = (
            self.footers,
            self.manifest_checks,
            self.loading,
            self.sealing,
            self.consolidation,
        )
        going_on = [outage for outage in outages if outage.goes_on(now_ms)]
        return max(going_on, key=lambda outage: outage.lasted_ms(now_ms), default=FailureTracker())


@dataclass(frozen=True, slots=True)
class SessionSignals:
    """What the parts of a session tell the rest of the agent: each writes its own counters, its own
    tracker and its own reason for which producers wait."""

    counters: LogCounters
    health: SessionHealth
    backpressure: Backpressure
