"""Behind the local disk a sequential consumer waits for a round trip to the bucket for each flush
object, or its read-ahead evicts what others read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import parse_header
from driftlog_tiering.foundation.types import MiB
from tests.agents.log.tiers import World, make_batch

BATCH_BYTES = len(make_batch(0, [(0, None, b"v" * 1_000)]))
ONE, FOUR = BATCH_BYTES, 4 * BATCH_BYTES


async def turns() -> None:
    """Let everything run that waits for nothing."""
    for _ in range(100):
        await asyncio.sleep(0)


@asynccontextmanager
async def sequential(
    flushes: int, settings: ReadSettings, then: str = ""
) -> AsyncIterator[tuple[World, Callable[[int], Awaitable[int]]]]:
    """A partition of so many flush objects of one batch, of which a consumer has read the first
    two, and the read of its next one; *then*: a last flush is in that tier.  From the second one
    on GETs wait."""
    world = World(settings=settings)
    for number in range(flushes):
        await world.flush([make_batch(number, [(number, None, b"v" * 1_000)])], "object")
    if then:
        await world.flush([make_batch(flushes, [(flushes, None, b"v" * 1_000)])], then)

    async def read(offset: int) -> int:
        found = await world.reader.read(world.log, offset, ONE, zstd=True)
        return parse_header(found[-1]).end_offset

    running = asyncio.create_task(world.reader.run())
    await turns()
    assert 1 == await read(0)
    assert 2 == await read(1)
    world.bucket.gate = asyncio.Event()
    await turns()
    try:
        yield world, read
    finally:
        world.bucket.gate.set()
        running.cancel()
        await asyncio.wait([running])


def ahead(world: World) -> int:
    """Objects that are read, beside the first two."""
    return len(world.bucket.gets) - 2


@pytest.mark.parametrize(("most", "objects"), [(ONE, 1), (FOUR, 4), (MiB, 4)])
async def test_flush_objects_ahead_of_a_sequential_consumer_are_read_side_by_side(
    most: int, objects: int
) -> None:
    """
    As many as are set, at most four; the consumer's next read finds them with no GET of its own.
    """
    async with sequential(20, ReadSettings(prefetch_flush_bytes=most)) as (world, read):
        assert objects == ahead(world)
        assert world.bucket.gate is not None
        world.bucket.gate.set()
        await turns()
        world.bucket.refuse = 10**6
        for offset in range(2, 2 + objects):
            assert offset + 1 == await read(offset)


async def test_flush_objects_that_do_not_answer_leave_requests_to_other_partitions() -> None:
    """
    Consumers of one partition, and its lookups by time, have the partition's share together.
    """
    settings = ReadSettings()
    world = World(settings=settings)
    for number in range(20):
        await world.flush([make_batch(number, [(number, None, b"v" * 1_000)])], "object")
    gate = world.bucket.gate = asyncio.Event()
    reads = [
        asyncio.create_task(world.reader.read(world.log, offset, MiB, zstd=True))
        for offset in (0, 10)
    ]
    lookup = asyncio.create_task(world.reader.find_timestamp(world.log, 19))
    await turns()
    assert settings.requests_of_partition == world.bucket.gets.total()

    key = "topics/other/id/00000/segment"
    await world.bucket.put(key, [b"bytes"])
    segment = asyncio.create_task(world.reader.objects.get(key))
    await turns()
    assert 1 == world.bucket.gets[key]
    gate.set()
    assert [8, 8] == [len(found) for found in await asyncio.gather(*reads)]
    assert (19, 19, 0) == await lookup
    assert b"bytes" == await segment


async def test_a_read_ahead_evicts_nothing_that_is_being_read() -> None:
    """
    The cache has room for two objects of two batches: for the one that is being read, and the next.
    """
    settings = ReadSettings(
        prefetch_flush_bytes=MiB, flush_cache_bytes=FOUR, hold_ms=10**6, patience_ms=0
    )
    world = World(settings=settings)
    for first in range(0, 40, 2):
        batches = [make_batch(n, [(n, None, b"v" * 1_000)]) for n in (first, first + 1)]
        await world.flush(batches, "object")
    running = asyncio.create_task(world.reader.run())
    await turns()
    read = []
    for offset in range(3):
        await world.reader.read(world.log, offset, ONE, zstd=True)
        await turns()
        read.append(len(world.bucket.gets))

    assert [1, 2, 3] == read
    running.cancel()
    await asyncio.wait([running])


async def test_one_consumer_leaves_half_of_the_memory_to_others() -> None:
    """
    The cache has room for four objects of two batches, and another consumer uses one.  What is
    loaded ahead is in use until it is read: of a consumer of many partitions, those that it asks
    for in its next request would have to wait for those of its last one.
    """
    settings = ReadSettings(
        prefetch_flush_bytes=MiB, flush_cache_bytes=2 * FOUR, hold_ms=10**6, patience_ms=0
    )
    world = World(settings=settings)
    for first in range(0, 40, 2):
        batches = [make_batch(n, [(n, None, b"v" * 1_000)]) for n in (first, first + 1)]
        await world.flush(batches, "object")
    running = asyncio.create_task(world.reader.run())
    await turns()
    for offset in (0, 20, 21):
        await world.reader.read(world.log, offset, ONE, zstd=True)
        await turns()

    assert 3 == len(world.bucket.gets)
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("tier", ["memory", "object"])
async def test_a_read_ahead_ends_where_batches_are_local(tier: str) -> None:
    async with sequential(4, ReadSettings(), then=tier) as (world, _):
        assert ahead(world) == (2 if tier == "memory" else 3)


async def test_a_read_ahead_that_fails_leaves_its_error_to_the_read() -> None:
    """
    The store refuses all it is asked: the consumer is told so when it comes there, and reads on
    when the store is back.
    """
    async with sequential(8, ReadSettings()) as (world, read):
        world.bucket.refuse = 10**6
        assert world.bucket.gate is not None
        world.bucket.gate.set()
        with pytest.raises(UnavailableError):
            await read(2)
        world.bucket.refuse = 0

        assert 3 == await read(2)
