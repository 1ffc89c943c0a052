"""Searches the log by time, exact to the record, in every tier (ListOffsets).

    manifest ── largest timestamp of each segment ──▶ footer ── of each row group ──▶
        two columns of one row group
    tail ── largest timestamp of each batch ──▶ one batch, decoded

A search is a generator: it yields what it needs next (`Ask`), and is sent the answer; `timestamps`
reads.  A batch that cannot be decoded counts with its first offset and its largest timestamp: a
reader that starts there misses nothing.

Source: org.apache.kafka.storage.internals.log.UnifiedLog#fetchOffsetByTimestamp.

Pure.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from driftlog_agents.log.partition.partition import UNDEFINED_EPOCH, PartitionLog, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.reading.sealed_read import GroupOf, Open
from driftlog_tiering.batches.batch import (
    MAX_TIMESTAMP_MS,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptRecordsError,
    parse_header,
)
from driftlog_tiering.batches.batch_limits import OverBatchLimitError
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef, SegmentRef, overlaps
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments import columns
from driftlog_tiering.segments.segment import SegmentReader

_SLICES_A_TURN: Final = 64
"""Slices searched before the event loop runs again: a few milliseconds of work."""

_NEVER_MS: Final = MAX_TIMESTAMP_MS + 1
"""Later than every record."""

Found = tuple[int, int]
"""Offset, timestamp (ms)."""


class LookInGroup(NamedTuple):
    """Asks for the result of *look*, called with the bytes of a group's offsets and timestamps."""

    of: GroupOf
    look: Callable[[Buffer], Found | None]


class LookInBatch(NamedTuple):
    """Asks for what *look* finds in a batch: it is called with the batch and the most bytes that
    the batch may decompress to, and says whether the batch has more."""

    tail: TailSlice
    at: int
    """Index of the batch in its flush."""
    look: Callable[[Buffer, int], tuple[Found | None, bool]]


Ask = Open | LookInGroup | LookInBatch | None
"""None: let the event loop run."""

Search = Generator[Ask, Any, Found | None]


class Tiers(NamedTuple):
    """What a search knows when it begins.

    The slices were copied before the manifest was read: a range that is sealed meanwhile is in
    both, and never in neither.
    """

    start: int
    """No offset below it is found: log start."""
    manifest: Manifest | None
    """None: no sealed offset is needed."""
    slices: Sequence[TailSlice]

    @property
    def tail_start(self) -> int:
        """No offset below it is found in the tail."""
        return self.start if self.manifest is None else max(self.start, self.manifest.end)


def find_first(target_ms: int, tiers: Tiers) -> Search:
    """The first record at or after *target_ms*, in offset order."""
    if tiers.manifest is not None:
        found: Found | None = yield from _first_sealed(tiers.manifest, tiers.start, target_ms)
        if found is not None:
            return found
    start = tiers.tail_start
    look = partial(_looked, target_ms, start)
    for turn, tail in enumerate(tiers.slices, 1):
        for index in _candidates(tail, start, target_ms):
            found = yield LookInBatch(tail, index, look)
            if found is not None and found[1] >= target_ms:
                return found
            _learn(tail, index, found)
        if turn % _SLICES_A_TURN == 0:
            yield None
    return None


def find_latest(tiers: Tiers) -> Search:
    """The first record with the largest timestamp."""
    best: Found | None = None
    if tiers.manifest is not None:
        best = yield from _latest_sealed(tiers.manifest, tiers.start)
    for turn, tail in enumerate(tiers.slices, 1):
        best = yield from _latest_of_slice(tail, tiers.tail_start, best)
        if turn % _SLICES_A_TURN == 0:
            yield None
    return best


def epoch_at(log: PartitionLog, manifest: Manifest | None, offset: int) -> int:
    """Leader epoch of the record at *offset*.

    The manifest has the epochs of sealed offsets.  The log has them, too, but only after its own
    first read of the manifest, which may succeed later than this one.
    """
    if manifest is None or offset >= manifest.end:
        return log.epoch_at(offset)
    entries = manifest.leader_epochs
    i = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[i - 1].epoch if i else UNDEFINED_EPOCH


# ── Sealed ──


def _first_sealed(manifest: Manifest, start: int, target_ms: int) -> Search:
    pending = _pending(manifest)
    while (ref := (yield from _next(pending, start, manifest.end, target_ms))) is not None:
        if ref.kind is SegmentKind.RAW:
            for header, _ in (yield Open(ref)):
                if header.end_offset > start and header.max_timestamp >= target_ms:
                    return _stand_in(header, start)
            continue
        reader: SegmentReader = yield Open(ref)
        for group in reader.row_groups_since(target_ms):
            if group.last_offset < start:
                continue
            look = partial(reader.find_timestamp, group, timestamp_ms=target_ms, from_offset=start)
            found: Found | None = yield LookInGroup(GroupOf(ref, reader, group), look)
            if found is not None:
                return found
    return None


