"""What was sealed a moment ago is read from memory and buffer files, as long as these have it."""

import asyncio
import io
from array import array
from dataclasses import replace
from typing import Any
from weakref import ref

import pyarrow.parquet as pq
import pytest

from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.sealed_cache import SealedCache
from driftlog_agents.log.partition.tail import FlushBatches
from tests.agents.log.lives import ONE, SETTINGS, Life, World, on_virtual_time, values_of
from tests.agents.log.sealing.test_policy import make_log


def settings(cache_bytes: int) -> Any:
    """Nothing stays in memory, and so much in buffer files of 500 bytes."""
    return replace(
        SETTINGS,
        memory=MemorySettings(memory_bytes=1),
        buffer=BufferSettings(file_bytes=500, cache_bytes=cache_bytes, disk_bytes=10 * cache_bytes),
    )


def value(n: int) -> bytes:
    return b"%03d" % n * 100


async def sealed(life: Life, first: int, end: int) -> None:
    """Records ``[first, end)`` of 300 bytes, a flush each, and a segment of them."""
    for n in range(first, end):
        assert await life.produce(value(n)).answer() == "committed"
    assert end == await life.seal()


def read(life: Life, offset: int, max_bytes: int = 1 << 20) -> list[bytes] | None:
    """Values that are here, from the record at *offset* on."""
    found = read_local(life.log(), offset, max_bytes)
    if found is None:
        return None
    records = [record for batch in found for record in values_of(batch)]
    assert list(range(offset, offset + len(records))) == [at for at, _, _ in records]
    return [data for _, _, data in records]


@on_virtual_time
async def test_sealed_records_are_read_without_the_bucket() -> None:
    """
    From every offset, into the tail and over it; also after a second segment.
    """
    world = World()
    life = await world.start(settings(1_000_000))
    await sealed(life, 0, 5)
    await sealed(life, 5, 8)
    for n in (8, 9):
        await life.produce(value(n)).answer()
    requests = world.bucket.requests

    for offset in range(10):
        assert [value(n) for n in range(offset, 10)] == read(life, offset)
    assert [value(3)] == read(life, 3, 1)
    assert [value(4), value(5)] == read(life, 4, 800)
    assert read(life, 10) is None
    assert requests == world.bucket.requests


@on_virtual_time
async def test_what_its_file_has_lost_is_the_buckets() -> None:
    """
    Files are used again, oldest first: what they held is asked of the segment, and what follows
    is still here.
    """
    world = World()
    life = await world.start(settings(2_000))
    await sealed(life, 0, 4)
    await sealed(life, 4, 12)

    here = [offset for offset in range(12) if read(life, offset) is not None]

    assert 12 > len(here) > 2
    assert list(range(12 - len(here), 12)) == here
    assert [value(n) for n in here] == read(life, here[0])


@on_virtual_time
async def test_a_file_whose_sync_failed_is_not_read() -> None:
    """
    It stays for what is not committed; what is committed comes from the bucket, for consumers
    and for the segment: the disk may have lost its pages.
    """
    world = World()
    life = await world.start(replace(settings(0), buffer=BufferSettings(file_bytes=10_000)))
    for n in range(3):
        await life.produce(value(n)).answer()
    assert [value(0), value(1), value(2)] == read(life, 0)
    world.bucket.away = True
    life.disk.sync_fails = 1.0
    life.produce(value(3), acks=ONE)
    await asyncio.sleep(1)
    file = life.disk.open_files[0]
    file.pages.data[:] = bytes(len(file.pages.data))

    assert file.alive
    assert read(life, 0) is None
    assert await life.seal() == 3
    assert not life.log().sealed_slices


