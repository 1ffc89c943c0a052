"""One partition whose batches lie in every tier: what `LogReader` is tested on.

Segments, flush objects, buffer files and memory are the real ones; the bucket is in memory
and can be told to refuse, to be slow, or to lose objects.
"""

import asyncio
import io
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from driftlog_agents.log.local.buffer_format import encode_entry_header, encode_file_header
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches, lay_out, tail_slice
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.reader import LogReader
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import (
    HEADER_BYTES,
    Codec,
    build_batch,
    check_batch,
    parse_header,
)
from driftlog_tiering.batches.compression import compress, decompress
from driftlog_tiering.batches.kernel_py import Record, encode_record, iterate_records
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import encode_footer
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    AddSegments,
    LeaderEpoch,
    Manifest,
    SegmentList,
    SegmentRef,
    empty_manifest,
    list_ref,
)
from driftlog_tiering.formats.manifest_codec import encode_segment_list
from driftlog_tiering.formats.manifest_edits import Applied, apply
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import SegmentWriter
from tests.support.clusters import AUTHOR
from tests.support.memory_object_store import MemoryObjectStore

TOPIC_ID = UUID(int=7)
_GARBAGE = b"\xff" * 40
Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""offset, timestamp (ms), timestamp type, key, value, headers."""


class Bucket(MemoryObjectStore):
    """A memory store that counts its GETs and fails when told to."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.gets: Counter[str] = Counter()
        self.refuse = 0
        """How many of the next GETs are refused."""
        self.gate: asyncio.Event | None = None
        """GETs wait for it."""
        self.slow: dict[str, asyncio.Event] = {}
        """GETs of these objects wait for theirs."""
        self.damage: Callable[[str, bytes], bytes] = lambda key, body: body

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets[key] += 1
        if self.gate is not None:
            await self.gate.wait()
        if key in self.slow:
            await self.slow[key].wait()
        if self.refuse:
            self.refuse -= 1
            raise UnavailableError("slow down")
        return self.damage(key, await super().get(key, start, end))


def make_batch(
    base: int,
    records: Sequence[tuple[int, bytes | None, bytes | None]],
    *,
    codec: Codec = Codec.NONE,
    append_time: int | None = None,
    epoch: int = 0,
) -> bytes:
    """A batch as it stands in the log; *records*: (timestamp ms, key, value)."""
    first = records[0][0]
    section = b"".join(
        encode_record(Record(ms - first, i, key, value, (("h", value),) if key else ()))
        for i, (ms, key, value) in enumerate(records)
    )
    return bytes(
        build_batch(
            compress(codec, section),
            base_offset=base,
            last_offset_delta=len(records) - 1,
            record_count=len(records),
            attributes=codec | (0 if append_time is None else 8),
            base_timestamp=first,
            max_timestamp=max(r[0] for r in records) if append_time is None else append_time,
            leader_epoch=epoch,
        )
    )


def make_undecodable(base: int, count: int, max_timestamp: int = 50) -> bytes:
    """A valid CRC around garbage."""
    return bytes(
        build_batch(
            _GARBAGE,
            base_offset=base,
            last_offset_delta=count - 1,
            record_count=count,
            attributes=0,
            base_timestamp=max_timestamp,
            max_timestamp=max_timestamp,
            leader_epoch=0,
        )
    )


def rows_of(batch: Buffer) -> list[Row]:
    """The records of a batch, whose CRC is checked; none of one that cannot be decoded."""
    header = check_batch(batch, from_client=False)
    if not header.record_count or bytes(batch[HEADER_BYTES:]) == _GARBAGE:
        return []
    section = decompress(header.codec, memoryview(batch)[HEADER_BYTES:], 10**8)
    return [
        (
            header.base_offset + r.offset_delta,
            header.max_timestamp
            if header.timestamp_type
            else header.base_timestamp + r.timestamp_delta,
            int(header.timestamp_type),
            r.key,
            r.value,
            r.headers,
        )
        for r in iterate_records(section, header.record_count)
    ]