def _latest_sealed(manifest: Manifest, start: int) -> Search:
    best: Found | None = None
    pending = _pending(manifest)
    while True:
        ref = yield from _next(pending, start, manifest.end, _least(best))
        if ref is None:
            return best
        if ref.kind is SegmentKind.RAW:
            for header, _ in (yield Open(ref)):
                if header.end_offset > start and header.max_timestamp >= _least(best):
                    best = _stand_in(header, start)
        elif ref.max_timestamp_offset >= start:
            best = ref.max_timestamp_offset, ref.max_timestamp_ms
        else:
            best = yield from _latest_after(ref, start, best)


def _latest_after(ref: SegmentRef, start: int, best: Found | None) -> Search:
    """The latest of the segment that log start is in, where its latest record is below log
    start."""
    reader: SegmentReader = yield Open(ref)
    for group in reader.row_groups:
        least = _least(best)
        if group.last_offset < start or group.max_timestamp_ms < least:
            continue
        look = partial(reader.find_latest, group, from_offset=start)
        found: Found | None = yield LookInGroup(GroupOf(ref, reader, group), look)
        if found is not None and found[1] >= least:
            best = found
    return best


def _pending(manifest: Manifest) -> list[SegmentRef | SegmentListRef]:
    """The manifest's entries, the first one last."""
    return [*reversed(manifest.segments), *reversed(manifest.lists)]


def _next(
    pending: list[SegmentRef | SegmentListRef], start: int, end: int, least_ms: int
) -> Generator[Ask, Any, SegmentRef | None]:
    """Takes the next segment from *pending* with offsets in ``[start, end)`` and a record at or
    after *least_ms*."""
    while pending:
        entry = pending.pop()
        if not overlaps(entry, start, end) or entry.max_timestamp_ms < least_ms:
            continue
        if isinstance(entry, SegmentRef):
            return entry
        content = yield Open(entry)
        pending += reversed((*content.lists, *content.segments))
    return None


# ── Tail ──


def _latest_of_slice(tail: TailSlice, start: int, best: Found | None) -> Search:
    data = tail.data
    assert isinstance(data, FlushBatches)
    times = data.max_timestamps_ms
    look = partial(_looked, _NEVER_MS, start)
    candidates = list(_candidates(tail, start, _least(best)))
    # A header's timestamp may be later than its records': then the next batch is searched too.
    for index in sorted(candidates, key=lambda i: (-times[i], i)):
        if times[index] < _least(best):
            break
        if data.max_timestamps_ms[index] < _least(best):
            continue  # another search has looked into it meanwhile
        found: Found | None = yield LookInBatch(tail, index, look)
        _learn(tail, index, found)
        if found is not None and found[1] >= _least(best):
            best = found
    return best


def _learn(tail: TailSlice, index: int, latest: Found | None) -> None:
    """*latest* of a batch's records is known: no search looks into it again for a later one,
    whatever its header says.

    Records below log start did not count.  They never will: log start only grows.
    """
    data = tail.data
    assert isinstance(data, FlushBatches)
    data.limit_time(index, -_NEVER_MS if latest is None else latest[1])


def _candidates(tail: TailSlice, start: int, target_ms: int) -> Iterator[int]:
    """Batches with offsets at or after *start* whose largest timestamp is *target_ms* or more."""
    data = tail.data
    assert isinstance(data, FlushBatches)
    if tail.end <= start:
        return
    first, stop = tail.first, tail.first + tail.count
    if tail.base < start:
        first = data.index_of(start, tail.first, tail.count)
    times = data.max_timestamps_ms[first:stop]
    if max(times) < target_ms:
        return
    for i, time_ms in enumerate(times):
        if time_ms >= target_ms:
            yield first + i


def _looked(
    target_ms: int, start: int, batch: Buffer, most_bytes: int
) -> tuple[Found | None, bool]:
    """The batch's first record from *start* on that is at or after *target_ms*, or else the latest,
    or a stand-in where it cannot be decoded; and whether it decompresses to over *most_bytes*."""
    try:
        return columns.find_timestamp(batch, target_ms, start, most_bytes), False
    except OverBatchLimitError:
        return _stand_in(parse_header(batch), start), True
    except CorruptRecordsError:
        return _stand_in(parse_header(batch), start), False


def _stand_in(header: BatchHeader, start: int) -> Found:
    return max(header.base_offset, start), header.max_timestamp


def _least(best: Found | None) -> int:
    """The least timestamp that is later than that of *best*; at first, that of records without."""
    return NO_TIMESTAMP if best is None else best[1] + 1
