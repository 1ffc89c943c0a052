"""The checks of partitions: which are due, which of them need no look at the manifest.

    led ──first check at its own phase──▶ due ──▶ changed since the last check, or due by time?
                ▲                                     no ──▶ nothing          yes ──▶ `policy.check`
                └────────────── an interval later ◀───┴──────────────────────────────┘

1. A partition is checked once an interval, at a phase of its own: a start causes no burst.
2. A check whose last result still holds costs no request.
3. A list that log start is in counts whole until a check has opened it.

Pure.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.retention.policy import (
    Expiry,
    Known,
    NeededError,
    RetentionSettings,
    TopicRetention,
    sealed_bytes,
    sealed_refs,
    tail_bytes,
)
from driftlog_tiering.formats.manifest import Manifest


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The last check of a partition: what it saw, and when the next segment is due."""

    retention: TopicRetention
    log_start: int
    high_watermark: int
    manifest_version: int
    due_ms: int | None

    def holds(self, log: PartitionLog, retention: TopicRetention, now_ms: int) -> bool:
        """Whether nothing can have expired since."""
        if (self.retention, self.log_start) != (retention, log.log_start):
            return False
        if self.due_ms is not None and now_ms >= self.due_ms:
            return False
        if retention.size_bytes is None and self.due_ms is not None:
            return True  # what came since is behind the first segment
        return (self.high_watermark, self.manifest_version) == (
            log.high_watermark,
            log.manifest_version,
        )


@dataclass(slots=True)
class _Partition:
    """The state of one partition between two checks."""

    next_check_s: float
    checked: LastCheck | None = None
    opened: tuple[str, int, int] = ("", 0, 0)
    """The list that log start is in: its key, that log start, and the bytes above it."""
    sized: tuple[int, int, int, int] | None = None
    """The sealed bytes, the last of these, of a manifest's version, sealed end and log start."""


class RetentionChecks:
    """The checks of one session's partitions.

    Args:
        phase: a random number in [0, 1).
    """

    def __init__(self, settings: RetentionSettings, phase: Callable[[], float]) -> None:
        self._settings = settings
        self._phase = phase
        self._partitions: dict[PartitionLog, _Partition] = {}

    def due(self, logs: Iterable[PartitionLog], now_s: float) -> list[PartitionLog]:
        """The partitions whose check is due; the next one is an interval later."""
        partitions: dict[PartitionLog, _Partition] = {}
        due: list[PartitionLog] = []
        for log in logs:
            found = self._partitions.get(log)
            if found is None:
                found = _Partition(now_s + self._settings.first_check_ms(self._phase()) / 1000)
            elif found.next_check_s <= now_s:
                found.next_check_s = now_s + self._settings.check_interval_ms / 1000
                due.append(log)
            partitions[log] = found
        self._partitions = partitions
        return due

    def is_needed(self, log: PartitionLog, retention: TopicRetention, wall_ms: int) -> bool:
        """Whether something may have expired since the last check of *log*."""
        found = self._partitions.get(log)
        if found is None or log.state not in (State.ONLINE, State.LOADING):
            return False
        return found.checked is None or not found.checked.holds(log, retention, wall_ms)

    def checked(
        self,
        log: PartitionLog,
        retention: TopicRetention,
        expiry: Expiry,
        manifest: Manifest | None,
        known: Known,
    ) -> None:
        """*log* was checked, by *manifest* and what was read for it (*known*)."""
        found = self._partitions.get(log)
        if found is None:
            return  # it is not led here any more
        found.checked = LastCheck(
            retention,
            expiry.log_start,
            log.high_watermark,
            log.manifest_version,
            expiry.due_ms,
        )
        if manifest is not None:
            found.opened = _opened(manifest, expiry.log_start, known)
            found.sized = None

    def size_bytes(self, log: PartitionLog, manifest: Manifest | None) -> int:
        """The size of *log*, as retention counts it: bytes as received that end above log start.
        *manifest*: None where nothing is sealed, or while it is loaded."""
        return tail_bytes(log) + self.sealed_bytes(log, manifest)

    def sealed_bytes(self, log: PartitionLog, manifest: Manifest | None) -> int:
        """The sealed part of `size_bytes`.  Kept until it may change: a scrape of an agent's
        metrics asks for that of each partition."""
        if manifest is None:
            return 0
        found = self._partitions.get(log)
        if found is None:
            return _counted_bytes(log, manifest, ("", 0, 0))
        version, end, start, total = found.sized or (-1, 0, 0, 0)
        if version != manifest.version or end != log.sealed_end or start != log.log_start:
            total = _counted_bytes(log, manifest, found.opened)
            found.sized = manifest.version, log.sealed_end, log.log_start, total
        return total


def _counted_bytes(log: PartitionLog, manifest: Manifest, opened: tuple[str, int, int]) -> int:
    key, start, opened_bytes = opened
    return sum(
        opened_bytes if (ref.key, log.log_start) == (key, start) else ref.received_bytes
        for ref in sealed_refs(log, manifest)
        if ref.end > log.log_start
    )


def _opened(manifest: Manifest, log_start: int, known: Known) -> tuple[str, int, int]:
    for ref in manifest.lists:
        if ref.base < log_start < ref.end:
            with suppress(NeededError):
                return ref.key, log_start, sealed_bytes((ref,), log_start, known.lists)
    return "", 0, 0
