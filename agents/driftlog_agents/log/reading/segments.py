"""Reads the sealed log as batches: manifest ──▶ segment ──▶ footer ──▶ row group ──▶ batches.

Footers and lists of manifests are kept in memory, and decoded row groups while they are being
read.  Fetching awaits the store; decoding and encoding (`sealed_batches`) run off the event loop.

Shell.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final

from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_plan import Batches
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.sealed_batches import (
    SMALLEST_BATCH_BYTES,
    Gap,
    RawBatch,
    codec_for,
    covering,
    encode,
    entry_at,
    split_raw,
    take_raw,
)
from driftlog_agents.log.reading.shared_cache import SharedCache
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.formats.columns import gap_batches
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, SegmentList, SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.formats.segment import (
    TAIL_BYTES,
    RowGroup,
    RowGroupBatches,
    SegmentReader,
    footer_start,
)
from driftlog_tiering.stores.object_store import Buffer

_LIST_ENTRY_BYTES: Final = 1_000
"""Memory of one decoded entry of a list, bytes."""

_FOOTER_BYTES: Final = 64 * 1024
"""Memory of a segment's decoded footer; stored, that of 128 MiB has 10 to 20 KiB."""

_LARGE_BYTES: Final = 32 * 1024 * 1024
"""A larger row group is decoded alone, without other ones or large batches: most are half as
large."""


class SegmentReads:
    """Reads of sealed segments, for all partitions."""

    def __init__(
        self,
        *,
        reads: RangedReads,
        settings: ReadSettings,
        now_ms: Callable[[], float],
        decoding: BatchDecoder,
    ) -> None:
        self._reads = reads
        self._decoding = decoding
        self._batch_bytes = settings.batch_bytes
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
        place = await self._at(manifest, offset)
        if isinstance(place, Gap):
            return covering(gap_batches(offset, place.end, manifest.leader_epochs), place.end)
        if place.kind is SegmentKind.RAW:
            return take_raw(await self.raw_batches(place), offset, max_bytes, place.end)
        reader = await self.open(manifest, place)
        group = reader.row_group_at(offset)
        if group is None:
            return covering(reader.gap(offset), place.end)
        codec = codec_for(codec, reader.codec, zstd=zstd)
        out: list[Buffer] = []
        end, room = offset, max_bytes
        while True:
            batches = await self._row_group(place, reader, group)
            more, more_end = await self._encode(batches, group, end, codec, room, place.key)
            size = sum(map(len, more))
            if out and size > room:
                break
            out += more
            end, room = more_end, room - size
            if end < batches.end:
                break
            self._row_groups.finish((place.key, group.index))
            # Row groups that were read ahead are added; the next fetch waits for the others.
            following = reader.row_group_at(end)
            if following is None or room < SMALLEST_BATCH_BYTES:
                break
            if (place.key, following.index) not in self._row_groups:
                break
            group = following
        return Batches(out, end, max(end, batches.end))

    async def prefetch(self, manifest: Manifest, offset: int) -> int | None:
        """Load the row group that holds *offset*, if that evicts nothing in use; returns its end.

        Raises: as `read`.
        """
        if not manifest.log_start <= offset < manifest.end:
            return None
        place = await self._at(manifest, offset)
        if isinstance(place, Gap) or place.kind is SegmentKind.RAW:
            return None
        reader = await self.open(manifest, place)
        group = reader.row_group_at(offset)
        if group is None:
            return None
        if (place.key, group.index) in self._row_groups:
            return reader.end_of(group)
        if not self._row_groups.has_room(group.decoded_bytes):
            return None
        return (await self._row_group(place, reader, group)).end

    async def _at(self, manifest: Manifest, offset: int) -> SegmentRef | Gap:
        """The segment that holds *offset*, which is below the manifest's end."""
        entry = entry_at(manifest, offset, manifest.end)
        while isinstance(entry, SegmentListRef):
            entry = entry_at(await self.open_list(entry), offset, entry.end)
        return entry

    # ── Objects ──

    async def open_list(self, ref: SegmentListRef) -> SegmentList:
        """A list of older segments."""

        async def load() -> SegmentList:
            body = await self._reads.get(ref.key)
            return await self._reads.run(ref.key, decode_segment_list, body, ref)

        entries = min(ref.segments, 1_000)
        content = await self._index.get(ref.key, entries * _LIST_ENTRY_BYTES, load)
        assert isinstance(content, SegmentList)
        return content

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

    async def _load_footer(self, manifest: Manifest, ref: SegmentRef) -> SegmentReader:
        size = ref.size_bytes
        start = max(0, size - TAIL_BYTES)
        tail = await self._reads.get(ref.key, start, size)
        needed = await self._reads.run(ref.key, footer_start, tail, size)
        if needed < start:
            tail = b"".join((await self._reads.get(ref.key, needed, start), tail))
        reader = await self._reads.run(ref.key, SegmentReader, tail, size)
        is_this = (reader.topic_id, reader.partition, reader.base, reader.end)
        if is_this != (manifest.tp.topic_id, manifest.tp.partition, ref.base, ref.end):
            raise DamagedObjectError(ref.key, f"the object is the segment {is_this}")
        return reader

    async def _load_raw(self, ref: SegmentRef) -> list[RawBatch]:
        body = await self._reads.get(ref.key, 0, ref.size_bytes)
        return await self._reads.run(ref.key, split_raw, body, ref)

    async def _row_group(
        self, ref: SegmentRef, reader: SegmentReader, group: RowGroup
    ) -> RowGroupBatches:
        async def load() -> RowGroupBatches:
            data = await self._reads.get(ref.key, group.start, group.end)
            async with self._alone(group):
                return await self._reads.run(ref.key, reader.encoder, group, data)

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
        async with self._alone(group):
            return await self._reads.run(
                key, encode, batches, offset, codec, max_bytes, self._batch_bytes
            )

    def _alone(self, group: RowGroup) -> AbstractAsyncContextManager[None]:
        if group.decoded_bytes <= _LARGE_BYTES:
            return nullcontext()
        return self._decoding.large(group.decoded_bytes)