class World:
    """A partition that grows tier by tier: sealed parts first, then parts of the tail."""

    def __init__(self, disk: AgentDisk | None = None, settings: ReadSettings | None = None) -> None:
        self.bucket = Bucket()
        self.disk = disk
        self.log = PartitionLog(topic="t", topic_id=TOPIC_ID, partition=3, leader_epoch=9)
        self.neighbour = PartitionLog(topic="s", topic_id=UUID(int=1), partition=0, leader_epoch=9)
        self.tp = TopicPartition(TOPIC_ID, 3)
        self.manifest = empty_manifest("t", self.tp)
        self.refreshed: Callable[[], None] = lambda: None
        self.now_ms = 0.0
        self.offloaded = 0
        self.nonce = 0
        self.rows: list[Row] = []
        self.batches: list[bytes] = []
        self.decoding = BatchDecoder()
        self.reader = LogReader(
            store=self.bucket,
            offload=self._offload,
            manifests=self,
            now_ms=lambda: self.now_ms,
            settings=settings or ReadSettings(retry_backoff_ms=0),
            decoding=self.decoding,
        )

    async def _offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        self.offloaded += 1
        await asyncio.sleep(0)
        return fn(*args)

    async def read_manifest(self, log: PartitionLog) -> Manifest:
        return self.manifest

    async def refresh(self, log: PartitionLog) -> None:
        self.refreshed()

    def _next_nonce(self) -> str:
        self.nonce += 1
        return f"n{self.nonce}"

    # ── Sealed ──

    async def seal(
        self,
        batches: Sequence[bytes],
        end: int,
        *,
        row_group_bytes: int = 300,
        footer_crc: bool = True,
    ) -> SegmentRef:
        """Append a Parquet segment that ends at *end*; without *footer_crc* as of format 1."""
        base = self.manifest.end
        sink = io.BytesIO()
        writer = SegmentWriter(
            sink,
            topic="t",
            topic_id=TOPIC_ID,
            partition=3,
            base=base,
            row_group_bytes=row_group_bytes,
        )
        for batch in batches:
            writer.append(batch)
            self.rows += rows_of(batch)
        info = writer.finish(end)
        key = layout.segment_key("t", self.tp, base, end, self._next_nonce())
        await self.bucket.put(key, [sink.getvalue()])
        ref = SegmentRef(
            key=key,
            base=base,
            end=end,
            size_bytes=info.size_bytes,
            records=info.records,
            raw_bytes=info.raw_bytes,
            min_timestamp_ms=info.min_timestamp_ms,
            max_timestamp_ms=info.max_timestamp_ms,
            max_timestamp_offset=info.max_timestamp_offset,
            codec=info.codec,
            footer_crc=info.footer_crc if footer_crc else None,
        )
        self._sealed(base, end, (ref,))
        return ref

    async def seal_raw(self, *batches: bytes) -> SegmentRef:
        """Append batches that cannot be decoded, as one object."""
        headers = [parse_header(batch) for batch in batches]
        base, end = headers[0].base_offset, headers[-1].end_offset
        key = layout.segment_key("t", self.tp, base, end, self._next_nonce(), SegmentKind.RAW)
        await self.bucket.put(key, batches)
        size_bytes = sum(map(len, batches))
        ref = SegmentRef(
            key=key,
            kind=SegmentKind.RAW,
            base=base,
            end=end,
            size_bytes=size_bytes,
            records=sum(header.record_count for header in headers),
            raw_bytes=size_bytes,
            max_timestamp_ms=max(header.max_timestamp for header in headers),
        )
        self._sealed(base, end, (ref,))
        return ref

    def seal_nothing(self, end: int) -> None:
        """A range of which no record was kept."""
        self._sealed(self.manifest.end, end, ())

    def _sealed(self, base: int, end: int, segments: tuple[SegmentRef, ...]) -> None:
        edit = AddSegments(base=base, end=end, segments=segments, leader_epochs=(), producers=None)
        step = apply(self.manifest, edit, self._next_nonce(), AUTHOR)
        assert isinstance(step, Applied)
        self.manifest = step.manifest
        if not self.manifest.leader_epochs:
            self.manifest = replace(self.manifest, leader_epochs=(LeaderEpoch(0, 0),))
        if not self.log.epochs:
            self.log.start_epoch(0, 0)
        if end > self.log.high_watermark:
            self.log.high_watermark = self.log.log_end = end
        self.log.seal(end)

    async def store_lists(self, *sizes: int) -> None:
        """Move the oldest segments into lists: as many as *sizes* says, those into one list."""
        segments = self.manifest.segments
        refs = []
        for size in sizes:
            content = SegmentList(1, segments=segments[:size])
            refs.append(await self._store_list(content))
            segments = segments[size:]
        above = await self._store_list(SegmentList(2, lists=tuple(refs)))
        self.manifest = replace(self.manifest, lists=(above,), segments=segments)

    async def _store_list(self, content: SegmentList) -> Any:
        entries: Any = content.segments or content.lists
        key = layout.segment_list_key(
            "t",
            self.tp,
            1,
            content.level,
            entries[0].base,
            entries[-1].end,
            self._next_nonce(),
        )
        await self.bucket.create(key, [encode_segment_list(self.manifest, content)])
        return list_ref(key, content)

    # ── Tail ──

    async def flush(self, batches: Sequence[bytes], tier: str) -> TailSlice:
        """Commit a flush; its batches are then in *tier*: "object", "file" or "memory"."""
        view = memoryview(make_batch(0, [(0, None, b"other")]))
        other = Batch(view, 0, 0, 0, (1, 0, -1, -1, -1, 0, 0))
        other.length = len(other.view or b"")
        mine = [_batch(b) for b in batches]
        if tier == "file":
            assert self.disk is not None
            await self.disk.create_session("mine")
            self._write(mine)
        data, topic_ids, columns, slices = lay_out(
            {self.neighbour: [other], self.log: mine}, "mine"
        )
        footer = encode_footer(
            session_id="mine", seq=1, committed_seq=0, topic_ids=topic_ids, columns=columns
        )
        assert data.views is not None
        key = layout.flush_key("mine", self.nonce + 1, self._next_nonce())
        await self.bucket.put(key, [*data.views, footer])
        if tier == "file":
            placed = FlushBatches(
                session_id="mine",
                base_offsets=data.base_offsets,
                lengths=data.lengths,
                positions=data.positions,
                max_timestamps_ms=data.max_timestamps_ms,
            )
            placed.files = [mine[0].file]
            placed.file_numbers = array("B", [0] * len(data))
            placed.file_positions = array("q", [0, *[b.position for b in mine]])
            data = placed
        if tier == "object":
            data.views = None
        _, found = slices[1]
        tail = tail_slice(data, found, StoredAt(key, 0))
        self.log.log_end = found.end
        for batch in batches:
            self.log.start_epoch(parse_header(batch).partition_leader_epoch, found.base)
            self.batches.append(batch)
            self.rows += rows_of(batch)
        self.log.commit(tail, 0.0)
        return tail

    def _write(self, batches: list[Batch]) -> None:
        assert self.disk is not None
        self.nonce += 1
        file = self.disk.create_file("mine", self.nonce)
        buffers: list[Buffer] = [encode_file_header(1, self.nonce)]
        at = len(buffers[0])
        for i, batch in enumerate(batches):
            # Now and then another partition's batch lies between.
            between = b"x" * (0, 3000, 0, 40)[i % 4]
            assert batch.view is not None
            entry = encode_entry_header(1, TOPIC_ID.bytes, 3, batch.length, False)
            buffers += [between, entry, batch.view]
            batch.file = file
            batch.position = at + len(between) + len(entry)
            at = batch.position + batch.length
        file.append(buffers)

    # ── Reading ──

    async def consume(
        self, offset: int, max_bytes: int, *, zstd: bool = True, codec: Codec | None = None
    ) -> list[Buffer]:
        """Fetch from *offset* to the high watermark; every answer keeps the promises of `read`."""
        out: list[Buffer] = []
        while offset < self.log.high_watermark:
            found = await self.reader.read(self.log, offset, max_bytes, zstd=zstd, codec=codec)
            assert found
            assert len(found) == 1 or sum(map(len, found)) <= max_bytes
            for batch in found:
                header = check_batch(batch, from_client=False)
                assert header.base_offset == offset or (batch is found[0] and not out)
                assert header.base_offset <= offset < header.end_offset
                offset = header.end_offset
            out += found
        assert offset == self.log.high_watermark
        return out


def _batch(data: bytes) -> Batch:
    h = parse_header(data)
    return Batch(
        memoryview(data),
        len(data),
        h.base_offset,
        h.partition_leader_epoch,
        (
            h.last_offset_delta + 1,
            h.attributes,
            h.producer_id,
            h.producer_epoch,
            h.base_sequence,
            h.base_timestamp,
            h.max_timestamp,
        ),
    )
