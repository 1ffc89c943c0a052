"""The objects of a sealed range: its batches, decoded in a worker thread, as Parquet in the bucket.

    memory, buffer files, flush objects ──▶ batches, in chunks ──▶ columns ──▶ spool ──▶ PUT
       read ahead, while the worker is busy      ╳ cannot be decoded: kept as they came,
                                                   neighbours in one object

No manifest names these objects yet; `sealing/sealer` adds them to one.

Shell.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from enum import StrEnum
from random import Random
from typing import IO, Final, NamedTuple, Protocol

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.local_reads import last_that_fits, span_bytes
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt
from driftlog_agents.log.partition.tail import FlushBatches, object_range
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import NO_TIMESTAMP, BatchHeader, check_batch, iterate_batches
from driftlog_tiering.batches.batch_limits import (
    DECOMPRESSED_BYTES,
    HEADERS,
    LIGHT_BYTES,
    RECORDS,
    BatchLimits,
    OverBatchLimitError,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.columns import ColumnBuilder
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.segment import SegmentInfo, SegmentWriter
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import Buffer, NotFoundError, ObjectStore

_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Read and handed to a worker at once: a quarter of a row group."""

FILLING: Final = 2
"""Segments filled at once, each by a worker thread: the other cores are for clients."""

_AHEAD_BYTES: Final = 8 * 1024 * 1024
_PIECES_AHEAD: Final = 16
"""Bounds of what is read ahead while the worker is busy: the worker never waits for a disk, and
hardly for a far store."""

