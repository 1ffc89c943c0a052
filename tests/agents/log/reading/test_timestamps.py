"""`LogReader` by time: exact to the record, in every tier."""

import random
from pathlib import Path

import pytest

from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_tiering.batches.batch import Codec, parse_header
from tests.agents.log.tiers import Row, World, make_batch, make_undecodable


def expected_first(rows: list[Row], start: int, target: int) -> tuple[int, int] | None:
    return next(((r[0], r[1]) for r in rows if r[0] >= start and r[1] >= target), None)


def expected_max(rows: list[Row], start: int) -> tuple[int, int] | None:
    after = [r for r in rows if r[0] >= start and r[1] >= 0]
    greatest = max(after, key=lambda r: (r[1], -r[0]), default=None)
    return None if greatest is None else (greatest[0], greatest[1])


async def random_world(rng: random.Random, disk: PosixDisk) -> World:
    """Times that go up and down, so that nothing can be guessed from their order."""
    world = World(disk)

    def batches() -> list[bytes]:
        made, base = [], world.log.high_watermark
        for _ in range(rng.randint(1, 4)):
            center = rng.randint(0, 300)
            records: list[tuple[int, bytes | None, bytes | None]] = [
                (max(0, center + rng.randint(-20, 20)), None, b"v" * rng.choice((1, 200)))
                for _ in range(rng.randint(1, 6))
            ]
            stamp = rng.choice((None, None, center))
            made.append(make_batch(base, records, codec=rng.choice(list(Codec)), append_time=stamp))
            base += len(records)
        return made

    for _ in range(rng.randint(0, 4)):
        sealed = batches()
        await world.seal(sealed, parse_header(sealed[-1]).end_offset)
    if len(world.manifest.segments) > 2:
        await world.store_lists(1, 1)
    for _ in range(rng.randint(0, 4)):
        await world.flush(batches(), rng.choice(("object", "file", "memory")))
    world.log.log_start = rng.choice((0, rng.randint(0, world.log.high_watermark)))
    return world


@pytest.mark.parametrize("seed", range(30))
async def test_lookups_agree_with_a_scan_of_all_records(seed: int, tmp_path: Path) -> None:
    """
    For every time: the first record at or after it, from log start on; and the first with the
    largest time of all.
    """
    disk = PosixDisk(tmp_path / "disk")
    world = await random_world(random.Random(seed), disk)
    start = world.log.log_start

    for target in range(0, 330, 11):
        found = await world.reader.find_timestamp(world.log, target)
        assert expected_first(world.rows, start, target) == (found and found[:2])
    found = await world.reader.max_timestamp(world.log)
    assert expected_max(world.rows, start) == (found and found[:2])
    disk.close()


async def test_the_epoch_is_the_one_that_wrote_the_record() -> None:
    """
    A lookup answers with the historical leader epoch, not the present one.
    """
    world = World()
    await world.flush([make_batch(0, [(10, None, b"a")], epoch=4)], "memory")
    await world.flush([make_batch(1, [(20, None, b"b")], epoch=7)], "memory")

    assert (0, 10, 4) == await world.reader.find_timestamp(world.log, 5)
    assert (1, 20, 7) == await world.reader.find_timestamp(world.log, 11)
    assert (1, 20, 7) == await world.reader.max_timestamp(world.log)
    assert await world.reader.find_timestamp(world.log, 21) is None


async def test_the_epoch_of_what_is_sealed_is_known_before_the_log_is_loaded() -> None:
    """
    The manifest was withheld when the partition was taken over, and is given to the lookup.
    """
    world = World()
    await world.seal([make_batch(0, [(10, None, b"a")])], 1)
    world.log.epochs = []

    assert (0, 10, 0) == await world.reader.find_timestamp(world.log, 5)
    assert (0, 10, 0) == await world.reader.max_timestamp(world.log)


async def test_nothing_uncommitted_is_found() -> None:
    """
    An empty log, and one whose records are not committed, have no time.
    """
    world = World()
    world.log.log_end = 5

    assert await world.reader.find_timestamp(world.log, 0) is None
    assert await world.reader.max_timestamp(world.log) is None


async def test_batches_that_cannot_be_decoded_stand_for_themselves() -> None:
    """
    A lookup that only an undecodable batch can answer leads to its first offset: nothing is
    skipped.
    """
    for sealed in (True, False):
        world = World()
        await world.seal([make_batch(0, [(10, None, b"a")])], 1)
        bad = make_undecodable(1, 3, max_timestamp=50)
        if sealed:
            await world.seal_raw(bad)
        else:
            await world.flush([bad], "memory")

        found = await world.reader.find_timestamp(world.log, 11)
        assert (1, 50) == (found and found[:2])
        found = await world.reader.max_timestamp(world.log)
        assert (1, 50) == (found and found[:2])


async def test_neighbours_that_cannot_be_decoded_are_told_apart_by_time() -> None:
    """
    Of an object of several batches, each stands for itself.
    """
    world = World()
    times = (50, 70, 60, 70)
    await world.seal_raw(*(make_undecodable(3 * i, 3, t) for i, t in enumerate(times)))

    at = [await world.reader.find_timestamp(world.log, t) for t in (50, 51, 70, 71)]
    latest = await world.reader.max_timestamp(world.log)
    world.log.log_start = 7
    after = await world.reader.find_timestamp(world.log, 51)

    assert [(0, 50), (3, 70), (3, 70), None] == [found and found[:2] for found in at]
    assert (3, 70) == (latest and latest[:2])
    assert (7, 60) == (after and after[:2])


async def test_a_lookup_reads_two_columns_and_not_the_segment() -> None:
    """
    One footer and one range of the one row group that can hold the time: two GETs.
    """
    world = World()
    batches = [make_batch(i * 4, [(100 * i, None, b"v" * 300)] * 4) for i in range(10)]
    ref = await world.seal(batches, 40, row_group_bytes=1_500)

    assert (20, 500, 0) == await world.reader.find_timestamp(world.log, 450)
    assert 2 == world.bucket.gets[ref.key]
    assert 0 == world.reader.segments.row_groups_loaded
    assert (36, 900, 0) == await world.reader.max_timestamp(world.log)
    assert 2 == world.bucket.gets[ref.key], "the manifest knows the largest"
