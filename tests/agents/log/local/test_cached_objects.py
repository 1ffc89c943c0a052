"""A consumer that reads a long partition once fills the local disk, or one that comes again reads
the bucket again."""

import asyncio
from pathlib import Path
from random import Random

from driftlog_agents.log.local.cached_objects import CachedObjects
from driftlog_agents.log.local.range_cache import RESERVE_BYTES, RangeCache
from driftlog_agents.log.reading.reader import LogReader
from tests.agents.log.tiers import Bucket, World, make_batch, rows_of

LARGE = 200 * 1024
FLUSH = "flush/s/00000000000000000001-n.flush"


def opened(folder: Path) -> RangeCache:
    return RangeCache(folder / "reads", 10**8, lambda _: 2 * RESERVE_BYTES)


async def test_large_ranges_are_stored_when_they_are_wanted_again(tmp_path: Path) -> None:
    """
    Small ones at once, flush objects never, and a range that the object does not have never.
    """
    bucket = Bucket()
    for key in ("segment", FLUSH):
        await bucket.put(key, [Random(0).randbytes(2 * LARGE)])
    gets: list[int] = []
    for _ in range(4):
        cache = opened(tmp_path)
        objects = CachedObjects(bucket, cache)
        for _ in range(2):
            before = bucket.gets.total()
            for key, start, end in (
                ("segment", 0, LARGE),
                ("segment", 5, 50),
                ("segment", 2 * LARGE - 10, 2 * LARGE + 10),
                (FLUSH, 0, 10),
            ):
                whole = await bucket.get(key)
                assert whole[start:end] == await objects.get(key, start, end)
            gets.append(bucket.gets.total() - before - 4)
        cache.close()

    assert [4, 3, 2, 2, 2, 2, 2, 2] == gets


async def test_a_reader_after_a_restart_asks_the_bucket_for_nothing(tmp_path: Path) -> None:
    """
    And gets the same records; damage on the disk is read from the bucket.
    """
    world = World()
    batch = make_batch(0, [(n, b"%d" % n, Random(n).randbytes(LARGE // 2)) for n in range(4)])
    await world.seal([batch], 4, row_group_bytes=10**6)
    gets: list[int] = []
    for attempt in range(4):
        if attempt == 3:
            for file in (tmp_path / "reads").iterdir():
                file.write_bytes(file.read_bytes()[:-1] + b"?")
        before = world.bucket.gets.total()
        cache = opened(tmp_path)
        objects = CachedObjects(world.bucket, cache)
        for _ in range(2):
            reader = LogReader(
                store=objects, offload=asyncio.to_thread, manifests=world, now_ms=lambda: 0.0
            )
            found = await reader.read(world.log, 0, 10**7, zstd=True)
            assert world.rows == [row for one in found for row in rows_of(one)]
        cache.close()
        gets.append(world.bucket.gets.total() - before)

    assert [3, 0, 0, 3] == gets
