"""The objects of a sealed range: its batches, decoded in a worker thread, as Parquet in the bucket,
and the producers at its end.

    chunks of batches (`range_reader`) ──▶ columns ──▶ spool ──▶ PUT
                                             ╳ cannot be decoded: kept as they came, neighbours in
                                               one object (`batch_faults`)

No manifest names these objects yet; `sealing/sealer` adds them to one.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from random import Random
from typing import Final

import structlog

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.batch_faults import (
    BatchFault,
    append_batches,
    append_large,
    fault_of,
    find_faults,
)
from driftlog_agents.log.sealing.range_reader import RangeReader
from driftlog_agents.log.sealing.sealed_range import (
    batch_headers,
    flush_times,
    producer_snapshot,
    raw_ref,
)
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import BatchHeader, check_batch
from driftlog_tiering.batches.producers import EXPIRATION_MS, ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.file_likes import Spool
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import ProducerSnapshotRef, SegmentRef
from driftlog_tiering.formats.segment import SegmentInfo, SegmentWriter
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import Buffer, ObjectStore

FILLING: Final = 2
"""Segments filled at once, each by a worker thread: the other cores are for clients."""

_RAW_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one object of undecodable batches, or one batch: it is read whole."""

_REQUEST_DEADLINE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1024 * 1024
"""An uplink slower than this cannot keep up with anything worth sealing."""


class SealedRangeWriter:
    """Writes segments of one session.

    Args:
        reader: reads the batches of a range.
        decoding: decodes large batches in turns, for the whole process.
        producer_expiration_ms: a snapshot has no older producers.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        rng: Random,
        counters: LogCounters,
        reader: RangeReader,
        decoding: BatchDecoder | None = None,
        producer_expiration_ms: float = EXPIRATION_MS,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._spool = spool
        self._rng = rng
        self._reader = reader
        self._decoding = decoding or BatchDecoder()
        self._producer_expiration_ms = producer_expiration_ms
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
                async with aclosing(self._reader.chunks(log, base, end)) as chunks:
                    async for batches in chunks:
                        headers += await self._offload(batch_headers, batches)
                return []
            return await self._write(log, base, end, headers)

    async def _write(
        self, log: PartitionLog, base: int, end: int, headers: list[BatchHeader]
    ) -> list[SegmentRef]:
        refs: list[SegmentRef] = []
        start, undecodable = base, 0
        async with aclosing(self._reader.chunks(log, base, end)) as chunks:
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
                    bad, carried, cannot = await self._neighbours(carried, chunks)
                    refs.append(await self._put_raw(log, bad, headers))
                    start = refs[-1].end
                    undecodable += len(bad)
        self._tell(log, undecodable, refs)
        return refs

    async def write_producers(
        self, log: PartitionLog, states: ProducerStates, headers: list[BatchHeader], end: int
    ) -> ProducerSnapshotRef | None:
        """The producers at exactly *end*: *states* of the previous snapshot, and the sealed
        batches.  None: there are none.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: as `put`.
        """
        encoded = await self._offload(
            producer_snapshot,
            states,
            headers,
            flush_times(log, end),
            end,
            self._producer_expiration_ms,
        )
        if encoded is None:
            return None
        tp = TopicPartition(log.topic_id, log.partition)
        key = layout.producer_snapshot_key(log.topic, tp, end, self._nonce())
        await self.put(key, [encoded])
        return ProducerSnapshotRef(offset=end, key=key)

    async def _neighbours(
        self, carried: list[Buffer], chunks: AsyncIterator[list[Buffer]]
    ) -> tuple[list[Buffer], list[Buffer], bool]:
        """Returns the first batch, which cannot be decoded, with the next ones that cannot, for one
        object; the batches after them; and whether the first of these cannot be decoded either."""
        bad, carried = carried[:1], carried[1:]
        size = len(bad[0])
        while carried or (carried := await anext(chunks, [])):
            async with self._filling:
                faults = await self._faults(carried)
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

    async def _faults(self, batches: list[Buffer]) -> list[BatchFault]:
        """The fault of each leading batch of *batches* that cannot be decoded."""
        faults: list[BatchFault] = []
        found: list[BatchFault | None]
        limits = self._decoding.limits
        while len(faults) < len(batches):
            found = await self._offload(find_faults, batches[len(faults) :], limits)
            if found[-1] is BatchFault.LARGE:
                large = batches[len(faults) + len(found) - 1]
                async with self._decoding.large():
                    found[-1] = await self._offload(fault_of, large, limits, None)
            faults += [fault for fault in found if fault is not None]
            if found[-1] is None:
                break
        return faults

    def _refuse(self, fault: BatchFault) -> None:
        if fault is not BatchFault.CORRUPT:
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
            taken, fault = await self._offload(append_batches, writer, carried, headers)
            carried = carried[taken:]
            if fault is BatchFault.LARGE:
                async with self._decoding.large():
                    fault = await self._offload(append_large, writer, carried[0], headers)
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
        return info.reference(key, received_bytes)

    async def _put_raw(
        self, log: PartitionLog, bad: list[Buffer], headers: list[BatchHeader]
    ) -> SegmentRef:
        """PUT batches that cannot be decoded as they came, back to back."""
        found = [check_batch(batch, from_client=False) for batch in bad]
        headers += found
        key = self._segment_key(log, found[0].base_offset, found[-1].end_offset, SegmentKind.RAW)
        await self.put(key, bad)
        self._counters.undecodable_batches += len(bad)
        return raw_ref(key, found, body_bytes(bad))

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
