"""A consumer that reads a long partition once fills the local disk, one that comes again reads the
bucket again, or damage that was repaired in the bucket stays on the disk."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from driftlog_agents.log.local.cached_objects import CachedObjects
from driftlog_agents.log.local.range_cache import RESERVE_BYTES, RangeCache
from driftlog_agents.log.objects.availability import DamagedObjectError
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


async def test_an_object_that_is_read_whole_is_stored_at_once(tmp_path: Path) -> None:
    """
    A list of segments; an entry that was cut or changed on the disk is read from the bucket.
    """
    bucket = Bucket()
    await bucket.put("list", [Random(0).randbytes(LARGE)])
    whole = await bucket.get("list")
    gets: list[int] = []
    for damage in (bytes, bytes, lambda entry: entry[:-1], lambda entry: entry[:10]):
        for file in tmp_path.glob("reads/*"):
            file.write_bytes(damage(file.read_bytes()))
        before = bucket.gets.total()
        cache = opened(tmp_path)
        assert whole == await CachedObjects(bucket, cache).get("list")
        cache.close()
        gets.append(bucket.gets.total() - before)

    assert [1, 0, 1, 1] == gets


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


def in_rows(body: bytes) -> bytes:
    return body[:200_000] + bytes([body[200_000] ^ 1]) + body[200_001:]


def in_trailer(body: bytes) -> bytes:
    return body[:-1] + b"?"


def in_footer(body: bytes) -> bytes:
    """A footer that can be decoded, and has another checksum of the rows."""
    at = body.index(b'"row_group_crcs": [') + 19
    return body[:at] + (b"2" if body[at : at + 1] == b"1" else b"1") + body[at + 1 :]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("damage", [in_rows, in_trailer, in_footer])
async def test_damage_that_was_repaired_in_the_bucket_is_read_once_more(
    tmp_path: Path, damage: Callable[[bytes], bytes], restarts: bool
) -> None:
    """
    Memory and disk had the damaged bytes; the first read after the repair has the records, and so
    have those after a restart, from the disk.
    """
    world = World()
    batch = make_batch(0, [(n, b"%d" % n, Random(n).randbytes(LARGE // 2)) for n in range(4)])
    key = (await world.seal([batch], 4, row_group_bytes=10**6)).key
    whole = await world.bucket.get(key)

    async def stored(body: bytes) -> None:
        await world.bucket.delete([key])
        await world.bucket.put(key, [body])

    def opened_reader() -> tuple[RangeCache, LogReader]:
        cache = opened(tmp_path)
        store = CachedObjects(world.bucket, cache)
        return cache, LogReader(
            store=store, offload=asyncio.to_thread, manifests=world, now_ms=lambda: 0.0
        )

    async def read(reader: LogReader) -> bool:
        found = await reader.read(world.log, 0, 10**7, zstd=True)
        return world.rows == [row for one in found for row in rows_of(one)]

    await stored(damage(whole))
    cache, reader = opened_reader()
    for _ in range(3):
        with pytest.raises(DamagedObjectError):
            await read(reader)
    if restarts:
        cache.close()
        cache, reader = opened_reader()
    await stored(whole)
    found = [await read(reader)]
    for _ in range(3):
        cache.close()
        cache, reader = opened_reader()
        found += [await read(reader), await read(reader)]
    cache.close()

    assert [True] * 7 == found
    assert 0 < cache.hits