@pytest.mark.parametrize("older", [True, False])
@on_virtual_time
async def test_what_the_disk_lost_unheard_is_sealed_from_the_bucket(older: bool) -> None:
    """
    Nobody syncs for acks=all: the page of the third batch has what was there before, an older
    batch of the same size, or nothing.
    """
    world = World()
    life = await world.start(settings(1_000_000))
    for n in range(6):
        await life.produce(value(n)).answer()
    first, lost = life.disk.open_files[:2]
    size = lost.size
    lost.pages.data[:size] = first.pages.data[:size] if older else bytes(size)

    assert await life.seal() == 6

    (key,) = [
        info.key
        async for page in world.bucket.list("topics/t/")
        for info in page.objects
        if info.key.endswith(".parquet")
    ]
    segment = pq.read_table(io.BytesIO(await world.bucket.get(key)), columns=["offset", "value"])
    expected = [(n, value(n)) for n in range(6)]
    assert expected == list(zip(*(c.to_pylist() for c in segment.columns), strict=True))


@on_virtual_time
async def test_nothing_is_remembered_for_ever() -> None:
    """
    Not more memory than the limit (1,240 bytes for one batch), nothing of files that are gone,
    nothing of deleted topics.
    """
    world = World()
    life = await world.start(settings(1_000_000))
    cache = life.engine.sealer.sealed_cache = SealedCache(max_bytes=3 * 1_240)
    await sealed(life, 0, 10)
    assert [value(7), value(8), value(9)] == read(life, 7)
    assert read(life, 6) is None
    log = life.log()

    for file in life.disk.open_files:
        file.alive = False
    cache.trim()
    assert (None, []) == (read(life, 9), log.sealed_slices)

    await life.produce(value(10)).answer()
    assert await life.seal() == 11
    assert log.sealed_slices
    log.state = State.CLOSED
    cache.trim()
    assert not log.sealed_slices


@on_virtual_time
async def test_what_was_compacted_is_not_read_from_its_local_copy() -> None:
    """
    Its slices are forgotten, of its partition alone; later ones are read as before.
    """
    world = World()
    life = await world.start(settings(1_000_000))
    await sealed(life, 0, 3)
    await sealed(life, 3, 6)
    assert [value(n) for n in range(6)] == read(life, 0)

    life.engine.sealer.sealed_cache.forget(life.log(), 3)

    assert read(life, 0) is None
    assert read(life, 2) is None
    assert [value(n) for n in range(3, 6)] == read(life, 3)
    await sealed(life, 6, 8)
    assert [value(n) for n in range(3, 8)] == read(life, 3)


class Weak(FlushBatches):
    """Of one record in memory; a test sees whether something holds it."""

    @classmethod
    def of(cls, offset: int) -> "Weak":
        made = cls(
            session_id="s",
            base_offsets=array("q", [offset]),
            lengths=array("i", [1]),
            positions=array("i", [0]),
            max_timestamps_ms=array("q", [0]),
        )
        made.views = [b"x"]
        return made


def remembered(cache: SealedCache, log: PartitionLog, first: int, end: int) -> "list[ref[Weak]]":
    """Slices ``[first, end)`` of a record each, sealed; and what holds their data from now on."""
    held = []
    for offset in range(first, end):
        data = Weak.of(offset)
        log.restore(TailSlice(offset, offset + 1, data, 0, 1, 1, StoredAt("flush", 0)), 0)
        cache.add(log, log.seal(offset + 1))
        held.append(ref(data))
    return held


def test_what_was_compacted_takes_no_memory_behind_what_is_still_here() -> None:
    """
    The partitions that are compacted are forgotten every few minutes; an older slice of another one
    stays for hours.
    """
    cache, compacted = SealedCache(), make_log()
    older, newer = make_log(), make_log()
    stay = remembered(cache, older, 0, 3)
    gone = []
    for end in range(10, 1_000, 10):
        gone += remembered(cache, compacted, end - 10, end)
        cache.forget(compacted, end)
    stay += remembered(cache, newer, 0, 3)

    assert 3 >= sum(each() is not None for each in gone)
    assert [3, 0, 3] == [len(log.sealed_slices) for log in (older, compacted, newer)]
    for log in (older, newer):
        log.state = State.CLOSED
    cache.trim()
    assert [None] * 6 == [each() for each in stay]