_RAW_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one object of undecodable batches, or one batch: it is read whole."""

_REQUEST_DEADLINE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1024 * 1024
"""An uplink slower than this cannot keep up with anything worth sealing."""


class _Fault(StrEnum):
    """Why a batch was not added: a limit of `BatchLimits`, or another reason."""

    CORRUPT = ""
    LARGE = "large"
    """It needs `BatchDecoder.large` to be decoded, if it can be."""
    RECORDS = RECORDS
    HEADERS = HEADERS
    DECOMPRESSED_BYTES = DECOMPRESSED_BYTES


LookAgain = Callable[[PartitionLog], Awaitable[None]]


async def nowhere_else(_: PartitionLog) -> None:
    """For a log whose flush objects are not consolidated."""


class _Piece(NamedTuple):
    """The batches ``[first, stop)`` of a flush, and the object that has them where no local copy
    does."""

    data: FlushBatches
    first: int
    stop: int
    stored_at: StoredAt

    @property
    def size_bytes(self) -> int:
        return span_bytes(self.data, self.first, self.stop)


class Spool(Protocol):
    """A segment before its PUT: in a temporary file, or in memory in the simulator."""

    @property
    def file(self) -> IO[bytes]:
        """The file that the segment is written to."""
        ...

    def body(self) -> Sequence[Buffer]:
        """Everything written so far, in pieces."""
        ...


class SealedRangeWriter:
    """Writes segments of one session.

    Args:
        look_again: called when a flush object is gone: learns which object has its batches now.
        decoding: decodes large batches in turns, for the whole process.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
        counters: LogCounters,
        look_again: LookAgain = nowhere_else,
        decoding: BatchDecoder | None = None,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._spool = spool
        self._rng = rng
        self._look_again = look_again
        self._decoding = decoding or BatchDecoder()
        self._filling = asyncio.Semaphore(FILLING)
        """Limits the segments that are filled at a time: each takes memory.  It does not limit
        uploads."""
        self._log = structlog.get_logger()
        self._counters = counters

    async def write(
        self, log: PartitionLog, base: int, end: int, headers: list[BatchHeader]
    ) -> list[SegmentRef]:
        """Segments of ``[base, end)``: one, or more where batches cannot be decoded; none where
        all of them are deleted.

        *headers* gets the headers of all batches, in order.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk failed; try
                again.
            CorruptError, NotFoundError: a flush object is damaged.
        """
        with disk_errors():
            if end <= log.log_start:
                async with aclosing(self._chunks(log, base, end)) as chunks:
                    async for batches in chunks:
                        headers += await self._offload(_headers, batches)
                return []
            return await self._write(log, base, end, headers)

    async def _write(
        self, log: PartitionLog, base: int, end: int, headers: list[BatchHeader]
    ) -> list[SegmentRef]:
        refs: list[SegmentRef] = []
        start, undecodable = base, 0
        async with aclosing(self._chunks(log, base, end)) as chunks:
            carried: list[Buffer] = []
            while start < end:
                # The writer closes before the spool, whatever happens: the file is used again, and
                # a writer that is garbage-collected later would write its footer into another
                # segment.
                with (
                    self._spool() as spool,
                    SegmentWriter(
                        spool.file,
                        topic=log.topic,
                        topic_id=log.topic_id,
                        partition=log.partition,
                        base=start,
                        limits=self._decoding.limits,
                    ) as writer,
                ):
                    known = len(headers)
                    async with self._filling:
                        carried = await self._fill(writer, carried, chunks, headers)
                        stop = writer.next_offset if carried else end
                        info = await self._offload(writer.finish, stop) if stop > start else None
                    if info is not None:
                        received = sum(header.size_bytes for header in headers[known:])
                        refs.append(await self._put_segment(log, info, spool, received))
                        start = stop
                cannot = bool(carried)
                while cannot:
                    bad, carried, cannot = await self._neighbours(log, carried, chunks)
                    refs.append(await self._put_raw(log, bad, headers))
                    start = refs[-1].end
                    undecodable += len(bad)
        self._tell(log, undecodable, refs)
        return refs

    async def _neighbours(
        self, log: PartitionLog, carried: list[Buffer], chunks: AsyncIterator[list[Buffer]]
    ) -> tuple[list[Buffer], list[Buffer], bool]:
        """Returns the first batch, which cannot be decoded, with the next ones that cannot, for one
        object; the batches after them; and whether the first of these cannot be decoded either."""
        bad, carried = carried[:1], carried[1:]
        size = len(bad[0])
        while carried or (carried := await anext(chunks, [])):
            async with self._filling:
                faults = await self._faults(log, carried)
            for taken, batch in enumerate(carried[: len(faults)]):
                self._refuse(faults[taken])
                size += len(batch)
                if size > _RAW_BYTES:
                    return bad, carried[taken:], True
                bad.append(batch)
            if len(faults) < len(carried):
                return bad, carried[len(faults) :], False
            carried = []
        return bad, [], False

    async def _faults(self, log: PartitionLog, batches: list[Buffer]) -> list[_Fault]:
        """The fault of each leading batch of *batches* that cannot be decoded."""
        faults: list[_Fault] = []
        found: list[_Fault | None]
        limits = self._decoding.limits
        while len(faults) < len(batches):
            found = await self._offload(_find_faults, log, batches[len(faults) :], limits)
            if found[-1] is _Fault.LARGE:
                large = batches[len(faults) + len(found) - 1]
                async with self._decoding.large():
                    found[-1] = await self._offload(_fault_of, log, large, limits, None)
            faults += [fault for fault in found if fault is not None]
            if found[-1] is None:
                break
        return faults

    def _refuse(self, fault: _Fault) -> None:
        if fault is not _Fault.CORRUPT:
            self._decoding.refuse(fault.value)

    async def _fill(
        self,
        writer: SegmentWriter,
        carried: list[Buffer],
        chunks: AsyncIterator[list[Buffer]],
        headers: list[BatchHeader],
    ) -> list[Buffer]:
        """Append *carried* and *chunks*, up to a batch that cannot be decoded.  Returns that batch
        and the rest of its chunk; empty: all batches are in."""
        while carried or (carried := await anext(chunks, [])):
            taken, fault = await self._offload(_append, writer, carried, headers)
            carried = carried[taken:]
            if fault is _Fault.LARGE:
                async with self._decoding.large():
                    fault = await self._offload(_append_large, writer, carried[0], headers)
                carried = carried[1:] if fault is None else carried
            if fault is not None:
                self._refuse(fault)
                return carried
        return []

    async def _put_segment(
        self, log: PartitionLog, info: SegmentInfo, spool: Spool, received_bytes: int
    ) -> SegmentRef:
        key = self._segment_key(log, info.base, info.end, SegmentKind.PARQUET)
        self._counters.sealed_bytes += info.raw_bytes
        body = spool.body()
        assert body_bytes(body) == info.size_bytes, "another writer wrote to the spool"
        await self.put(key, body)
        return SegmentRef(
            key=key,
            base=info.base,
            end=info.end,
            size_bytes=info.size_bytes,
            records=info.records,
            raw_bytes=info.raw_bytes,
            min_timestamp_ms=info.min_timestamp_ms,
            max_timestamp_ms=info.max_timestamp_ms,
            max_timestamp_offset=info.max_timestamp_offset,
            codec=info.codec,
            format_version=info.format_version,
            received_bytes=received_bytes,
        )

    async def _put_raw(
        self, log: PartitionLog, bad: list[Buffer], headers: list[BatchHeader]
    ) -> SegmentRef:
        """PUT batches that cannot be decoded as they came, back to back."""
        found = [check_batch(batch, from_client=False) for batch in bad]
        headers += found
        base, end = found[0].base_offset, found[-1].end_offset
        size_bytes = body_bytes(bad)
        key = self._segment_key(log, base, end, SegmentKind.RAW)
        await self.put(key, bad)
        self._counters.undecodable_batches += len(bad)
        return SegmentRef(
            key=key,
            kind=SegmentKind.RAW,
            base=base,
            end=end,
            size_bytes=size_bytes,
            records=sum(header.record_count for header in found),
            raw_bytes=size_bytes,
            min_timestamp_ms=NO_TIMESTAMP,
            max_timestamp_ms=max(header.max_timestamp for header in found),
            max_timestamp_offset=-1,
        )

    def _tell(self, log: PartitionLog, batches: int, refs: list[SegmentRef]) -> None:
        """Log one line for each seal, however many batches cannot be decoded."""
        raw = [ref for ref in refs if ref.kind is SegmentKind.RAW]
        if raw:
            self._log.error(
                "batches_undecodable",
                partition=f"{log.topic}-{log.partition}",
                batches=batches,
                base=raw[0].base,
                end=raw[-1].end,
                objects=len(raw),
                first_object=raw[0].key,
                advice="stored as they came: consumers get them, Spark skips them",
            )

    # ── Batches of a range ──

    async def _chunks(self, log: PartitionLog, base: int, end: int) -> AsyncGenerator[list[Buffer]]:
        """Batches of ``[base, end)`` in offset order."""
        chunk: list[Buffer] = []
        size = 0
        async with aclosing(self._loaded(log, _pieces(log, base, end))) as loaded:
            async for batches in loaded:
                chunk += batches
                size += sum(map(len, batches))
                if size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk

    async def _loaded(
        self, log: PartitionLog, pieces: Iterator[_Piece]
    ) -> AsyncGenerator[list[Buffer]]:
        """The batches of *pieces*, in their order; the next pieces are loaded meanwhile."""
        ahead: deque[tuple[asyncio.Task[list[Buffer]], int]] = deque()
        ahead_bytes = 0
        try:
            while True:
                while len(ahead) < _PIECES_AHEAD and (not ahead or ahead_bytes < _AHEAD_BYTES):
                    if (piece := next(pieces, None)) is None:
                        break
                    ahead.append((asyncio.create_task(self._load(log, piece)), piece.size_bytes))
                    ahead_bytes += piece.size_bytes
                if not ahead:
                    return
                batches = await ahead[0][0]
                ahead_bytes -= ahead.popleft()[1]
                yield batches
        finally:
            for task, _ in ahead:
                task.cancel()
            await asyncio.gather(*(task for task, _ in ahead), return_exceptions=True)

    async def _load(self, log: PartitionLog, piece: _Piece) -> list[Buffer]:
        """The batches of *piece* from memory and the buffer files, the rest from the flush
        object."""
        data = piece.data
        batches: list[Buffer] = []
        async for index in sliced(range(piece.first, piece.stop)):
            batch = None
            try:
                batch = data.read_local(index)
            except UnavailableError as error:
                self._log.warning("buffer_file_unreadable", error=str(error))
            base_offset = data.base_offsets[index]
            if batch is not None and data.views is None and not _is_batch(batch, base_offset):
                self._log.error(
                    "buffer_file_lost_batches",
                    object=piece.stored_at.object_key,
                    base_offset=base_offset,
                    advice="sealed from the flush object; replace the disk",
                )
                batch = None
            if batch is None:
                return batches + await self._fetch(log, piece._replace(first=index))
            batches.append(batch)
        return batches

    async def _fetch(self, log: PartitionLog, piece: _Piece) -> list[Buffer]:
        """The batches of *piece* from its object; where that is gone, from the object that replaced
        it."""
        try:
            return await self._get(piece)
        except NotFoundError:
            await self._look_again(log)
            tail = log.find(piece.data.base_offsets[piece.first])
            if tail is None or tail.stored_at == piece.stored_at:
                raise
            assert tail.data is piece.data, "a slice moves with its flush"
        return await self._get(piece._replace(stored_at=tail.stored_at))

    async def _get(self, piece: _Piece) -> list[Buffer]:
        key, start, end = object_range(piece.data, piece.first, piece.stop, piece.stored_at)
        async with asyncio.timeout(_REQUEST_DEADLINE_S):
            body = await self._objects.get(key, start, end)
        found = list(iterate_batches(body))
        wanted = piece.data.base_offsets[piece.first : piece.stop]
        if [header.base_offset for header, _ in found] != wanted.tolist():
            # It is cut off between two batches, or another object: that is never sealed as a gap.
            raise CorruptError(
                f"{key} lacks the {len(wanted)} batches from offset {wanted[0]} that its footer "
                f"lists"
            )
        return [batch for _, batch in found]

    # ── Small things ──

    def _segment_key(self, log: PartitionLog, base: int, end: int, kind: SegmentKind) -> str:
        tp = TopicPartition(log.topic_id, log.partition)
        return layout.segment_key(log.topic, tp, base, end, self._nonce(), kind)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """PUT an object, with a deadline by its size that a slow uplink can meet.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the store failed; repeat under
                another name.
        """
        size_bytes = body_bytes(body)
        async with asyncio.timeout(_REQUEST_DEADLINE_S + size_bytes / _SLOWEST_BYTES_PER_S):
            await self._objects.put(key, body)

    def _nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise disk errors of the spool as `UnavailableError`: they fail an attempt, not the agent."""
    try:
        yield
    except TimeoutError:
        raise  # from a store: an OSError only by its class
    except OSError as error:
        raise UnavailableError(f"the spool of segments, in DIR/spool: {error}") from error


def _pieces(log: PartitionLog, base: int, end: int) -> Iterator[_Piece]:
    """The pieces of ``[base, end)``: runs of batches of one flush, no longer than a chunk, or of
    one batch."""
    for tail in [tail for tail in log.slices if tail.base < end and tail.end > base]:
        data = tail.data
        assert isinstance(data, FlushBatches)
        first, stop = tail.first, tail.first + tail.count
        if tail.base < base:
            first = data.index_of(base, tail.first, tail.count)
            assert data.base_offsets[first] == base, "sealed ends are batch borders"
        while data.base_offsets[stop - 1] >= end:
            stop -= 1
        while first < stop:
            last = max(last_that_fits(data, first, stop, _CHUNK_BYTES), first + 1)
            yield _Piece(data, first, last, tail.stored_at)
            first = last


def _is_batch(batch: Buffer, base_offset: int) -> bool:
    """Whether a buffer file returned the batch that was written: a page that the disk lost without
    an error has older bytes, and the flush object has the batch as it was."""
    sound = not isinstance(kernel.check(batch, 0, len(batch), False), int)
    return sound and int.from_bytes(batch[:8], "big") == base_offset


def _headers(batches: list[Buffer]) -> list[BatchHeader]:
    return [check_batch(batch, from_client=False) for batch in batches]


def _append(
    writer: SegmentWriter, batches: list[Buffer], headers: list[BatchHeader]
) -> tuple[int, _Fault | None]:
    """Add batches until one fails; returns how many were added, and why that one failed."""
    for taken, batch in enumerate(batches):
        try:
            headers.append(writer.append(batch, LIGHT_BYTES))
        except CorruptError as error:
            return taken, _why(error, LIGHT_BYTES)
    return len(batches), None


def _append_large(
    writer: SegmentWriter, batch: Buffer, headers: list[BatchHeader]
) -> _Fault | None:
    """Add one batch, in a row group of its own; returns why it was not."""
    writer.flush()
    try:
        headers.append(writer.append(batch))
    except CorruptError as error:
        return _why(error, None)
    writer.flush()
    return None


def _find_faults(
    log: PartitionLog, batches: list[Buffer], limits: BatchLimits
) -> list[_Fault | None]:
    """The fault of each batch, up to the first that can be decoded, or perhaps can."""
    faults: list[_Fault | None] = []
    for batch in batches:
        faults.append(_fault_of(log, batch, limits, LIGHT_BYTES))
        if faults[-1] in (None, _Fault.LARGE):
            break
    return faults


def _fault_of(
    log: PartitionLog, batch: Buffer, limits: BatchLimits, most_bytes: int | None
) -> _Fault | None:
    try:
        ColumnBuilder(log.topic, log.partition, limits).add(batch, 0, most_bytes)
    except CorruptError as error:
        return _why(error, most_bytes)
    return None


def _why(error: CorruptError, most_bytes: int | None) -> _Fault:
    if not isinstance(error, OverBatchLimitError):
        return _Fault.CORRUPT
    if error.limit == DECOMPRESSED_BYTES and most_bytes is not None:
        return _Fault.LARGE
    return _Fault(error.limit)
