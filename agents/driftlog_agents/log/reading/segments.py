"""The sealed log as batches: manifest ──▶ segment ──▶ footer ──▶ row group ──▶ batches.

Footers and lists of manifests are kept in memory, and decoded row groups while they are
being read.  Fetching awaits the store; decoding and encoding run where `offload` puts them.

Re-encoded batches start at the requested offset and cover offsets without a record (a gap in a
segment, between segments, or after the last one), so that a reader reaches the end.

Shell.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.objects.ranged_reads import RangedReads, ReadSettings
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.reading.shared_cache import SharedCache
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import HEADER_BYTES, BatchHeader, Codec, iterate_batches
from driftlog_tiering.formats.columns import EncodedBatch, gap_batches
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    overlaps,
)
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.formats.segment import (
    TAIL_BYTES,
    RowGroup,
    RowGroupBatches,
    SegmentReader,
    footer_start,
)
from driftlog_tiering.stores.object_store import Buffer

T = TypeVar("T")

_LIST_ENTRY_BYTES: Final = 1_000
"""Memory of one decoded entry of a list, bytes."""

_FOOTER_BYTES: Final = 64 * 1024
"""Memory of a segment's decoded footer; stored, that of 128 MiB has 10 to 20 KiB."""

_LARGE_BYTES: Final = 32 * 1024 * 1024
"""A larger row group is decoded alone, without other ones or large batches: most are half as
large."""

_SMALLEST_BATCH_BYTES: Final = 16 * 1024
"""A fetch with a smaller limit still gets a batch worth its overhead, as it would from Kafka."""

_LEVELS: Final = {Codec.GZIP: 1, Codec.ZSTD: 1}
"""Fast levels: a consumer waits for the result, and it is used once."""


class Batches(NamedTuple):
    """The result of a read: buffers of batches, the offset where they end, and the one where their
    unit ends (row group, piece of a flush object), which a sequential reader wants next."""

    buffers: list[Buffer]
    end: int
    unit_end: int


class RawBatch(NamedTuple):
    """One batch of an object of batches that could not be decoded."""

    header: BatchHeader
    batch: memoryview


@dataclass(frozen=True, slots=True)
class Gap:
    """No segment holds the offset, nor any offset from it to *end*."""

    end: int


