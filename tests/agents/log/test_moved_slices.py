"""What reads the tail from the bucket goes on where it looked, while a rewrite moves the slices.

old object   │ p0 ........ │ p1: sealed │ p1: needed │
new object                               │ p1: needed │
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from itertools import accumulate
from random import Random
from typing import Any
from uuid import UUID

import pytest

from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt
from driftlog_agents.log.partition.tail import FlushBatches, move, tail_slice
from driftlog_agents.log.reading.flush_objects import FlushReads
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.segments import SegmentReads
from driftlog_agents.log.reading.time_search import find_first, find_latest
from driftlog_agents.log.reading.timestamps import TimeReads
from driftlog_agents.log.sealing.segment_writer import SealedRangeWriter
from driftlog_agents.log.segments.range_reader import RangeReader
from driftlog_agents.log.session.counters import LogCounters
from driftlog_tiering.batches.batch import iterate_batches
from driftlog_tiering.formats.flush_object import Footer
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.agents.log.tiers import make_batch
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.range_writer import range_writer

TOPIC_ID = UUID(int=7)
OLD, NEW, OTHER = "flush/s/old", "flush/s/new", "flush/s/other"
SEALED_END, END = 10, 20


class Bucket(MemoryObjectStore):
    """GETs wait for a gate, and act when they arrived."""

    def __init__(self) -> None:
        super().__init__(lambda: int(now_ms()))
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[str] = []
        self.other_gate = asyncio.Event()
        """Of another partition's object."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == OTHER:
            await self.other_gate.wait()
        else:
            self.asked.append(key)
            await self.gate.wait()
        return await super().get(key, start, end)


async def inline(fn: Callable[..., Any], *args: Any) -> Any:
    """On the loop."""
    return fn(*args)


def batch_at(offset: int, size: int) -> bytes:
    """One record, as old as its offset says."""
    return make_batch(offset, [(1_000 + offset, None, b"v" * size)])


def flushed(offsets: Sequence[tuple[int, int]], size: int = 100) -> tuple[Footer, bytes]:
    """An object of these batches, (partition, offset), and its footer."""
    batches = [batch_at(offset, size) for _, offset in offsets]
    lengths, n = array("i", map(len, batches)), len(batches)
    columns = (
        array("i", [0] * n),
        array("i", [partition for partition, _ in offsets]),
        array("i", [0] * n),
        array("q", [offset for _, offset in offsets]),
        array("i", [0] * n),
        array("h", [0] * n),
        array("q", [-1] * n),
        array("h", [-1] * n),
        array("i", [-1] * n),
        array("q", [1_000 + offset for _, offset in offsets]),
        array("i", accumulate(lengths[:-1], initial=0)),
        lengths,
        array("q", [0] * n),
    )
    return Footer("s", 1, 1, (TOPIC_ID,), columns), b"".join(batches)


