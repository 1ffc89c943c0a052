"""Which partitions are looked at for compaction, how dirty they are, and which is next.

    changed since the last look, or due by age? ──no──▶ nothing
                 └─yes─▶ dirty ÷ all bytes ──▶ due ──▶ the dirtiest first
                                          └─▶ not due: when it may be, unless it changes before

A partition that has not changed, and of which nothing is due by age, costs no request.

Source: org.apache.kafka.storage.internals.log.LogCleanerManager.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from driftlog_agents.log.compaction.sealed_log import SealedLog
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.compaction.policy import (
    CleanerSettings,
    CompactionPolicy,
    Dirtiness,
    due_ms,
    is_due,
)


@dataclass(slots=True, kw_only=True)
class CompactionSettings:
    """How an agent compacts.  The backoff and the limits of a run may change during a session."""

    enabled: bool = True
    """``log.cleaner.enable``."""

    backoff_ms: float = 15_000
    """``log.cleaner.backoff.ms``.  Longer: compaction begins later; shorter: more looks at
    partitions that are written."""

    cleaner: CleanerSettings = field(default_factory=CleanerSettings)

    def within(self, grace: Grace) -> "CompactionSettings":
        """These settings, with the bounds of what names objects for the cluster's *grace*."""
        return replace(self, cleaner=self.cleaner.within(grace))


@dataclass(frozen=True, slots=True)
class _Looked:
    """The last look at a partition that was not due."""

    policy: CompactionPolicy
    log_start: int
    """When it moves, less of the log is clean, and a larger share is dirty."""
    sealed_end: int
    due_ms: int | None

    def holds(self, log: SealedLog, policy: CompactionPolicy, now_ms: int) -> bool:
        """Whether the partition cannot have become due since."""
        looked = self.policy, self.log_start, self.sealed_end
        is_same = looked == (policy, log.log_start, log.sealed_end)
        return is_same and (self.due_ms is None or now_ms < self.due_ms)


class CompactionLooks:
    """See the module; for one session."""

    def __init__(self) -> None:
        self._looked: dict[SealedLog, _Looked] = {}

    def keep(self, logs: Iterable[SealedLog]) -> None:
        """Forgets all partitions but *logs*."""
        self._looked = {log: self._looked[log] for log in logs if log in self._looked}

    def is_wanted(self, log: SealedLog, policy: CompactionPolicy, now_ms: int) -> bool:
        """Whether *log* may be due, as far as is known without a request."""
        looked = self._looked.get(log)
        return bool(log.manifest_version) and not (looked and looked.holds(log, policy, now_ms))

    def ratio(
        self, log: SealedLog, found: Dirtiness, policy: CompactionPolicy, now_ms: int
    ) -> float | None:
        """The share of *log* that is dirty, if it is due by what was *found*."""
        if is_due(found, policy, now_ms):
            return found.ratio
        due = due_ms(found, policy)
        self._looked[log] = _Looked(policy, log.log_start, log.sealed_end, due)
        return None
