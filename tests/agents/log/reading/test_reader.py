"""`LogReader`: what was produced is what is read, wherever it lies meanwhile."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import accumulate
from pathlib import Path
from typing import cast

import pytest

from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.objects.availability import DamagedObjectError, ObjectUnavailableError
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.reading.read_plan import OffsetOutOfRangeError, holds_zstd
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import Codec, parse_header
from driftlog_tiering.formats.manifest import SetLogStart
from driftlog_tiering.formats.manifest_edits import Applied, apply
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import footer_start
from tests.agents.log.tiers import World, make_batch, make_undecodable, rows_of
from tests.support.clusters import AUTHOR

MiB = 1 << 20
EVERY_SIZE = (0, 1, 200, 700, 5_000, 10**6)


def random_batches(rng: random.Random, base: int, count: int) -> list[bytes]:
    batches = []
    for _ in range(count):
        records = [
            (
                rng.randint(1_000, 2_000),
                rng.choice((None, b"", b"k")),
                rng.choice((None, b"", rng.randbytes(rng.choice((3, 60, 400))))),
            )
            for _ in range(rng.randint(1, 5))
        ]
        batches.append(
            make_batch(
                base,
                records,
                codec=rng.choice(list(Codec)),
                append_time=rng.choice((None, None, rng.randint(1_000, 2_000))),
            )
        )
        base += len(records)
    return batches


def end_of(batches: list[bytes]) -> int:
    return parse_header(batches[-1]).end_offset


async def random_world(rng: random.Random, disk: PosixDisk) -> World:
    world = World(disk, ReadSettings(read_ahead_bytes=rng.choice((1, 500, 10**6))))
    for _ in range(rng.randint(0, 4)):
        match rng.choice(("segment", "segment", "raw", "nothing")):
            case "segment":
                batches = random_batches(rng, world.manifest.end, rng.randint(1, 6))
                kept = [b for b in batches if rng.random() < 0.8]
                await world.seal(kept, end_of(batches) + rng.choice((0, 0, 4)))
            case "raw":
                counts = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
                bases = accumulate(counts, initial=world.manifest.end)
                await world.seal_raw(*map(make_undecodable, bases, counts))
            case _:
                world.seal_nothing(world.manifest.end + rng.randint(1, 5))
    if len(world.manifest.segments) > 2:
        await world.store_lists(1, 1)
    for _ in range(rng.randint(0, 5)):
        batches = random_batches(rng, world.log.high_watermark, rng.randint(1, 6))
        await world.flush(batches, rng.choice(("object", "object", "file", "memory")))
    return world


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    return PosixDisk(tmp_path / "disk")


@pytest.mark.parametrize("seed", range(40))
async def test_every_offset_reads_the_log_to_its_end(seed: int, disk: PosixDisk) -> None:
    """
    From every offset, with every limit and codec, a consumer gets exactly the records from
    there on, dense to the high watermark; the batches of the tail byte by byte.
    """
    rng = random.Random(seed)
    world = await random_world(rng, disk)

    for start in range(world.log.high_watermark):
        size, codec = rng.choice(EVERY_SIZE), rng.choice((None, *Codec))
        found = await world.consume(start, size, zstd=rng.random() < 0.5, codec=codec)

        rows = [row for b in found for row in rows_of(b) if row[0] >= start]
        assert [row for row in world.rows if row[0] >= start] == rows
        tail = [bytes(b) for b in found if parse_header(b).base_offset >= world.manifest.end]
        end = [b for b in world.batches if parse_header(b).end_offset > start]
        assert end == tail[len(tail) - len(end) :]
    disk.close()


async def test_log_start_and_the_end_bound_what_is_read(disk: PosixDisk) -> None:
    """
    Below log start and above the log's end an offset is out of range; from the high watermark
    to the log's end there is nothing yet.
    """
    world = World(disk)
    await world.flush([make_batch(0, [(1, None, b"a")] * 4)], "memory")
    world.log.log_start = 2
    world.log.log_end = 6

    for offset in (0, 1, 7):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await world.reader.read(world.log, offset, 100, zstd=True)
        assert ErrorCode.OFFSET_OUT_OF_RANGE == caught.value.code
    for offset in (4, 5, 6):
        assert [] == await world.reader.read(world.log, offset, 100, zstd=True)
    assert 1 == len(await world.reader.read(world.log, 2, 100, zstd=True))
    disk.close()


async def test_what_retention_removed_is_out_of_range_and_not_a_gap() -> None:
    """
    Where the manifest's log start is ahead of the partition's, offsets below it are refused.
    """
    world = World()
    await world.seal([make_batch(0, [(1, None, b"old")])], 1)
    await world.seal([make_batch(1, [(2, None, b"new")])], 2)
    step = apply(world.manifest, SetLogStart(1), "n", AUTHOR)
    assert isinstance(step, Applied)
    world.manifest = step.manifest

    with pytest.raises(OffsetOutOfRangeError):
        await world.reader.read(world.log, 0, 100, zstd=True)
    assert [b"new"] == [row[4] for b in await world.consume(1, 100) for row in rows_of(b)]
    assert (1, 2, 0) == await world.reader.find_timestamp(world.log, 0)


async def test_local_reads_go_over_slices_and_stop_where_data_is_not_local(
    disk: PosixDisk,
) -> None:
    """
    A synchronous read joins memory and buffer files, and says None only where its first
    batch is in the bucket alone.
    """
    world = World(disk)
    batches = [make_batch(i, [(1, None, b"v" * 90)]) for i in range(40)]
    await world.seal([make_batch(0, [(1, None, b"s")])], 1)
    await world.flush(batches[1:10], "file")
    await world.flush(batches[10:20], "memory")
    await world.flush(batches[20:30], "object")
    await world.flush(batches[30:], "memory")

    def local(offset: int, max_bytes: int = 10**6) -> list[bytes] | None:
        found = read_local(world.log, offset, max_bytes)
        return found if found is None else [bytes(batch) for batch in found]

    size = len(batches[0])
    assert local(0) is None
    assert local(1) == batches[1:20]
    assert local(4, 3 * size) == batches[4:7]
    assert local(4, 3 * size + 1) == batches[4:7]
    assert local(4, 3 * size - 1) == batches[4:6]
    assert local(8, 5 * size) == batches[8:13]
    assert local(8, 0) == batches[8:9]
    assert local(20) is None
    assert local(30) == batches[30:]
    assert local(40) is None
    disk.close()


@pytest.mark.parametrize(("value_bytes", "kept"), [(500, bytes), (3_000, memoryview)])
async def test_small_batches_do_not_keep_the_buffer_of_their_read(
    disk: PosixDisk, value_bytes: int, kept: type
) -> None:
    """
    Read at once into memory that is used again, and copied out of it; larger ones are views.
    """
    world = World(disk)
    batches = [make_batch(i, [(1, None, b"v" * value_bytes)]) for i in range(100)]
    await world.flush(batches, "file")

    found = read_local(world.log, 0, 10**6)

    assert found is not None
    assert batches == [bytes(batch) for batch in found]
    assert {kept} == {type(batch) for batch in found}
    disk.close()


async def test_batches_of_a_recycled_file_come_from_the_bucket(disk: PosixDisk) -> None:
    """
    A buffer file that is given up under a reader costs a GET, and never its bytes.
    """
    world = World(disk)
    batches = [make_batch(i, [(1, None, b"v")]) for i in range(6)]
    tail = await world.flush(batches, "file")
    assert read_local(world.log, 0, 10**6) is not None

    disk.remove_file(cast(FlushBatches, tail.data).files[0])

    assert read_local(world.log, 0, 10**6) is None
    assert batches == [bytes(b) for b in await world.consume(0, 10**6)]
    assert 1 == world.bucket.gets[tail.stored_at.object_key]
    disk.close()


async def test_walking_a_flush_object_costs_one_get_per_piece() -> None:
    """
    A consumer who takes batch after batch from the bucket pays for the read-ahead, not for each.
    """
    batches = [make_batch(i, [(1, None, b"v" * 100)]) for i in range(100)]
    size = len(batches[0])
    world = World(settings=ReadSettings(read_ahead_bytes=25 * size))
    tail = await world.flush(batches, "object")

    assert batches == [bytes(b) for b in await world.consume(0, 1)]
    assert 4 == world.bucket.gets[tail.stored_at.object_key]


async def test_codec_is_the_producers_and_zstd_only_where_it_is_read() -> None:
    """
    ``compression.type=producer`` gives back what was produced; a client that cannot read zstd
    gets plain batches instead.
    """
    world = World()
    batch = make_batch(0, [(1, b"k", b"v" * 500)] * 20, codec=Codec.ZSTD)
    await world.seal([batch], 20)

    async def codecs(*, zstd: bool, codec: Codec | None) -> set[int]:
        found = await world.consume(0, 10**6, zstd=zstd, codec=codec)
        assert world.rows == [row for b in found for row in rows_of(b)]
        return {parse_header(b).codec_id for b in found}

    assert {Codec.ZSTD} == await codecs(zstd=True, codec=None)
    assert {Codec.NONE} == await codecs(zstd=False, codec=None)
    assert {Codec.LZ4} == await codecs(zstd=False, codec=Codec.LZ4)
    assert {Codec.NONE} == await codecs(zstd=False, codec=Codec.ZSTD)
    assert holds_zstd([batch])
    assert not holds_zstd([make_batch(0, [(1, None, b"v")], codec=Codec.LZ4)])


async def together(count: int, read: Callable[[], Awaitable[list[Buffer]]]) -> list[list[Buffer]]:
    return list(await asyncio.gather(*(read() for _ in range(count))))


async def test_concurrent_readers_share_one_get_and_one_decode() -> None:
    """
    Of ten consumers at one place one fetches and decodes, and all get it.
    """
    world = World()
    sealed = [make_batch(i * 4, [(1, None, b"v" * 50)] * 4) for i in range(10)]
    ref = await world.seal(sealed, 40, row_group_bytes=10**6)
    tail = await world.flush([make_batch(40, [(1, None, b"t")])], "object")

    found = await together(10, lambda: world.reader.read(world.log, 8, 10**6, zstd=True))
    tails = await together(10, lambda: world.reader.read(world.log, 40, 10**6, zstd=True))

    assert {32} == {sum(parse_header(b).record_count for b in batches) for batches in found}
    assert 2 == world.bucket.gets[ref.key], "the footer and the row group"
    assert 1 == world.reader.segments.row_groups_loaded
    assert [[b"t"]] * 10 == [[row[4] for b in batches for row in rows_of(b)] for batches in tails]
    assert 1 == world.bucket.gets[tail.stored_at.object_key]


async def test_a_reader_who_goes_away_takes_nobody_with_him() -> None:
    """
    When the one who fetches for all is cancelled, the next one fetches.
    """
    world = World()
    tail = await world.flush([make_batch(0, [(1, None, b"t")])], "object")
    world.bucket.gate = asyncio.Event()
    first = asyncio.create_task(world.reader.read(world.log, 0, 100, zstd=True))
    await asyncio.sleep(0)
    second = asyncio.create_task(world.reader.read(world.log, 0, 100, zstd=True))
    await asyncio.sleep(0)

    first.cancel()
    world.bucket.gate.set()

    assert 1 == len(await second)
    assert first.cancelled()
    assert 2 == world.bucket.gets[tail.stored_at.object_key]


async def test_sealing_under_a_reader_changes_nothing() -> None:
    """
    A read that waits for a flush object while its slice is sealed, dropped and its partition
    goes on, gets its batches.
    """
    world = World()
    batches = [make_batch(i, [(1, None, b"t")]) for i in range(3)]
    await world.flush(batches, "object")
    world.bucket.gate = asyncio.Event()
    read = asyncio.create_task(world.reader.read(world.log, 1, 1000, zstd=True))
    await asyncio.sleep(0)

    await world.seal(batches, 3)
    assert [] == world.log.slices
    world.bucket.gate.set()

    assert batches[1:] == [bytes(b) for b in await read]


async def test_a_partition_closed_under_a_reader_is_not_led_here() -> None:
    """
    Who waited for the bucket while the partition was released is sent to its new leader.
    """
    world = World()
    await world.flush([make_batch(0, [(1, None, b"t")])], "object")
    world.bucket.gate = asyncio.Event()
    read = asyncio.create_task(world.reader.read(world.log, 0, 1000, zstd=True))
    await asyncio.sleep(0)

    world.log.close()
    world.bucket.gate.set()

    for attempt in (read, world.reader.read(world.log, 0, 1000, zstd=True)):
        with pytest.raises(RefusedError) as caught:
            await attempt
        assert ErrorCode.NOT_LEADER_OR_FOLLOWER == caught.value.code


# ── Failures ──


async def test_a_footer_counts_what_it_takes() -> None:
    """
    One of many row groups takes megabytes: hundreds of them in memory would end the agent.
    """
    world = World(None, ReadSettings(index_cache_bytes=600_000))
    refs = []
    for start in (0, 60):
        batches = [make_batch(start + n, [(1, None, b"v" * 300)]) for n in range(60)]
        refs.append(await world.seal(batches, start + 60))

    for offset in (0, 60, 0, 60):
        assert await world.reader.read(world.log, offset, 1, zstd=True)

    gets = [world.bucket.gets[ref.key] for ref in refs]
    assert [2 + 1] * 2 == gets, "each footer again, and the row group"


async def test_refused_requests_are_repeated_then_told() -> None:
    """
    A store that refuses twice is asked three times; one that goes on gives a retriable error.
    """
    world = World()
    await world.flush([make_batch(0, [(1, None, b"t")])], "object")

    world.bucket.refuse = 3
    with pytest.raises(UnavailableError):
        await world.reader.read(world.log, 0, 1000, zstd=True)
    world.bucket.refuse = 2
    assert 1 == len(await world.reader.read(world.log, 0, 1000, zstd=True))
    assert 0 == world.reader.damaged_reads


async def test_a_store_that_does_not_answer_is_given_up() -> None:
    """
    Every request has a deadline: a read ends although its GETs never do.
    """
    settings = ReadSettings(request_deadline_ms=5, retry_backoff_ms=0)
    world = World(settings=settings)
    tail = await world.flush([make_batch(0, [(1, None, b"t")])], "object")
    world.bucket.gate = asyncio.Event()

    with pytest.raises(UnavailableError):
        await world.reader.read(world.log, 0, 1000, zstd=True)
    assert settings.attempts == world.bucket.gets[tail.stored_at.object_key]


async def test_an_object_that_was_replaced_is_looked_up_again() -> None:
    """
    A flush object that is gone because its batches are sealed costs a second look, no error.
    """
    world = World()
    batches = [make_batch(i, [(1, None, b"t%d" % i)]) for i in range(3)]
    tail = await world.flush(batches, "object")
    await world.bucket.delete([tail.stored_at.object_key])
    manifest = world.manifest
    await world.seal(batches, 3)
    sealed, world.manifest = world.manifest, manifest
    world.log.slices.clear()

    def learn() -> None:
        world.manifest = sealed

    world.refreshed = learn

    found = await world.reader.read(world.log, 0, 10**6, zstd=True)
    assert [b"t0", b"t1", b"t2"] == [row[4] for b in found for row in rows_of(b)]


async def test_what_is_lost_or_damaged_is_named() -> None:
    """
    A missing or damaged object fails the read with its name; nothing is skipped.
    """

    async def fails(world: World, offset: int, key: str) -> DamagedObjectError:
        if key not in [info.key async for page in world.bucket.list("") for info in page.objects]:
            with pytest.raises(ObjectUnavailableError, match=key):  # it may be a moment's
                await world.reader.read(world.log, offset, 10**6, zstd=True)
            world.now_ms += 31_000
        with pytest.raises(DamagedObjectError) as caught:
            await world.reader.read(world.log, offset, 10**6, zstd=True)
        assert key == caught.value.key
        assert key in str(caught.value)
        assert 1 <= world.reader.damaged_reads <= 2
        return caught.value

    for damage in ("missing", "bits", "cut"):
        for part in ("segment", "raw", "list", "flush"):
            world = World()
            refs = [
                await world.seal([make_batch(0, [(1, None, b"s" * 100)] * 3)], 3),
                await world.seal_raw(make_undecodable(3, 1)),
            ]
            if part == "list":
                await world.store_lists(1, 1)
            tail = await world.flush([make_batch(4, [(1, None, b"t")])], "object")
            key, offset = {
                "segment": (refs[0].key, 0),
                "raw": (refs[1].key, 3),
                "list": (world.manifest.lists[0].key if part == "list" else "", 0),
                "flush": (tail.stored_at.object_key, 4),
            }[part]
            if damage == "missing":
                await world.bucket.delete([key])
            elif damage == "bits":
                world.bucket.damage = (
                    lambda k, body, key=key: (  # type: ignore[misc]
                        body[: len(body) // 2] + bytes(255 - b for b in body[len(body) // 2 :])
                        if k == key
                        else body
                    )
                )
            else:
                world.bucket.damage = (
                    lambda k, body, key=key: (  # type: ignore[misc]
                        body[:-1] if k == key else body
                    )
                )

            error = await fails(world, offset, key)
            assert (damage == "missing") == str(error).endswith(": missing")


async def test_a_flipped_bit_of_a_footer_fails_only_the_read() -> None:
    """
    Arrow would end the agent at some of them, and each agent that the consumer asks next.
    """
    rng = random.Random(11)
    for _ in range(40):
        world = World()
        ref = await world.seal([make_batch(0, [(1, None, b"a" * 100)] * 9)], 9)
        start = footer_start(await world.bucket.get(ref.key), ref.size_bytes)
        at, bit = rng.randrange(start, ref.size_bytes), rng.randrange(8)
        body = bytearray(await world.bucket.get(ref.key))
        body[at] ^= 1 << bit
        await world.bucket.delete([ref.key])
        await world.bucket.put(ref.key, [body])

        with pytest.raises(DamagedObjectError, match=ref.key):
            await world.reader.read(world.log, 0, 10**6, zstd=True)


async def test_segments_of_others_are_damage() -> None:
    """
    A segment of another range is refused, also where no CRC of its footer is known.
    """
    world = World()
    first = await world.seal([make_batch(0, [(1, None, b"a" * 10)])], 1, footer_crc=False)
    second = await world.seal([make_batch(1, [(1, None, b"b" * 10)])], 2)
    body = await world.bucket.get(second.key)
    await world.bucket.delete([first.key])
    await world.bucket.put(first.key, [body[: first.size_bytes].ljust(first.size_bytes, b"\0")])
    assert first.size_bytes == second.size_bytes

    with pytest.raises(DamagedObjectError, match="the object is the segment"):
        await world.reader.read(world.log, 0, 100, zstd=True)


# ── Reading ahead, and many readers ──


async def turns() -> None:
    """Let everything run that waits for nothing."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_who_reads_on_finds_the_next_row_group_there() -> None:
    """
    The second fetch in a row loads its row group and the next two before they are asked for;
    a single fetch loads only its own.
    """
    world = World()
    batches = [make_batch(i * 4, [(1, None, b"v" * 100)] * 4) for i in range(12)]
    await world.seal(batches, 48, row_group_bytes=900)
    running = asyncio.create_task(world.reader.run())
    await asyncio.sleep(0)

    first = await world.reader.read(world.log, 0, 200, zstd=True)
    await turns()
    assert 1 == world.reader.segments.row_groups_loaded
    end = parse_header(first[-1]).end_offset
    await world.reader.read(world.log, end, 200, zstd=True)
    await turns()
    assert 1 + 1 + 2 == world.reader.segments.row_groups_loaded
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 1 == world.reader.prefetches


