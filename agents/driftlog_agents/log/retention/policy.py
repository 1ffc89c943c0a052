"""Which segments at the beginning of a log have expired, and when the next one is due.

    log start
        │ expired by size │ expired by time │ kept … │ the unsealed tail │ high watermark
                                            └─▶ the new log start

Whole segments expire, from the front.  By size: while what is left without the first one is at
least `retention.bytes`, in bytes as received.  By time: the first segment whose largest timestamp
is at or after now − `retention.ms` ends the expired prefix, so a record from the future holds
everything behind it.  The unsealed tail counts as the last segment: it goes whole.  Nothing at or
above the high watermark, which is the last stable offset, expires.

A segment without timestamps has the time of its PUT, as Kafka takes the time of the file; a tail
without timestamps has the time of its last flush.  The batches of a `.raw` object have the largest
timestamps of their headers.

The lists of older segments are read only where they decide something: the first list of each level
for the size of what is above log start, and one that has expired in part.

Source: org.apache.kafka.storage.internals.log.UnifiedLog#deleteOldSegments of 4.3.

Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from driftlog_agents.log.partition.partition import PartitionLog, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentList,
    SegmentListRef,
    SegmentRef,
)

_INITIAL_DELAY_MS: Final = 30_000.0
"""LogManager#initialTaskDelayMs: an agent that starts loads its partitions first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How often partitions are checked."""

    check_interval_ms: float = 300_000
    """`log.retention.check.interval.ms`.  Longer: what has expired stays longer; shorter: more work
    for partitions that are written."""

    def first_check_ms(self, phase: float) -> float:
        """How long a partition waits for its first check; *phase* is in [0, 1)."""
        return min(_INITIAL_DELAY_MS, self.check_interval_ms) + phase * self.check_interval_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRetention:
    """`retention.ms` and `retention.bytes` of a topic; None: no limit.  A topic whose
    `cleanup.policy` lacks delete has neither."""

    ms: int | None = None
    size_bytes: int | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether nothing ever expires."""
        return self.ms is None and self.size_bytes is None


class ExpiryReason(StrEnum):
    """Why a segment has expired."""

    TIME = "time"
    SIZE = "size"


@dataclass(slots=True)
class ExpiredSegments:
    """What expires for one reason."""

    segments: int = 0
    records: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Expiry:
    """The result of a check.

    ``log_start``: the new log start; the present one if nothing has expired.  ``due_ms``: no
    segment expires by time before that; None: none does by time.
    """

    log_start: int
    due_ms: int | None
    expired: Mapping[ExpiryReason, ExpiredSegments] = field(default_factory=dict)

    def totals(self, log_start: int, sealed_end: int) -> dict[str, int]:
        """What has expired above *log_start*, as a log line says it."""
        totals: Counter[str] = Counter()
        if (unsealed := self.log_start - max(log_start, sealed_end)) > 0:
            totals["unsealed_offsets"] = unsealed
        for reason, expired in self.expired.items():
            totals[f"by_{reason}"] += expired.segments
            totals["records"] += expired.records
            totals["bytes"] += expired.size_bytes
        return dict(totals)


@dataclass(frozen=True, slots=True)
class Needs:
    """Check again with this list as well, or with the time of this segment's PUT."""

    ref: SegmentListRef | SegmentRef


@dataclass(slots=True)
class Known:
    """What was read from the bucket for a check."""

    lists: dict[str, SegmentList] = field(default_factory=dict)
    put_ms: dict[str, int] = field(default_factory=dict)
    """Times of PUTs, by the store's clock."""


class NeededError(Exception):
    """The check needs a list, or the time of a segment."""

    def __init__(self, ref: SegmentListRef | SegmentRef) -> None:
        super().__init__(ref.key)
        self.ref = ref


class _Tail(NamedTuple):
    """The unsealed batches above log start, as one segment."""

    base: int
    end: int
    received_bytes: int

    @property
    def records(self) -> int:
        return self.end - self.base


_Piece = SegmentListRef | SegmentRef | _Tail


def tail_bytes(log: PartitionLog) -> int:
    """The size of the unsealed batches of *log* that end above log start.

    A slice that begins below the sealed end holds batches that are sealed, too.
    """
    start = max(log.sealed_end, log.log_start)
    total = log.unsealed_bytes
    for tail in log.slices:
        if tail.base >= start:
            break
        total -= tail.size_bytes
        if tail.end > start:
            data = _flush_of(tail)
            first = data.index_of(start, tail.first, tail.count)
            total += sum(data.lengths[first : tail.first + tail.count])
    return total


def sealed_refs(log: PartitionLog, manifest: Manifest | None) -> list[SegmentListRef | SegmentRef]:
    """The lists and segments of *manifest* up to the sealed end of *log*.

    A manifest may be ahead of the partition's key for a moment: the batches behind the sealed end
    are still counted in the tail.
    """
    refs: list[SegmentListRef | SegmentRef] = []
    if manifest is not None:
        refs += (*manifest.lists, *manifest.segments)
    return [ref for ref in refs if ref.end <= log.sealed_end]


def sealed_bytes(
    refs: Iterable[SegmentListRef | SegmentRef], log_start: int, lists: Mapping[str, SegmentList]
) -> int:
    """The size of the segments that end above *log_start*.

    Raises:
        NeededError: a list that *log_start* is in is not in *lists*.
    """
    total = 0
    for ref in refs:
        if ref.end <= log_start:
            continue
        if isinstance(ref, SegmentListRef) and ref.base < log_start:
            if ref.key not in lists:
                raise NeededError(ref)
            content = lists[ref.key]
            total += sealed_bytes((*content.lists, *content.segments), log_start, lists)
        else:
            total += ref.received_bytes
    return total


