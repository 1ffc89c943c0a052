"""The objects of a sealed range: its batches, decoded in a worker thread, as Parquet in the bucket.

    memory, buffer files, flush objects ──▶ batches, in chunks ──▶ columns ──▶ spool ──▶ PUT
                                                 ╳ cannot be decoded: kept as it came

Nobody names these objects yet; `log.sealing` does.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from random import Random
from typing import IO, Any, Final, Protocol

import structlog

from driftlog_agents.log.partition import PartitionLog, TailSlice
from driftlog_agents.log.tail import TailData
from driftlog_metadata.errors import CorruptError, UnavailableError
from driftlog_metadata.model import TopicPartition
from driftlog_tiering import kernel, layout
from driftlog_tiering.batch import NO_TIMESTAMP, BatchHeader, check_batch, iterate_batches
from driftlog_tiering.layout import SegmentKind
from driftlog_tiering.manifest import SegmentRef
from driftlog_tiering.object_store import Buffer, ObjectStore
from driftlog_tiering.segment import SegmentWriter

_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Read and handed to the worker at once: half a row group."""

_REQUEST_DEADLINE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1024 * 1024
"""An uplink slower than this cannot keep up with anything worth sealing."""

Offload = Callable[..., Awaitable[Any]]


class Spool(Protocol):
    """Where a segment grows before it is put: a temporary file, or memory in the simulator."""

    @property
    def file(self) -> IO[bytes]:
        """To be written."""
        ...

    def body(self) -> Buffer:
        """Everything written so far."""
        ...


