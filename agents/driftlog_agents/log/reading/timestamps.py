"""Offsets by time, exact to the record, in every tier (ListOffsets).

    manifest ── largest timestamp of each segment ──▶ footer ── of each row group ──▶
        two columns of one row group
    tail ── largest timestamp of each batch ──▶ one batch, decoded

A lookup copies the tail's slices before it reads the manifest: a range that is sealed meanwhile is
then in both, and never in neither.  A batch that cannot be decoded counts with its first offset and
its largest timestamp: a reader that starts there misses nothing.

Source: org.apache.kafka.storage.internals.log.UnifiedLog#fetchOffsetByTimestamp.

Shell.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import UNDEFINED_EPOCH, PartitionLog, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.reading.flush_objects import FlushReads
from driftlog_agents.log.reading.segments import SegmentReads
from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    CorruptRecordsError,
    TimestampType,
    parse_header,
)
from driftlog_tiering.batches.batch_limits import LIGHT_BYTES, OverBatchLimitError
from driftlog_tiering.batches.compression import decompress
from driftlog_tiering.batches.kernel_py import iterate_records
from driftlog_tiering.formats import columns
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from driftlog_tiering.formats.segment import RowGroup, SegmentReader
from driftlog_tiering.stores.object_store import Buffer

_SLICES_A_TURN: Final = 64
"""Slices searched before the event loop runs again: a few milliseconds of work."""

_Found = tuple[int, int]
"""Offset, timestamp (ms)."""


class TimeReads:
    """Lookups by time, for all partitions."""

    def __init__(
        self,
        *,
        segments: SegmentReads,
        flushes: FlushReads,
        manifest: Callable[[PartitionLog], Awaitable[Manifest]],
        decoding: BatchDecoder,
    ) -> None:
        self._decoding = decoding
        self._segments = segments
        self._flushes = flushes
        self._manifest = manifest

    async def find(self, log: PartitionLog, target_ms: int) -> tuple[int, int, int] | None:
        """See `LogReader.find_timestamp`."""
        slices, manifest, start = await self._tiers(log)
        if manifest is not None:
            found = await self._find_sealed(manifest, start, target_ms)
            if found is not None:
                return (*found, _epoch_at(log, manifest, found[0]))
            start = max(start, manifest.end)
        for turn, tail in enumerate(slices):
            for index in _candidates(tail, start, target_ms):
                batch = await self._flushes.batch(tail, index)
                found = await self._run(tail, _first_since, batch, target_ms, start)
                if found is not None:
                    return (*found, log.epoch_at(found[0]))
            if turn % _SLICES_A_TURN == _SLICES_A_TURN - 1:
                await asyncio.sleep(0)
        return None

    async def max(self, log: PartitionLog) -> tuple[int, int, int] | None:
        """See `LogReader.max_timestamp`."""
        slices, manifest, start = await self._tiers(log)
        best: _Found | None = None
        if manifest is not None:
            best = await self._max_sealed(manifest, start)
            start = max(start, manifest.end)
        for turn, tail in enumerate(slices):
            best = await self._max_of_slice(tail, start, best)
            if turn % _SLICES_A_TURN == _SLICES_A_TURN - 1:
                await asyncio.sleep(0)
        return None if best is None else (*best, _epoch_at(log, manifest, best[0]))

    async def _tiers(self, log: PartitionLog) -> tuple[list[TailSlice], Manifest | None, int]:
        """The tail, the manifest (None: no sealed offset is needed), and log start."""
        start, slices, sealed_end = log.log_start, list(log.slices), log.sealed_end
        if start >= sealed_end:
            return slices, None, start
        manifest = await self._manifest(log)
        if manifest.end < sealed_end:
            raise ObjectUnavailableError(
                f"the segment of offset {manifest.end} of {manifest.key}", "missing"
            )
        return slices, manifest, max(start, manifest.log_start)

    # ── Sealed ──

    async def _find_sealed(self, manifest: Manifest, start: int, target_ms: int) -> _Found | None:
        walk = self._segments.walk(manifest, start, lambda e: e.max_timestamp_ms >= target_ms)
        async for ref in walk:
            if ref.kind is SegmentKind.RAW:
                for raw in await self._segments.raw_batches(ref):
                    if raw.header.end_offset > start and raw.header.max_timestamp >= target_ms:
                        return _stand_in(raw.header, start)
                continue
            reader = await self._segments.open(manifest, ref)
            for group in reader.row_groups_since(target_ms):
                found = await self._find_in(ref, reader, group, target_ms, start)
                if found is not None:
                    return found
        return None

    async def _find_in(
        self, ref: SegmentRef, reader: SegmentReader, group: RowGroup, target_ms: int, start: int
    ) -> _Found | None:
        if group.last_offset < start:
            return None
        data = await self._segments.times(ref, reader, group)
        return await self._segments.run(
            ref.key, reader.find_timestamp, group, data, target_ms, start
        )

    async def _max_sealed(self, manifest: Manifest, start: int) -> _Found | None:
        best: _Found | None = None

        def least() -> int:
            return NO_TIMESTAMP if best is None else best[1]

        walk = self._segments.walk(manifest, start, lambda e: e.max_timestamp_ms > least())
        async for ref in walk:
            if ref.kind is SegmentKind.RAW:
                for raw in await self._segments.raw_batches(ref):
                    if raw.header.end_offset > start and raw.header.max_timestamp > least():
                        best = _stand_in(raw.header, start)
            elif ref.max_timestamp_offset >= start:
                best = ref.max_timestamp_offset, ref.max_timestamp_ms
            else:
                best = await self._max_after(manifest, ref, start, best)
        return best

    async def _max_after(
        self, manifest: Manifest, ref: SegmentRef, start: int, best: _Found | None
    ) -> _Found | None:
        """The latest of the segment that log start is in, where its latest record is below log
        start."""
        reader = await self._segments.open(manifest, ref)
        for group in reader.row_groups:
            least = NO_TIMESTAMP if best is None else best[1]
            if group.last_offset < start or group.max_timestamp_ms <= least:
                continue
            data = await self._segments.times(ref, reader, group)
            found = await self._segments.run(
                ref.key, _latest_since, reader, group, data, least, start
            )
            best = best if found is None else found
        return best

    # ── Tail ──

    async def _max_of_slice(
        self, tail: TailSlice, start: int, best: _Found | None
    ) -> _Found | None:
        least = NO_TIMESTAMP if best is None else best[1]
        data = tail.data
        assert isinstance(data, FlushBatches)
        times = data.max_timestamps_ms
        candidates = list(_candidates(tail, start, least + 1))
        # A header's timestamp may be later than its records': then the next batch is searched too.
        for index in sorted(candidates, key=lambda i: (-times[i], i)):
            if best is not None and times[index] <= best[1]:
                break
            batch = await self._flushes.batch(tail, index)
            found = await self._run(tail, _latest_in, batch, start)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        return best

    async def _run(
        self, tail: TailSlice, look: Callable[..., _Found | None], batch: Buffer, *args: int
    ) -> _Found | None:
        """What *look* finds; for a batch that cannot be decoded, its stand-in."""
        key, most = tail.stored_at.object_key, self._decoding.limits.decompressed_bytes
        light = min(LIGHT_BYTES, most)
        found, large = await self._segments.run(key, _looked, look, batch, light, *args)
        if large and light < most:
            async with self._decoding.large():
                found, _ = await self._segments.run(key, _looked, look, batch, most, *args)
        return found


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


def _stand_in(header: BatchHeader, start: int) -> _Found:
    return max(header.base_offset, start), header.max_timestamp


def _looked(
    look: Callable[..., _Found | None], batch: Buffer, most_bytes: int, *args: int
) -> tuple[_Found | None, bool]:
    """The result of *look* or a stand-in, and whether the batch decompresses to over
    *most_bytes*."""
    try:
        return look(batch, most_bytes, *args), False
    except OverBatchLimitError:
        return _stand_in(parse_header(batch), args[-1]), True
    except CorruptRecordsError:
        return _stand_in(parse_header(batch), args[-1]), False


def _times(batch: Buffer, header: BatchHeader, start: int, most_bytes: int) -> Iterator[_Found]:
    """Offset and timestamp of each record from *start* on, for the batch that *start* is within."""
    section: Buffer = memoryview(batch)[HEADER_BYTES:]
    if header.codec is not Codec.NONE:
        section = decompress(header.codec, section, most_bytes)
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for record in iterate_records(section, header.record_count):
        time_ms = header.base_timestamp + record.timestamp_delta
        if header.base_offset + record.offset_delta >= start:
            yield (
                header.base_offset + record.offset_delta,
                header.max_timestamp if append_time else time_ms,
            )


def _first_since(batch: Buffer, most_bytes: int, target_ms: int, start: int) -> _Found | None:
    """The first of its records from *start* on that is at or after *target_ms*."""
    header = parse_header(batch)
    if header.base_offset >= start:
        return columns.find_timestamp(batch, target_ms, most_bytes)
    after = _times(batch, header, start, most_bytes)
    return next((found for found in after if found[1] >= target_ms), None)


def _latest_in(batch: Buffer, most_bytes: int, start: int) -> _Found | None:
    """The first of its records from *start* on that has the largest timestamp."""
    header = parse_header(batch)
    if header.base_offset >= start:
        return columns.max_timestamp(batch, most_bytes)
    after = _times(batch, header, start, most_bytes)
    return max(after, key=lambda found: (found[1], -found[0]), default=None)


def _latest_since(
    reader: SegmentReader, group: RowGroup, data: bytes, least: int, start: int
) -> _Found | None:
    """The first record with the largest timestamp over *least*, from *start* on.

    By bisection over time: rare (log start is within a segment whose latest record is below
    it), and every step reads two columns.
    """
    found: _Found | None = None
    low, high = least + 1, group.max_timestamp_ms
    while low <= high:
        middle = (low + high + 1) // 2
        at = reader.find_timestamp(group, data, middle, start)
        if at is None:
            high = middle - 1
        else:
            found, low = at, at[1] + 1
    return found


def _epoch_at(log: PartitionLog, manifest: Manifest | None, offset: int) -> int:
    """Leader epoch of the record at *offset*.

    The manifest has the epochs of sealed offsets.  The log has them, too, but only after its own
    first read of the manifest, which may succeed later than this one.
    """
    if manifest is None or offset >= manifest.end:
        return log.epoch_at(offset)
    entries = manifest.leader_epochs
    i = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[i - 1].epoch if i else UNDEFINED_EPOCH