def check(
    log: PartitionLog,
    manifest: Manifest | None,
    retention: TopicRetention,
    now_ms: int,
    known: Known,
) -> Expiry | Needs:
    """What of *log* has expired at *now_ms*, by the wall clock.

    *manifest* None: nothing is sealed.  One that is ahead of the partition's key counts up to the
    sealed end, and the tail waits.
    """
    front = _Front(log, manifest, known)
    due_ms = None
    try:
        if retention.size_bytes is not None:
            _by_size(front, log, manifest, retention.size_bytes)
        if retention.ms is not None:
            due_ms = _by_time(front, retention.ms, now_ms)
    except NeededError as needed:
        return Needs(needed.ref)
    return Expiry(front.log_start, due_ms, front.expired)


def _by_size(
    front: "_Front", log: PartitionLog, manifest: Manifest | None, retention_bytes: int
) -> None:
    excess = tail_bytes(log) - retention_bytes
    excess += sealed_bytes(sealed_refs(log, manifest), log.log_start, front.lists)
    while excess >= 0 and (piece := front.first()) is not None:
        if isinstance(piece, SegmentListRef) and piece.base < log.log_start:
            front.open(piece)
        elif piece.received_bytes <= excess:
            excess -= piece.received_bytes
            front.expire(piece, ExpiryReason.SIZE)
        elif isinstance(piece, SegmentListRef):
            front.open(piece)
        else:
            return


def _by_time(front: "_Front", retention_ms: int, now_ms: int) -> int | None:
    """When the first segment that stays is due, or a time before that; None: none is left."""
    while (piece := front.first()) is not None:
        if isinstance(piece, SegmentListRef):
            # Without a smallest timestamp, one of its segments may have no timestamp at all.
            is_known = piece.min_timestamp_ms != NO_TIMESTAMP
            if is_known and now_ms - piece.min_timestamp_ms <= retention_ms:
                return piece.min_timestamp_ms + retention_ms + 1
            if not is_known or now_ms - piece.max_timestamp_ms <= retention_ms:
                front.open(piece)
                continue
            largest_ms = piece.max_timestamp_ms
        else:
            largest_ms = front.largest_ms(piece, now_ms)
        if now_ms - largest_ms <= retention_ms:
            return largest_ms + retention_ms + 1
        front.expire(piece, ExpiryReason.TIME)
    return None


class _Front:
    """The pieces of a log that have not expired, in their order; lists are opened on the way."""

    def __init__(self, log: PartitionLog, manifest: Manifest | None, known: Known) -> None:
        self.log_start = log.log_start
        self.lists = known.lists
        self.expired: dict[ExpiryReason, ExpiredSegments] = {}
        self._log = log
        self._put_ms = known.put_ms
        self._end = log.sealed_end
        self._left: list[_Piece] = []
        if manifest is not None:
            self._left += (*manifest.lists, *manifest.segments)
        if manifest is None or manifest.end <= log.sealed_end:
            self._end = log.high_watermark
            base = max(log.sealed_end, log.log_start)
            if base < log.high_watermark:
                self._left.append(_Tail(base, log.high_watermark, tail_bytes(log)))
        self._left.reverse()

    def first(self) -> _Piece | None:
        """The first piece; None: none is left that may expire."""
        while self._left and self._left[-1].end <= self._log.log_start:
            self._left.pop()
        if not self._left or self._left[-1].end > self._end:
            return None
        return self._left[-1]

    def open(self, ref: SegmentListRef) -> None:
        """Put what *ref* lists in the place of *ref*, which is the first piece."""
        if ref.key not in self.lists:
            raise NeededError(ref)
        content = self.lists[ref.key]
        self._left.pop()
        self._left += reversed((*content.lists, *content.segments))

    def expire(self, piece: _Piece, reason: ExpiryReason) -> None:
        """Take *piece*, which is the first one: log start moves to the next one, or to the end."""
        self._left.pop()
        self.log_start = min(self._left[-1].base if self._left else self._end, self._end)
        expired = self.expired.setdefault(reason, ExpiredSegments())
        expired.segments += piece.segments if isinstance(piece, SegmentListRef) else 1
        expired.records += piece.records
        expired.size_bytes += piece.received_bytes

    def largest_ms(self, piece: SegmentRef | _Tail, now_ms: int) -> int:
        """The largest timestamp of *piece*, or the time that stands for it."""
        if isinstance(piece, _Tail):
            return _largest_of_tail(self._log, now_ms)
        if piece.max_timestamp_ms != NO_TIMESTAMP:
            return piece.max_timestamp_ms
        if piece.key not in self._put_ms:
            raise NeededError(piece)
        return self._put_ms[piece.key]


def _flush_of(tail: TailSlice) -> FlushBatches:
    assert isinstance(tail.data, FlushBatches)
    return tail.data


def _largest_of_tail(log: PartitionLog, now_ms: int) -> int:
    start = max(log.sealed_end, log.log_start)
    largest_ms = NO_TIMESTAMP
    for tail in log.slices:
        if tail.end <= start:
            continue
        data = _flush_of(tail)
        first = tail.first
        if tail.base < start:
            first = data.index_of(start, tail.first, tail.count)
        largest_ms = max(largest_ms, max(data.max_timestamps_ms[first : tail.first + tail.count]))
    if largest_ms != NO_TIMESTAMP:
        return largest_ms
    return log.slices[-1].flushed_until_ms or now_ms