class World:
    """A partition whose slice is sealed in part, and a rewrite of it that is about to be told."""

    def __init__(self, read_ahead_bytes: int) -> None:
        self.bucket = Bucket()
        self.log = PartitionLog(
            topic="t", topic_id=TOPIC_ID, partition=1, leader_epoch=0, sealed_end=SEALED_END
        )
        self.log.log_start = SEALED_END
        self.settings = ReadSettings(
            flush_cache_bytes=3_000, read_ahead_bytes=read_ahead_bytes, patience_ms=200, hold_ms=100
        )
        reads = RangedReads(self.bucket, self.settings, now_ms, inline)
        self.flushes = FlushReads(reads=reads, settings=self.settings, now_ms=now_ms)
        decoding = BatchDecoder()
        segments = SegmentReads(
            reads=reads,
            settings=self.settings,
            now_ms=now_ms,
            decoding=decoding,
        )
        self.times = TimeReads(
            reads=reads,
            segments=segments,
            flushes=self.flushes,
            manifest=self._manifest,
            decoding=decoding,
        )

    async def _manifest(self, _: PartitionLog) -> Any:
        raise AssertionError("nobody asks for what is sealed")

    async def start(self) -> None:
        """Put both objects; the log knows the old one."""
        old, body = flushed([(0, n) for n in range(30)] + [(1, n) for n in range(END)])
        await self.bucket.put(OLD, [body])
        self.new, body = flushed([(1, n) for n in range(SEALED_END, END)])
        await self.bucket.put(NEW, [body])
        (mine,) = (s for s in old.slices() if s.partition == 1)
        tail = tail_slice(FlushBatches.of_footer(old), mine, StoredAt(OLD, 0))
        self.log.restore(tail, 0.0)

    def rewrite(self) -> None:
        """What the consolidator tells the tail."""
        (mine,) = self.new.slices()
        move(self.log, self.new, mine, NEW)

    async def fill_cache(self) -> asyncio.Event:
        """Reads of flush objects wait for room until this is set."""
        other, body = flushed([(0, 0)], self.settings.flush_cache_bytes - 150)
        await self.bucket.put(OTHER, [body])
        (theirs,) = other.slices()
        tail = tail_slice(FlushBatches.of_footer(other), theirs, StoredAt(OTHER, 0))
        self.kept = asyncio.create_task(self.flushes.batch(self.log, tail, 0))
        await asyncio.sleep(0)
        return self.bucket.other_gate


def offsets_of(batches: Sequence[Buffer]) -> list[int]:
    """Each whole."""
    return [header.base_offset for b in batches for header, _ in iterate_batches(b)]


async def world(read_ahead_bytes: int = 400) -> World:
    made = World(read_ahead_bytes)
    await made.start()
    return made


@pytest.mark.parametrize("read_ahead_bytes", [400, 10_000])
@pytest.mark.parametrize("offset", range(SEALED_END, END))
@on_virtual_time
async def test_a_read_that_waits_for_room_goes_on_where_it_looked(
    offset: int, read_ahead_bytes: int
) -> None:
    """
    A rewrite leaves out the sealed part of its slice meanwhile: it gets the batches that it asked
    for, from the old object, and the next read gets them from the new one.
    """
    w = await world(read_ahead_bytes)
    room = await w.fill_cache()
    tail = w.log.find(offset)
    assert tail is not None
    read = asyncio.create_task(w.flushes.read(w.log, tail, offset, 10_000))
    await asyncio.sleep(0.01)

    w.rewrite()
    room.set()
    found = await read
    again = await w.times.run(w.log, partial(find_first, 1_000 + offset), 1_000 + offset)

    assert (offset, END) == (offsets_of(found.buffers)[0], found.end)
    assert list(range(offset, END)) == offsets_of(found.buffers)
    assert (offset, 1_000 + offset, -1) == again
    assert {OLD, NEW} == set(w.bucket.asked)


@pytest.mark.parametrize("target", range(SEALED_END, END))
@on_virtual_time
async def test_a_lookup_by_time_goes_on_where_it_looked(target: int) -> None:
    """
    A batch is decoded, and does not keep what its header promises: the lookup goes on to the next
    one of a slice that was moved meanwhile.
    """
    w = await world()
    data: Any = w.log.slices[0].data
    times = data.max_timestamps_ms
    times[data.index_of(SEALED_END, 30, END)] = 5_000  # more than its records hold
    w.bucket.gate.clear()
    looked_up = asyncio.create_task(
        w.times.run(w.log, partial(find_first, 1_000 + target), 1_000 + target)
    )
    await asyncio.sleep(0.01)

    w.rewrite()
    w.bucket.gate.set()

    assert (target, 1_000 + target, -1) == await looked_up
    assert {OLD} == set(w.bucket.asked)


