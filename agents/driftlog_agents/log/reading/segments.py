"""Reads the sealed log as batches: manifest ──▶ segment ──▶ footer ──▶ row group ──▶ batches.

`sealed_read` plans a read.  Footers and lists of manifests are kept in memory, and decoded row
groups while they are being read.  Fetching awaits the store; decoding and encoding run off the
event loop.

Shell.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, TypeVar

from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_plan import Batches
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.sealed_read import (
    Ask,
    Encode,
    Finish,
    GroupOf,
    IsLoaded,
    Load,
    Open,
    RawBatch,
    encode,
    prefetch_sealed,
    read_sealed,
    split_raw,
)
from driftlog_agents.log.reading.shared_cache import SharedCache
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, SegmentList, SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.segments.segment import (
    TAIL_BYTES,
    RowGroup,
    RowGroupBatches,
    SegmentReader,
    footer_start,
)

T = TypeVar("T")

_LIST_ENTRY_BYTES: Final = 1_000
"""Memory of one decoded entry of a list, bytes."""

_FOOTER_BYTES: Final = TAIL_BYTES
"""Memory of a segment's footer until it is decoded and counted: its object's last bytes."""

_LARGE_BYTES: Final = 32 * 1024 * 1024
"""A larger row group is decoded alone, without other ones or large batches: most are half as
large.  A larger record is encoded alone, too; what is encoded of a row group in memory is small
otherwise, and waits for no turn."""


async def run(plan: Generator[Any, Any, T], answer: Callable[[Any], Awaitable[Any]]) -> T:
    """The result of *plan*, which is sent the *answer* to each value that it yields."""
    told = None
    while True:
        try:
            ask = plan.send(told)
        except StopIteration as end:
            result: T = end.value
            return result
        told = await answer(ask)


def _reader_bytes(loaded: SegmentReader | SegmentList) -> int:
    assert isinstance(loaded, SegmentReader)
    return loaded.memory_bytes


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
        plan = read_sealed(manifest, offset, max_bytes, codec, zstd=zstd)
        return await run(plan, partial(self._answer, manifest))

    async def prefetch(self, manifest: Manifest, offset: int) -> int | None:
        """Load the row group that holds *offset*, if that evicts nothing in use; returns its end.

        Raises: as `read`.
        """
        return await run(prefetch_sealed(manifest, offset), partial(self._answer, manifest))

    async def _answer(self, manifest: Manifest, ask: Ask) -> Any:
        match ask:
            case Open(ref):
                return await self.open(manifest, ref)
            case Encode(of, offset, codec, max_bytes):
                batches = await self._row_group(of)
                encoding = partial(
                    self._reads.run, of.ref.key, encode, batches, offset, codec, max_bytes
                )
                made = await encoding(self._batch_bytes, _LARGE_BYTES)
                if made is None:
                    made = await encoding(self._batch_bytes, offload=self._alone(of.group))
                return made
            case IsLoaded(of):
                return of.key in self._row_groups
            case Load(of):
                if of.key not in self._row_groups:
                    if not self._row_groups.has_room(of.group.decoded_bytes):
                        return False
                    await self._row_group(of)
                return True
            case Finish(of):
                return self._row_groups.finish(of.key)

    # ── Objects ──

    def drop_footer(self, key: str) -> None:
        """Read the footer of a damaged object again, when it is next needed: no checksum covers
        it."""
        self._index.drop(key)

    async def open(self, manifest: Manifest, ref: SegmentRef | SegmentListRef) -> Any:
        """What *ref* names: see `sealed_read.Open`."""
        key = ref.key
        if isinstance(ref, SegmentListRef):
            size = min(ref.segments, 1_000) * _LIST_ENTRY_BYTES
            return await self._index.get(key, size, lambda: self._load_list(ref))
        if ref.kind is SegmentKind.RAW:
            return await self._raw.get(key, ref.size_bytes, lambda: self._load_raw(ref))
        load = partial(self._load_footer, manifest, ref)
        return await self._index.get(key, _FOOTER_BYTES, load, _reader_bytes)

    async def _load_list(self, ref: SegmentListRef) -> SegmentList:
        body = await self._reads.get(ref.key)
        return await self._reads.run(ref.key, decode_segment_list, body, ref)

    async def _load_footer(self, manifest: Manifest, ref: SegmentRef) -> SegmentReader:
        size = ref.size_bytes
        start = max(0, size - TAIL_BYTES)
        tail = await self._reads.get(ref.key, start, size)
        needed = await self._reads.run(ref.key, footer_start, tail, size)
        if needed < start:
            tail = b"".join((await self._reads.get(ref.key, needed, start), tail))
        reader = await self._reads.run(ref.key, SegmentReader, tail, size, ref.footer_crc)
        is_this = (reader.topic_id, reader.partition, reader.base, reader.end)
        if is_this != (manifest.tp.topic_id, manifest.tp.partition, ref.base, ref.end):
            raise DamagedObjectError(ref.key, f"the object is the segment {is_this}")
        return reader

    async def _load_raw(self, ref: SegmentRef) -> list[RawBatch]:
        body = await self._reads.get(ref.key, 0, ref.size_bytes)
        return await self._reads.run(ref.key, split_raw, body, ref)

    async def _row_group(self, of: GroupOf) -> RowGroupBatches:
        key, group = of.ref.key, of.group

        async def load() -> RowGroupBatches:
            data = await self._reads.get(key, group.start, group.end)
            encoder, alone = of.reader.encoder, self._alone(group)
            return await self._reads.run(key, encoder, group, data, offload=alone)

        return await self._row_groups.get(of.key, group.decoded_bytes, load)

    def _alone(self, group: RowGroup) -> Offload | None:
        return self._decoding.read_large if group.decoded_bytes > _LARGE_BYTES else None