class SegmentWriting:
    """Writes segments of one session."""

    def __init__(
        self,
        *,
        objects: ObjectStore,
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._spool = spool
        self._rng = rng
        self._log = structlog.get_logger()
        self.sealed_bytes = 0
        self.undecodable_batches = 0

    async def write(
        self, log: PartitionLog, base: int, end: int, headers: list[BatchHeader]
    ) -> list[SegmentRef]:
        """Segments of ``[base, end)``: one, but where a batch cannot be decoded.

        *headers* gets the headers of all batches, in order.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; try again.
            CorruptError, NotFoundError: a flush object is damaged.
        """
        refs: list[SegmentRef] = []
        chunks = self._chunks(log, base, end)
        carried: list[Buffer] = []
        start = base
        while start < end:
            bad: Buffer | None = None
            # The writer is left before the spool, whatever happens: the file is used again, and
            # a writer that is collected later would put its footer into another segment.
            with (
                self._spool() as spool,
                SegmentWriter(
                    spool.file,
                    topic=log.topic,
                    topic_id=log.topic_id,
                    partition=log.partition,
                    base=start,
                ) as writer,
            ):
                while bad is None:
                    if not carried:
                        carried = await anext(chunks, [])
                        if not carried:
                            break
                    taken = await self._offload(_append, writer, carried, headers)
                    bad = carried[taken] if taken < len(carried) else None
                    carried = carried[taken:]
                stop = writer.next_offset if bad is not None else end
                if stop > start:
                    refs.append(await self._put_segment(log, writer, spool, start, stop))
            if bad is not None:
                refs.append(await self._put_raw(log, bad, headers))
                carried = carried[1:]
                stop = refs[-1].end
            start = stop
        return refs

    async def _put_segment(
        self, log: PartitionLog, writer: SegmentWriter, spool: Spool, base: int, end: int
    ) -> SegmentRef:
        info = await self._offload(writer.finish, end)
        key = self._segment_key(log, base, end, SegmentKind.PARQUET)
        self.sealed_bytes += info.raw_bytes
        body = spool.body()
        assert len(body) == info.size_bytes, "somebody else wrote to the spool"
        await self.put(key, [body])
        return SegmentRef(
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
            format_version=info.format_version,
        )

    async def _put_raw(
        self, log: PartitionLog, bad: Buffer, headers: list[BatchHeader]
    ) -> SegmentRef:
        """Keep a batch whose records cannot be decoded as it came."""
        header = check_batch(bad, from_client=False)
        headers.append(header)
        base, end = header.base_offset, header.end_offset
        key = self._segment_key(log, base, end, SegmentKind.RAW)
        await self.put(key, [bad])
        self.undecodable_batches += 1
        self._log.error(
            "batch_undecodable",
            partition=f"{log.topic}-{log.partition}",
            base=base,
            end=end,
            object=key,
            advice="kept as it came: consumers get it, Spark skips it",
        )
        return SegmentRef(
            key=key,
            kind=SegmentKind.RAW,
            base=base,
            end=end,
            size_bytes=len(bad),
            records=header.record_count,
            raw_bytes=len(bad),
            min_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=header.max_timestamp,
            max_timestamp_offset=-1,
        )

    # ── What goes in ──

    async def _chunks(self, log: PartitionLog, base: int, end: int) -> AsyncIterator[list[Buffer]]:
        """Batches of ``[base, end)`` in offset order."""
        chunk: list[Buffer] = []
        size = 0
        for tail in [tail for tail in log.slices if tail.base < end and tail.end > base]:
            async for batch in self._slice(tail, base, end):
                chunk.append(batch)
                size += len(batch)
                if size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk

    async def _slice(self, tail: TailSlice, base: int, end: int) -> AsyncIterator[Buffer]:
        data = tail.data
        assert isinstance(data, TailData)
        first, stop = tail.first, tail.first + tail.count
        if tail.base < base:
            first = data.index_of(base, tail.first, tail.count)
            assert data.base_offsets[first] == base, "sealed ends are batch borders"
        while data.base_offsets[stop - 1] >= end:
            stop -= 1
        for index in range(first, stop):
            batch = None
            try:
                batch = data.read_local(index)
            except UnavailableError as error:
                self._log.warning("buffer_file_unreadable", error=str(error))
            base_offset = data.base_offsets[index]
            if batch is not None and data.views is None and not _is_batch(batch, base_offset):
                self._log.error(
                    "buffer_file_lost_batches",
                    object=data.object_key,
                    base_offset=base_offset,
                    advice="sealed from the flush object; replace the disk",
                )
                batch = None
            if batch is None:
                async for fetched in self._fetch(data, index, stop):
                    yield fetched
                return
            yield batch

    async def _fetch(self, data: TailData, index: int, stop: int) -> AsyncIterator[Buffer]:
        """The batches ``[index, stop)`` of a flush object, which stand side by side in it."""
        while index < stop:
            last = index
            start = data.positions[index]
            while last + 1 < stop and (
                data.positions[last + 1] + data.lengths[last + 1] - start <= _CHUNK_BYTES
            ):
                last += 1
            async with asyncio.timeout(_REQUEST_DEADLINE_S):
                body = await self._objects.get(
                    data.object_key, start, data.positions[last] + data.lengths[last]
                )
            for _, batch in iterate_batches(body):
                yield batch
            index = last + 1

    # ── Small things ──

    def _segment_key(self, log: PartitionLog, base: int, end: int, kind: SegmentKind) -> str:
        tp = TopicPartition(log.topic_id, log.partition)
        return layout.segment_key(log.topic, tp, base, end, self._nonce(), kind)

    async def put(self, key: str, body: list[Buffer]) -> None:
        """PUT an object of this size, with a deadline that a slow uplink can keep.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the store; under another name.
        """
        size_bytes = sum(map(len, body))
        async with asyncio.timeout(_REQUEST_DEADLINE_S + size_bytes / _SLOWEST_BYTES_PER_S):
            await self._objects.put(key, body)

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def _is_batch(batch: Buffer, base_offset: int) -> bool:
    """Whether a buffer file gave back what was written: a page that the disk lost unheard has
    something older, and the flush object has it as it was."""
    sound = not isinstance(kernel.check(batch, 0, len(batch), False), int)
    return sound and int.from_bytes(batch[:8], "big") == base_offset


def _append(writer: SegmentWriter, batches: list[Buffer], headers: list[BatchHeader]) -> int:
    """Add batches until one cannot be decoded; returns how many were taken."""
    for taken, batch in enumerate(batches):
        try:
            headers.append(writer.append(batch))
        except CorruptError:
            return taken
    return len(batches)