class SegmentReads:
    """Reads of sealed segments, for all partitions."""

    def __init__(
        self,
        *,
        reads: RangedReads,
        offload: Offload,
        settings: ReadSettings,
        now_ms: Callable[[], float],
        decoding: BatchDecoder,
    ) -> None:
        self._reads = reads
        self._decoding = decoding
        self._offload = offload
        self._settings = settings
        holding = partial(
            SharedCache[Any, Any],
            hold_ms=settings.hold_ms,
            patience_ms=settings.patience_ms,
            now_ms=now_ms,
        )
        self._row_groups: SharedCache[tuple[str, int], RowGroupBatches] = holding(
            budget_bytes=settings.row_group_cache_bytes
        )
        self._index: SharedCache[str, SegmentReader | SegmentList] = SharedCache(
            budget_bytes=settings.index_cache_bytes, hold_ms=0, patience_ms=0, now_ms=now_ms
        )
        self._raw: SharedCache[str, list[RawBatch]] = holding(
            budget_bytes=settings.flush_cache_bytes
        )

    @property
    def row_groups_loaded(self) -> int:
        """Row groups that were fetched and decoded."""
        return self._row_groups.loads

    # ── By offset ──

    async def read(
        self, manifest: Manifest, offset: int, max_bytes: int, codec: Codec | None, *, zstd: bool
    ) -> Batches:
        """Batches from *offset* on, below the manifest's end; at most *max_bytes*, or one.

        *codec* None: that of the segment's batches.  Without *zstd* no batch is encoded with zstd.

        Raises:
            ObjectUnavailableError: a list or segment is missing.
            DamagedObjectError: one is damaged.
            UnavailableError: the store failed, each time.
        """
        place = await self.at(manifest, offset)
        if isinstance(place, Gap):
            return _covering(gap_batches(offset, place.end, manifest.leader_epochs), place.end)
        if place.kind is SegmentKind.RAW:
            return _from(await self.raw_batches(place), offset, max_bytes, place.end)
        reader = await self.open(manifest, place)
        group = reader.row_group_at(offset)
        if group is None:
            return _covering(reader.gap(offset), place.end)
        if codec is None:
            codec = reader.codec
        if codec is Codec.ZSTD and not zstd:
            codec = Codec.NONE
        batches = await self._row_group(place, reader, group)
        out, end = await self._encode(batches, group, offset, codec, max_bytes, place.key)
        # Row groups that were read ahead are added; the next fetch waits for the others.
        while end == batches.end:
            self._row_groups.finish((place.key, group.index))
            following = reader.row_group_at(end)
            room = max_bytes - sum(map(len, out))
            if following is None or room < _SMALLEST_BATCH_BYTES:
                break
            if (place.key, following.index) not in self._row_groups:
                break
            group = following
            batches = await self._row_group(place, reader, group)
            more, more_end = await self._encode(batches, group, end, codec, room, place.key)
            if sum(map(len, more)) > room:
                break
            out += more
            end = more_end
        return Batches(out, end, max(end, batches.end))

    async def prefetch(self, manifest: Manifest, offset: int) -> int | None:
        """Load the row group that holds *offset*, if that evicts nothing in use; returns its end.

        Raises: as `read`.
        """
        if not manifest.log_start <= offset < manifest.end:
            return None
        place = await self.at(manifest, offset)
        if isinstance(place, Gap) or place.kind is SegmentKind.RAW:
            return None
        reader = await self.open(manifest, place)
        group = reader.row_group_at(offset)
        if group is None:
            return None
        if (place.key, group.index) in self._row_groups:
            return _group_end(reader, group)
        if not self._row_groups.has_room(group.decoded_bytes):
            return None
        return (await self._row_group(place, reader, group)).end

    async def at(self, manifest: Manifest, offset: int) -> SegmentRef | Gap:
        """The segment that holds *offset*, which is below the manifest's end."""
        assert offset < manifest.end
        lists: tuple[SegmentListRef, ...] = manifest.lists
        segments: tuple[SegmentRef, ...] = manifest.segments
        end = manifest.end
        while True:
            entries: tuple[SegmentRef | SegmentListRef, ...] = (*lists, *segments)
            i = bisect_right(entries, offset, key=lambda entry: entry.end)
            if i == len(entries):
                return Gap(end)
            entry = entries[i]
            if offset < entry.base:
                return Gap(entry.base)
            if isinstance(entry, SegmentRef):
                return entry
            content = await self._list(entry)
            lists, segments, end = content.lists, content.segments, entry.end

    async def walk(
        self, manifest: Manifest, base: int, keep: Callable[[SegmentRef | SegmentListRef], bool]
    ) -> AsyncIterator[SegmentRef]:
        """Segments with offsets at or after *base*, ascending; *keep* as in `iter_segments`."""
        pending: list[SegmentRef | SegmentListRef] = [*manifest.lists, *manifest.segments]
        pending.reverse()
        while pending:
            entry = pending.pop()
            if not overlaps(entry, base, manifest.end) or not keep(entry):
                continue
            if isinstance(entry, SegmentRef):
                yield entry
            else:
                content = await self._list(entry)
                pending.extend(reversed((*content.lists, *content.segments)))

    # ── Objects ──

    async def open(self, manifest: Manifest, ref: SegmentRef) -> SegmentReader:
        """The segment's footer."""
        reader = await self._index.get(
            ref.key, _FOOTER_BYTES, lambda: self._load_footer(manifest, ref)
        )
        assert isinstance(reader, SegmentReader)
        return reader

    async def raw_batches(self, ref: SegmentRef) -> list[RawBatch]:
        """The batches that could not be decoded, as they came, in offset order."""
        return await self._raw.get(ref.key, ref.size_bytes, lambda: self._load_raw(ref))

    async def times(self, ref: SegmentRef, reader: SegmentReader, group: RowGroup) -> Buffer:
        """The bytes of a row group's offsets and timestamps."""
        return await self._reads.get(ref.key, *reader.times_range(group))

    async def run(self, key: str, fn: Callable[..., T], *args: object) -> T:
        """``fn(*args)`` off the event loop.

        Raises:
            DamagedObjectError: *fn* found corrupt bytes; the error names *key*.
        """
        try:
            result: T = await self._offload(fn, *args)
        except CorruptError as error:
            raise DamagedObjectError(key, str(error) or repr(error)) from error
        return result

    async def _list(self, ref: SegmentListRef) -> SegmentList:
        async def load() -> SegmentList:
            body = await self._reads.get(ref.key)
            return await self.run(ref.key, decode_segment_list, body, ref)

        entries = min(ref.segments, 1_000)
        content = await self._index.get(ref.key, entries * _LIST_ENTRY_BYTES, load)
        assert isinstance(content, SegmentList)
        return content

    async def _load_footer(self, manifest: Manifest, ref: SegmentRef) -> SegmentReader:
        size = ref.size_bytes
        start = max(0, size - TAIL_BYTES)
        tail = await self._reads.get(ref.key, start, size)
        needed = await self.run(ref.key, footer_start, tail, size)
        if needed < start:
            tail = b"".join((await self._reads.get(ref.key, needed, start), tail))
        reader = await self.run(ref.key, SegmentReader, tail, size)
        is_this = (reader.topic_id, reader.partition, reader.base, reader.end)
        if is_this != (manifest.tp.topic_id, manifest.tp.partition, ref.base, ref.end):
            raise DamagedObjectError(ref.key, f"the object is the segment {is_this}")
        return reader

    async def _load_raw(self, ref: SegmentRef) -> list[RawBatch]:
        body = await self._reads.get(ref.key, 0, ref.size_bytes)
        return await self.run(ref.key, _raw_batches, body, ref)

    async def _row_group(
        self, ref: SegmentRef, reader: SegmentReader, group: RowGroup
    ) -> RowGroupBatches:
        async def load() -> RowGroupBatches:
            data = await self._reads.get(ref.key, group.start, group.end)
            async with self._alone(group):
                return await self.run(ref.key, reader.encoder, group, data)

        return await self._row_groups.get((ref.key, group.index), group.decoded_bytes, load)

    async def _encode(
        self,
        batches: RowGroupBatches,
        group: RowGroup,
        offset: int,
        codec: Codec,
        max_bytes: int,
        key: str,
    ) -> tuple[list[Buffer], int]:
        largest = self._settings.batch_bytes
        async with self._alone(group):
            return await self.run(key, _encode, batches, offset, codec, max_bytes, largest)

    def _alone(self, group: RowGroup) -> AbstractAsyncContextManager[None]:
        if group.decoded_bytes <= _LARGE_BYTES:
            return nullcontext()
        return self._decoding.large(group.decoded_bytes)