async def test_more_readers_than_memory_take_turns_instead_of_thrashing() -> None:
    """
    Eight consumers on a budget of two row groups: each row group is loaded once or twice, not
    once per fetch.
    """
    world = World(
        settings=ReadSettings(row_group_cache_bytes=9_000, prefetch_row_groups=0, batch_bytes=200)
    )
    batches = [make_batch(i * 4, [(1, None, b"v" * 200)] * 4) for i in range(32)]
    await world.seal(batches, 128, row_group_bytes=3_400)
    groups = 8

    async def consumer(start: int) -> None:
        offset = start
        while offset < start + 16:
            for batch in await world.reader.read(world.log, offset, 300, zstd=True):
                offset = parse_header(batch).end_offset

    async with asyncio.timeout(20):
        await asyncio.gather(*(consumer(16 * i) for i in range(groups)))

    assert world.reader.segments.row_groups_loaded <= 2 * groups


async def test_a_log_that_is_offline_says_so() -> None:
    """
    A partition whose parts do not join is refused with the reason.
    """
    log = PartitionLog(topic="t", topic_id=World().log.topic_id, partition=0, leader_epoch=1)
    log.state, log.offline_reason = State.OFFLINE, "a gap"

    with pytest.raises(RefusedError, match="a gap") as caught:
        await World().reader.read(log, 0, 100, zstd=True)
    assert ErrorCode.KAFKA_STORAGE_ERROR == caught.value.code


