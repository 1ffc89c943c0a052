"""The objects of a range of one partition: its batches, decoded in a worker thread, as Parquet in
the bucket.

    chunks of batches ──▶ columns ──▶ spool ──▶ PUT
                            ╳ cannot be decoded: kept as they came, neighbours in one object
                              (`batch_faults`)
                            ╳ the segment is full: the range ends there

A leader writes its own ranges; an agent with the role ``seal`` writes those that leaders send to it
(`segment_service`).  No manifest names these objects yet: only the leader adds them to one.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from random import Random
from typing import Final

import structlog

from driftlog_agents.foundation.retry import memory_errors
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.segments.batch_faults import (
    BatchFault,
    RangeBounds,
    append_batches,
    append_large,
    fault_of,
    find_faults,
)
from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.sealed_range import raw_ref
from driftlog_agents.log.segments.segment_request import UndecodableError
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import BatchHeader, check_batch
from driftlog_tiering.compaction.bucket_requests import put_in_time
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.segments.segment import SegmentInfo, SegmentWriter
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import ObjectStore

FILLING: Final = 2
"""Segments filled at once, each by a worker thread: the other cores are for clients."""


class RangeSegments:
    """Writes ranges as segments.

    Args:
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
        decoding: BatchDecoder | None = None,
        bounds: RangeBounds | None = None,
    ) -> None:
        self._bounds = bounds or RangeBounds()
        self._objects = objects
        self._offload = offload
        self._spool = spool
        self._rng = rng
        self._decoding = decoding or BatchDecoder()
        self._filling = asyncio.Semaphore(FILLING)
        """Limits the segments that are filled at a time: each takes memory.  It does not limit
        uploads."""
        self._log = structlog.get_logger()
        self._counters = counters

    async def write(
        self,
        named: PartitionRange,
        chunks: AsyncIterator[list[Buffer]],
        headers: list[BatchHeader],
    ) -> list[SegmentRef]:
        """Segments of the batches of *chunks*, which are the range *named*: one, or more where
        batches cannot be decoded.  They end before the range does where they took
        `RangeBounds.work_bytes` to decode.

        *headers* gets the headers of their batches, in order.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk failed; try
                again.
            What *chunks* raises.
        """
        with local_errors():
            return await self._write(named, chunks, headers)

    async def write_one(
        self, named: PartitionRange, chunks: AsyncIterator[list[Buffer]]
    ) -> SegmentRef:
        """One segment of the batches of *chunks*, which come from another agent.

        Other segments are filled while it waits for the next chunk.

        Raises:
            UndecodableError: the range is not one segment; nothing was PUT.
            As `write`.
        """
        with local_errors(), self._spool() as spool, self._writer(spool, named) as writer:
            received = 0
            async for batches in chunks:
                headers: list[BatchHeader] = []
                async with self._filling:
                    carried = await self._append(writer, batches, headers, self._bounds.one_bytes)
                if carried:  # cannot be decoded, or the segment is full
                    raise UndecodableError
                received += sum(header.size_bytes for header in headers)
            async with self._filling:
                info = await self._offload(writer.finish, named.end)
            return await self._put_segment(named, info, spool, received)

    async def _write(
        self,
        named: PartitionRange,
        chunks: AsyncIterator[list[Buffer]],
        headers: list[BatchHeader],
    ) -> list[SegmentRef]:
        refs: list[SegmentRef] = []
        start, undecodable, work_bytes = named.base, 0, 0
        most_bytes = self._bounds.work_bytes
        carried: list[Buffer] = []
        while start < named.end and work_bytes < most_bytes:
            # The writer closes before the spool, whatever happens: the file is used again, and
            # a writer that is garbage-collected later would write its footer into another
            # segment.
            with (
                self._spool() as spool,
                self._writer(spool, replace(named, base=start)) as writer,
            ):
                known = len(headers)
                async with self._filling:
                    carried = await self._fill(writer, carried, chunks, headers)
                    stop = writer.next_offset if carried else named.end
                    info = await self._offload(writer.finish, stop) if stop > start else None
                if info is not None:
                    received = sum(header.size_bytes for header in headers[known:])
                    refs.append(await self._put_segment(named, info, spool, received))
                    start = stop
            work_bytes += writer.work_bytes
            cannot = bool(carried)
            while cannot and work_bytes < most_bytes:
                bad, carried, cannot = await self._neighbours(carried, chunks)
                refs.append(await self._put_raw(named, bad, headers))
                start = refs[-1].end
                undecodable += len(bad)
                work_bytes += self._bounds.undecodable_bytes * len(bad)
        self._tell(named, undecodable, refs)
        return refs

    async def _neighbours(
        self, carried: list[Buffer], chunks: AsyncIterator[list[Buffer]]
    ) -> tuple[list[Buffer], list[Buffer], bool]:
        """Returns the first batch, which cannot be decoded, with the next ones that cannot, for one
        object; the batches after them; and whether it is known that the first of these cannot be
        decoded either."""
        bad, carried = carried[:1], carried[1:]
        size, most = len(bad[0]), self._bounds.raw_batches
        while carried or (carried := await anext(chunks, [])):
            if len(bad) == most:
                return bad, carried, False
            looked_at = carried[: most - len(bad)]
            async with self._filling:
                faults = await self._faults(looked_at)
            for taken, batch in enumerate(carried[: len(faults)]):
                self._refuse(faults[taken])
                size += len(batch)
                if size > self._bounds.raw_bytes:
                    return bad, carried[taken:], True
                bad.append(batch)
            if len(faults) < len(looked_at):
                return bad, carried[len(faults) :], False
            carried = carried[len(faults) :]
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
        """Append *carried* and *chunks*, up to a batch that cannot be decoded, or that is one too
        many.  Returns that batch and the rest of its chunk; empty: all batches are in."""
        while carried or (carried := await anext(chunks, [])):
            carried = await self._append(writer, carried, headers, self._bounds.work_bytes)
            if carried:
                return carried
        return []

    async def _append(
        self,
        writer: SegmentWriter,
        batches: list[Buffer],
        headers: list[BatchHeader],
        most_bytes: int,
    ) -> list[Buffer]:
        """Append *batches*; returns the first that cannot be decoded, or that is one too many, and
        those after it."""
        while batches and writer.work_bytes < most_bytes:
            taken, fault = await self._offload(append_batches, writer, batches, headers, most_bytes)
            batches = batches[taken:]
            if fault is BatchFault.LARGE:
                async with self._decoding.large():
                    fault = await self._offload(append_large, writer, batches[0], headers)
                batches = batches[1:] if fault is None else batches
            if fault is not None:
                self._refuse(fault)
                break
        return batches

    async def _put_segment(
        self, named: PartitionRange, info: SegmentInfo, spool: Spool, received_bytes: int
    ) -> SegmentRef:
        key = self._segment_key(named, info.base, info.end, SegmentKind.PARQUET)
        self._counters.sealed_bytes += info.raw_bytes
        body = spool.body()
        assert body_bytes(body) == info.size_bytes, "another writer wrote to the spool"
        await self.put(key, body)
        return info.reference(key, received_bytes)

    async def _put_raw(
        self, named: PartitionRange, bad: list[Buffer], headers: list[BatchHeader]
    ) -> SegmentRef:
        """PUT batches that cannot be decoded as they came, back to back."""
        found = [check_batch(batch, from_client=False) for batch in bad]
        headers += found
        key = self._segment_key(named, found[0].base_offset, found[-1].end_offset, SegmentKind.RAW)
        await self.put(key, bad)
        self._counters.undecodable_batches += len(bad)
        return raw_ref(key, found, body_bytes(bad))

    def _tell(self, named: PartitionRange, batches: int, refs: list[SegmentRef]) -> None:
        """Log one line for each seal, however many batches cannot be decoded."""
        raw = [ref for ref in refs if ref.kind is SegmentKind.RAW]
        if raw:
            self._log.error(
                "batches_undecodable",
                partition=named.name,
                batches=batches,
                base=raw[0].base,
                end=raw[-1].end,
                objects=len(raw),
                first_object=raw[0].key,
                advice="stored as they came: consumers get them, Spark queries fail at them",
            )

    # ── Small things ──

    def _writer(self, spool: Spool, named: PartitionRange) -> SegmentWriter:
        return SegmentWriter(
            spool.file,
            topic=named.topic,
            topic_id=named.tp.topic_id,
            partition=named.tp.partition,
            base=named.base,
            limits=self._decoding.limits,
        )

    def _segment_key(self, named: PartitionRange, base: int, end: int, kind: SegmentKind) -> str:
        nonce = f"{self._rng.getrandbits(64):016x}"
        return layout.segment_key(named.topic, named.tp, base, end, nonce, kind)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """PUT an object, with a deadline by its size that a slow uplink can meet.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the store failed; repeat under
                another name.
        """
        await put_in_time(self._objects, key, body)


@contextmanager
def local_errors() -> Iterator[None]:
    """Raise what the machine lacks, memory or room in the spool, as `UnavailableError`: it fails an
    attempt, not the agent."""
    try:
        with memory_errors():
            yield
    except TimeoutError:
        raise  # from a store: an OSError only by its class
    except OSError as error:
        raise UnavailableError(f"the spool of segments, in DIR/spool: {error}") from error