def _raw_batches(body: Buffer, ref: SegmentRef) -> list[RawBatch]:
    """The batches of an object, back to back, each with a CRC.

    Raises:
        CorruptError: they are not those of *ref*.
    """
    found: list[RawBatch] = []
    for header, batch in iterate_batches(body):
        if isinstance(kernel.check(batch, 0, len(batch), False), int):
            raise CorruptError(f"a batch at offset {header.base_offset} is damaged")
        if found and header.base_offset < found[-1].header.end_offset:
            raise CorruptError(f"a batch at offset {header.base_offset} is not in its order")
        found.append(RawBatch(header, batch))
    ends = (found[0].header.base_offset, found[-1].header.end_offset) if found else None
    if ends != (ref.base, ref.end):
        raise CorruptError(f"batches of other offsets: {ends}")
    return found


def _from(raw: list[RawBatch], offset: int, max_bytes: int, unit_end: int) -> Batches:
    """Those from *offset* on that fit *max_bytes*; one at least."""
    first = bisect_right(raw, offset, key=lambda one: one.header.end_offset)
    taken = [raw[first]]
    room = max_bytes - len(taken[0].batch)
    for one in raw[first + 1 :]:
        room -= len(one.batch)
        if room < 0:
            break
        taken.append(one)
    buffers: list[Buffer] = [one.batch for one in taken]
    return Batches(buffers, taken[-1].header.end_offset, unit_end)


def _encode(
    batches: RowGroupBatches, offset: int, codec: Codec, max_bytes: int, batch_bytes: int
) -> tuple[list[Buffer], int]:
    """Batches from *offset* on, and where they end.

    Each batch is as large as the remaining room allows, so that hardly anything is encoded in vain.
    """
    out: list[Buffer] = []
    room = max_bytes
    while offset < batches.end and (not out or room >= _SMALLEST_BATCH_BYTES):
        target = min(batch_bytes, max(room - HEADER_BYTES, _SMALLEST_BATCH_BYTES))
        made = batches.batches(offset, codec=codec, level=_LEVELS.get(codec), batch_bytes=target)
        batch = next(iter(made))
        if out and len(batch.data) > room:
            break
        out.append(batch.data)
        room -= len(batch.data)
        offset = batch.end_offset
    return out, offset


def _covering(gap: Any, end: int) -> Batches:
    found: list[EncodedBatch] = list(gap)
    return Batches([batch.data for batch in found], found[-1].end_offset, end)


def _group_end(reader: SegmentReader, group: RowGroup) -> int:
    follows = reader.row_groups[group.index + 1 :]
    return follows[0].first_offset if follows else reader.end