async def test_a_large_row_group_in_memory_is_read_without_a_turn(disk: PosixDisk) -> None:
    """
    Each fetch would wait for a rewrite, which holds its turn for seconds.  A row group is loaded,
    and a record of tens of megabytes is encoded, in a turn all the same.
    """
    world = World(disk, ReadSettings(prefetch_row_groups=0, row_group_cache_bytes=128 * MiB))
    small, large = [(1, None, b"v" * MiB)] * 40, [(1, None, b"v" * 40 * MiB)]
    await world.seal([make_batch(0, small)], 40)
    await world.seal([make_batch(40, large)], 41)

    async def read(offset: int) -> int:
        (batch,) = await world.reader.read(world.log, offset, 1, codec=Codec.NONE, zstd=True)
        return parse_header(batch).end_offset

    async with world.decoding.large():
        loading = [asyncio.create_task(read(offset)) for offset in (0, 40)]
        await turns()
        assert 2 == len(world.bucket.gets)
        assert not any(task.done() for task in loading)
    assert [1, 41] == await asyncio.gather(*loading)
    async with world.decoding.large():
        async with asyncio.timeout(5):
            assert 8 == await read(7)
        encoding = asyncio.create_task(read(40))
        await turns()
        assert not encoding.done()
    assert 41 == await encoding
    disk.close()