@on_virtual_time
async def test_the_largest_time_is_looked_for_where_it_was_seen() -> None:
    """
    As above, for ListOffsets -3.
    """
    w = await world()
    data: Any = w.log.slices[0].data
    data.max_timestamps_ms[data.index_of(SEALED_END, 30, END)] = 5_000
    w.bucket.gate.clear()
    looked_up = asyncio.create_task(w.times.run(w.log, find_latest, None))
    await asyncio.sleep(0.01)

    w.rewrite()
    w.bucket.gate.set()

    assert (END - 1, 1_000 + END - 1, -1) == await looked_up


@on_virtual_time
async def test_a_lookup_whose_object_is_gone_says_so_and_finds_it_when_it_looks_again() -> None:
    """
    `LogReader` looks up what is missing, and asks again: then it is the new object.
    """
    w = await world()
    w.bucket.gate.clear()
    looked_up = asyncio.create_task(w.times.run(w.log, partial(find_first, 1_015), 1_015))
    await asyncio.sleep(0.01)

    w.rewrite()
    await w.bucket.delete([OLD])
    w.bucket.gate.set()
    with pytest.raises(ObjectUnavailableError):
        await looked_up

    assert (15, 1_015, -1) == await w.times.run(w.log, partial(find_first, 1_015), 1_015)


@on_virtual_time
async def test_lookups_for_one_time_at_once_are_one_lookup() -> None:
    """
    A hundred clients that ask for the same have what one of them has, and cost as much.
    """
    alone, together = await world(), await world()
    asked: list[int] = []
    for w, clients in ((alone, 1), (together, 100)):
        before = len(w.bucket.asked)
        lookups = (w.times.run(w.log, partial(find_first, 1_015), 1_015) for _ in range(clients))
        found = await asyncio.gather(*lookups)
        asked.append(len(w.bucket.asked) - before)
        assert {(15, 1_015, -1)} == set(found)

    assert asked[0] == asked[1] > 0


@contextmanager
def spool() -> Iterator[Any]:
    class Spool:
        file = BytesIO()

        def body(self) -> list[bytes]:
            return [self.file.getvalue()]

    yield Spool()


def writing(w: World, look_again: Callable[[PartitionLog], Awaitable[None]]) -> SealedRangeWriter:
    return range_writer(
        objects=w.bucket,
        offload=inline,
        spool=spool,
        rng=Random(1),
        counters=LogCounters(),
        reader=RangeReader(w.bucket, look_again),
    )


async def never(_: PartitionLog) -> None:
    raise AssertionError("the old object is there")


@pytest.mark.parametrize("moved_after_s", [0, 0.01])
@on_virtual_time
async def test_a_seal_reads_where_it_looked(moved_after_s: float) -> None:
    """
    Whether its slice is moved before it asks the store, or while it waits for the answer.
    """
    w = await world()
    w.bucket.gate.clear()
    headers: list[Any] = []
    seal = asyncio.create_task(writing(w, never).write(w.log, SEALED_END, END, headers))
    await asyncio.sleep(moved_after_s)

    w.rewrite()
    w.bucket.gate.set()
    (ref,) = await seal

    assert (SEALED_END, END, END - SEALED_END) == (ref.base, ref.end, ref.records)
    assert list(range(SEALED_END, END)) == [header.base_offset for header in headers]


@on_virtual_time
async def test_a_seal_whose_object_is_gone_reads_from_the_one_that_replaced_it() -> None:
    """
    It is told, looks again, and reads the rest from there; what no object has is damage.
    """
    w = await world()
    await w.bucket.delete([OLD])

    async def look_again(_: PartitionLog) -> None:
        w.rewrite()

    headers: list[Any] = []
    (ref,) = await writing(w, look_again).write(w.log, SEALED_END, END, headers)
    assert (SEALED_END, END) == (ref.base, ref.end)
    await w.bucket.delete([NEW])

    async def nothing(_: PartitionLog) -> None:
        return

    with pytest.raises(NotFoundError):
        await writing(w, nothing).write(w.log, SEALED_END, END, [])
