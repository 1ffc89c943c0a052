"""Which partitions are due to be sealed, and up to where.

A partition is due when it has `segment.bytes` of committed batches, or its oldest batch was flushed
`segment.ms` ago (a day ago below 1 MiB: small files cost Spark dearly), or `retention.ms` ago (it
expires with its segment), or too many sessions have flushed its batches: its key stays short
however often agents start.  Above the agent's bounds the fullest partition is due whatever its age.
At twice the bounds producers wait, so that unsealed data stays bounded.  A partition with damaged
data cannot be sealed, and is never due; such partitions have the same bounds for themselves.

Pure.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import unsealed_sessions
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.foundation.types import MiB

_HELD: Final = 2.0
_RELEASED: Final = 1.98
_CAUGHT_UP: Final = 1.5
_NEAR: Final = 1.8
"""Fractions of the bounds; 0.02 are 80 MiB of 4 GiB: less than the memory that flushes are written
from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSettings:
    """When batches become segments."""

    segment_bytes: int = 128 * MiB
    """Bytes as received.  Larger: fewer files for Spark, more unsealed data."""

    segment_ms: float = 3_600_000
    """Longer: fewer and larger files, and Spark sees the log later."""

    segment_work_bytes: int = 1024 * MiB
    """Decoded bytes after which a segment ends, however few bytes were received.  Larger: topics
    that fall due wait longer for an attempt to end; smaller: records that compress to less than an
    eighth get smaller segments."""

    small_bytes: int = MiB
    small_ms: float = 86_400_000
    """Below `small_bytes` a partition waits this long."""

    unsealed_bytes: int = 4096 * MiB
    unsealed_bytes_per_partition: int = 16 * MiB
    unsealed_batches: int = 2_000_000
    """Bounds of all unsealed data of the agent; bytes: the larger of the two."""

    sessions: int = 8
    """Most sessions that flushed the unsealed batches of a partition; with more of them it is
    sealed early.  Each takes 35 bytes of the partition's key, and a takeover reads the flush
    records of each. Fewer: a partition whose agents start often gets more and smaller segments."""

    check_interval_ms: float = 1_000

    hung_ms: float = 60_000
    """How long a call of the threads that write segments may take: it takes a second or two, on a
    busy machine some more.  Longer: work is sent to an agent that does none; shorter: a slow agent
    counts as one that hangs."""

    grace: Grace = field(default_factory=Grace)
    """The cluster's."""


@dataclass(frozen=True, slots=True)
class TopicSealPolicy:
    """The topic's own settings; None: the agent's setting."""

    segment_bytes: int | None = None
    segment_ms: float | None = None
    longest_ms: float | None = None
    """No batch waits longer, whatever the other settings: `retention.ms`.  None: no limit."""


_USUAL: Final = TopicSealPolicy()


def can_be_sealed(log: PartitionLog) -> bool:
    """Whether sealing can reduce the unsealed data of *log*: it is led, and nothing is damaged."""
    return not log.damage and log.state in (State.ONLINE, State.LOADING)


class DuePartitions:
    """Which partitions to seal now, of those that it looks at one after the other.

    Args:
        settings: the agent's.
        now_ms: never goes back.
        wall_ms: the time since 1970, as flushes are stamped.
    """

    def __init__(self, settings: SealSettings, now_ms: float, wall_ms: float) -> None:
        self._settings, self._now_ms, self._wall_ms = settings, now_ms, wall_ms
        self._due: list[PartitionLog] = []
        self._others: list[PartitionLog] = []

    def look(
        self, log: PartitionLog, topic: TopicSealPolicy | None, *, attempted: bool = False
    ) -> None:
        """Whether *log*, of *topic*, is due now; one that is *attempted* is."""
        if log.slices and can_be_sealed(log):
            age_ms = log.unsealed_age_ms(self._now_ms, self._wall_ms)
            is_due = attempted or _is_due(log, self._settings, topic or _USUAL, age_ms)
            (self._due if is_due else self._others).append(log)

    def in_order(self) -> list[PartitionLog]:
        """Those to seal, the most urgent first."""
        full = fullness([*self._due, *self._others], self._settings)
        # Near twice the bounds the fullest is sealed even when others are due: those may keep
        # failing.
        if self._others and (full > _NEAR or (full > 1 and not self._due)):
            self._due.append(max(self._others, key=self._size()))
        return sorted(self._due, key=lambda log: -log.unsealed_bytes)

    def _size(self) -> Callable[[PartitionLog], int]:
        batches = sum(log.unsealed_batches for log in (*self._due, *self._others))
        if batches > self._settings.unsealed_batches:
            return lambda log: log.unsealed_batches
        return lambda log: log.unsealed_bytes


def fullness(logs: Collection[PartitionLog], settings: SealSettings) -> float:
    """Unsealed data of *logs*, as a share of the agent's bounds; above 1 a partition is sealed
    early."""
    bound = max(settings.unsealed_bytes, settings.unsealed_bytes_per_partition * len(logs))
    return max(
        sum(log.unsealed_bytes for log in logs) / bound,
        sum(log.unsealed_batches for log in logs) / settings.unsealed_batches,
    )


class SealingLag:
    """Whether producers wait for sealing.

    They wait at twice the bounds, and continue when there is a little less: they then send at the
    rate of sealing.  With longer breaks they would send in bursts, faster than the flusher can
    upload.
    """

    __slots__ = ("behind", "full", "held", "near")

    def __init__(self) -> None:
        self.held = False
        """Producers wait."""
        self.behind = False
        """Producers waited, and sealing has not caught up since."""
        self.near = False
        """Producers may have to wait within moments."""
        self.full = False
        """Unsealed data is over the agent's bounds."""

    def update(self, fullness: float) -> None:
        """Note the present *fullness*."""
        self.held = fullness > (_RELEASED if self.held else _HELD)
        self.behind = self.held or (self.behind and fullness > _CAUGHT_UP)
        self.near = fullness > _NEAR
        self.full = fullness > 1


def segment_bytes(settings: SealSettings, topic: TopicSealPolicy | None) -> int:
    """The target size of the topic's segments, bytes as received."""
    if topic is None or topic.segment_bytes is None:
        return settings.segment_bytes
    return topic.segment_bytes


def _is_due(
    log: PartitionLog, settings: SealSettings, topic: TopicSealPolicy, age_ms: float
) -> bool:
    if log.unsealed_bytes >= segment_bytes(settings, topic):
        return True
    if len(log.sessions) > settings.sessions < len(unsealed_sessions(log, log.sealed_end)):
        return True
    if topic.longest_ms is not None and age_ms >= topic.longest_ms:
        return True
    if topic.segment_ms is not None:
        return age_ms >= topic.segment_ms
    if log.unsealed_bytes < settings.small_bytes:
        return age_ms >= max(settings.small_ms, settings.segment_ms)
    return age_ms >= settings.segment_ms


def seal_end(log: PartitionLog, wanted_bytes: int) -> int:
    """The offset, at a slice's end, where a segment from the sealed end on reaches *wanted_bytes*;
    the high watermark if none does."""
    size = 0
    for tail in log.slices:
        size += tail.size_bytes
        if size >= wanted_bytes:
            return tail.end
    return log.high_watermark
