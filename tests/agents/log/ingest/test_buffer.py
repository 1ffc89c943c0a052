"""Buffer files keep what was acknowledged on full disks and when syncs fail."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from tests.agents.log.lives import ONE, SETTINGS, Life, World, on_virtual_time
from tests.simulation.sim_disk import SimBufferFile, SimDisk


def numbers(life: Life) -> list[int]:
    """Of the session's files, as they are on the disk."""
    return sorted(life.world.platter.sessions[life.session_id])


def refused(life: Life, **options: Any) -> bool:
    """Whether acks=1 is refused with the storage error, and takes no offset then."""
    end = life.log(options.get("partition", 0)).log_end
    try:
        life.produce(b"refused?", acks=ONE, **options)
    except RefusedError as refusal:
        same_end = life.log(options.get("partition", 0)).log_end == end
        return refusal.code is ErrorCode.KAFKA_STORAGE_ERROR and same_end
    return False


# ── A sync that failed ──


@on_virtual_time
async def test_acks_1_is_not_answered_by_a_sync_that_failed() -> None:
    """
    It waits for the commit instead, whatever is synced meanwhile.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    life.disk.sync_fails = 1.0
    first, second = life.produce(b"a", acks=ONE), life.produce(b"b", acks=ONE, partition=1)
    await asyncio.sleep(0.1)
    life.disk.sync_fails = 0.0
    await asyncio.sleep(10)
    later = life.produce(b"all", partition=1)
    await asyncio.sleep(10)
    assert [[], [], []] == [first.told, second.told, later.told]

    world.bucket.away = False

    assert ["committed"] * 3 == [await each.answer() for each in (first, second, later)]


@on_virtual_time
async def test_acks_1_is_refused_after_a_failed_sync_and_taken_again_on_a_new_file() -> None:
    """
    Refused while nobody has tried again; then the next file vouches for itself, and acks=all went
    on all the time.
    """
    world = World()
    life = await world.start()
    life.disk.sync_fails = 1.0
    request = life.produce(b"a", acks=ONE)
    await asyncio.sleep(0.1)
    failed = numbers(life)
    assert refused(life)
    assert await request.answer() == "committed"
    assert await life.produce(b"b").answer() == "committed"
    life.disk.sync_fails = 0.0
    assert refused(life)
    await asyncio.sleep(1)

    assert await life.produce(b"c", acks=ONE).answer() == "synced"
    assert await life.produce(b"d", acks=ONE, partition=1).answer() == "synced"
    assert not set(failed) & set(numbers(life))


@on_virtual_time
async def test_a_disk_that_only_fails_syncs_promises_nothing() -> None:
    """
    Each second one request finds out, and waits for the commit; the others are refused.
    """
    world = World()
    life = await world.start()
    life.disk.sync_fails = 1.0
    told: list[str] = []
    refusals = 0
    for _ in range(100):
        await asyncio.sleep(0.1)
        try:
            request = life.produce(b"x", acks=ONE)
        except RefusedError:
            refusals += 1
        else:
            told.append(await request.answer())

    assert {"committed"} == set(told)
    assert refusals > 50


@on_virtual_time
async def test_no_later_file_vouches_for_one_whose_sync_failed() -> None:
    """
    Partition 1 has an uncommitted batch in the failed file: what is behind it, in a file that was
    synced, is no promise without it.  When the bucket has the failed file's batches it is.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    life.produce(b"in the failed file", partition=1)
    life.disk.sync_fails = 1.0
    life.produce(b"fails", acks=ONE)
    await asyncio.sleep(2)
    life.disk.sync_fails = 0.0
    behind = life.produce(b"behind", acks=ONE, partition=1)
    await asyncio.sleep(60)
    assert [] == behind.told
    world.bucket.away = False

    assert await behind.answer() == "committed"
    assert await life.produce(b"new", acks=ONE, partition=1).answer() == "synced"


@on_virtual_time
async def test_a_partition_whose_sync_failed_refuses_acks_1_until_it_is_committed() -> None:
    """
    Longer than the disk is left alone: what is behind an unsafe batch cannot be safer.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    life.disk.sync_fails = 1.0
    request = life.produce(b"a", acks=ONE)
    await asyncio.sleep(30)
    life.disk.sync_fails = 0.0
    assert refused(life)
    world.bucket.away = False
    assert await request.answer() == "committed"

    assert await life.produce(b"b", acks=ONE).answer() == "synced"


@on_virtual_time
async def test_what_is_committed_needs_no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Neither before one nor after one that fails when the bucket was quicker.
    """
    world = World()
    life = await world.start(replace(SETTINGS, buffer=BufferSettings(file_bytes=1)))
    await life.produce(b"a").answer()
    await life.produce(b"b").answer()
    await life.produce(b"c", acks=ONE).answer()
    assert life.engine.counters.buffer_syncs == 1

    async def sync(self: SimBufferFile) -> None:
        await asyncio.sleep(10)
        raise UnavailableError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(SimBufferFile, "sync", sync)
        assert await life.produce(b"d", acks=ONE).answer() == "synced"
    assert life.log().high_watermark == 4
    assert await life.produce(b"e", acks=ONE).answer() == "synced"


@pytest.mark.parametrize("used_again", [True, False])
@on_virtual_time
async def test_a_file_is_neither_used_again_nor_deleted_during_its_sync(
    used_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The bucket was quicker, so it is only cache: but the sync's failure would be told of the old
    file, and the next sync of the one in its pages would pass.  It is deleted afterwards.
    """
    world = World()
    budget = {"cache_bytes": 1} if used_again else {"disk_bytes": 1}
    buffer = BufferSettings(file_bytes=1, **budget)
    life = await world.start(replace(SETTINGS, buffer=buffer))

    async def sync(self: SimBufferFile) -> None:
        await asyncio.sleep(10)
        self.trusted = False
        raise UnavailableError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(SimBufferFile, "sync", sync)
        request = life.produce(b"a", acks=ONE)
        for n in range(5):
            assert await life.produce(b"%d" % n).answer() == "committed"
        syncing = life.disk.open_files[0]
        assert ([], True, 1) == (request.told, syncing.alive, numbers(life)[0])
        assert await request.answer() == "synced"

    assert not syncing.alive
    assert numbers(life)[0] > 1
    assert await life.produce(b"b", acks=ONE).answer() == "synced"


@on_virtual_time
async def test_a_file_whose_sync_failed_is_deleted_and_not_used_again() -> None:
    """
    Not written over either, as others are: its pages may lie as well.  It stays while it is the
    only place of something, and reads of it go to the bucket afterwards.
    """
    world = World()
    small = replace(
        SETTINGS,
        buffer=BufferSettings(file_bytes=100, cache_bytes=1),
        memory=MemorySettings(memory_bytes=1),
    )
    life = await world.start(small)
    life.disk.sync_fails = 1.0
    world.bucket.away = True
    request = life.produce(b"a" * 100, acks=ONE)
    await asyncio.sleep(0.1)
    (failed,) = numbers(life)
    file = life.disk.open_files[0]
    world.bucket.away = False
    assert await request.answer() == "committed"
    assert ([], False) == (numbers(life), file.alive)
    life.disk.sync_fails = 0.0
    await asyncio.sleep(1)

    for n in range(5):
        assert await life.produce(b"%d" % n * 100, acks=ONE).answer() == "synced"
        await life.committed()
    assert failed not in numbers(life)
    assert [n for n, _, _ in await life.committed()] == list(range(6))


async def behind_an_outage(world: World) -> Life:
    """An agent whose bucket is away, with one flush that waits for it and hardly any memory."""
    tight = replace(SETTINGS, memory=MemorySettings(memory_bytes=100))
    tight = replace(tight, flush=replace(tight.flush, max_uploads=1, flush_bytes=300))
    life = await world.start(tight)
    world.bucket.away = True
    life.produce(b"in the way" * 40)
    await asyncio.sleep(0.1)
    return life


@on_virtual_time
async def test_memory_is_not_given_up_for_a_file_whose_sync_failed() -> None:
    """
    What waits for the bucket is uploaded from memory: the file may have lost it.
    """
    world = World()
    life = await behind_an_outage(world)
    life.disk.sync_fails = 1.0
    request = life.produce(b"good", acks=ONE)
    await asyncio.sleep(1.1)
    life.disk.sync_fails = 0.0
    life.produce(b"next" * 100)  # in a new file; it cuts the buffer
    await asyncio.sleep(0.1)
    file = life.disk.open_files[0]
    file.pages.data[:] = bytes(len(file.pages.data))  # what a disk does that lost its pages
    world.bucket.away = False

    assert await request.answer() == "committed"
    values = [value for _, _, value in await life.committed()]
    assert [b"in the way" * 40, b"good", b"next" * 100] == values


@pytest.mark.parametrize("lost", [True, False])
@on_virtual_time
async def test_what_a_disk_lost_is_not_committed(lost: bool) -> None:
    """
    Memory was given up before the sync failed.  Batches that are still whole are uploaded; if one
    is not, the session ends and its producers are told, and no garbage is in the log.
    """
    world = World()
    life = await behind_an_outage(world)
    given_up = life.produce(b"given up" * 40)
    life.disk.sync_fails = 1.0
    synced = life.produce(b"synced", acks=ONE)
    await asyncio.sleep(0.1)
    file = life.disk.open_files[0]
    if lost:
        file.pages.data[700:] = bytes(len(file.pages.data) - 700)
    world.bucket.away = False

    told = [await request.answer() for request in (given_up, synced)]

    if not lost:
        assert ["committed", "committed"] == told
        return
    assert ["lost", "lost"] == told
    with pytest.raises(FencedError, match="lost batches"):
        await life.task
    life = await world.start()
    assert [b"in the way" * 40] == [value for _, _, value in await life.committed()]


@pytest.mark.parametrize("lost", [True, False])
@on_virtual_time
async def test_an_older_batch_at_the_same_place_is_not_committed(lost: bool) -> None:
    """
    Nobody syncs for acks=all, so nobody hears of pages that were never written: memory was given
    up, and the disk has what the file held before, a whole batch of the same size.
    """
    world = World()
    tight = replace(SETTINGS, memory=MemorySettings(memory_bytes=100))
    tight = replace(tight, flush=replace(tight.flush, max_uploads=1, flush_bytes=300))
    tight = replace(tight, buffer=BufferSettings(file_bytes=1, cache_bytes=1))
    life = await world.start(tight)
    for value in (b"one" * 100, b"two" * 100):
        await life.produce(value).answer()
    file = life.disk.open_files[-1]
    before = bytes(file.pages.data)
    world.bucket.away = True
    life.produce(b"in the way" * 40)
    await asyncio.sleep(0.1)
    request = life.produce(b"six" * 100)
    await asyncio.sleep(0.1)
    again = life.disk.open_files[-1]
    assert (again.pages, again.size) == (file.pages, len(before))
    if lost:
        file.pages.data[:] = before
    world.bucket.away = False

    told = await request.answer()

    if not lost:
        assert told == "committed"
        return
    assert told == "lost"
    with pytest.raises(FencedError, match="lost batches"):
        await life.task
    life = await world.start()
    expected = [b"one" * 100, b"two" * 100, b"in the way" * 40]
    assert expected == [value for _, _, value in await life.committed()]


@pytest.mark.parametrize("failures", [2, 3])
@on_virtual_time
async def test_a_disk_that_cannot_be_read_ends_the_session(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Memory was given up, and the file gives an I/O error: tried again, and then all are told.
    """
    world = World()
    life = await behind_an_outage(world)
    request = life.produce(b"given up" * 40)
    await asyncio.sleep(0.1)
    read, left = SimBufferFile.read, [failures]

    def fails(file: SimBufferFile, position: int, length: int) -> bytes:
        if left[0]:
            left[0] -= 1
            raise UnavailableError("cannot read: Input/output error")
        return read(file, position, length)

    monkeypatch.setattr(SimBufferFile, "read", fails)
    world.bucket.away = False

    told = await request.answer()

    assert not left[0]
    if failures == 2:
        assert told == "committed"
        return
    assert told == "lost"
    with pytest.raises(FencedError, match="does not return"):
        await life.task


@on_virtual_time
async def test_memory_is_given_up_for_what_files_hold() -> None:
    """
    The same without a failure: an outage of the bucket does not fill memory.
    """
    world = World()
    tight = replace(SETTINGS, memory=MemorySettings(memory_bytes=1000))
    tight = replace(tight, flush=replace(tight.flush, max_uploads=1, flush_bytes=300))
    life = await world.start(tight)
    world.bucket.away = True
    requests = []
    for n in range(20):
        requests.append(life.produce(b"%02d" % n * 200))
        await asyncio.sleep(0.01)
    flusher = life.engine.flusher
    assert flusher.memory.uncommitted_bytes < 2_000
    assert flusher.pending_bytes > 8_000
    world.bucket.away = False

    assert ["committed"] * 20 == [await request.answer() for request in requests]
    assert [b"%02d" % n * 200 for n in range(20)] == [v for _, _, v in await life.committed()]


# ── A full disk ──


@on_virtual_time
async def test_a_full_disk_refuses_acks_1_and_acks_all_goes_on() -> None:
    """
    From memory; acks=1 is refused, but for one request a second that finds out and waits for its
    commit.  With room again it is taken again.
    """
    world = World()
    life = await world.start()
    assert await life.produce(b"before", acks=ONE).answer() == "synced"
    world.platter.full = True
    told, refusals = [], 0
    for n in range(50):
        assert await life.produce(b"%d" % n).answer() == "committed"
        await asyncio.sleep(0.1)
        try:
            told.append(await life.produce(b"finds out", acks=ONE).answer())
        except RefusedError:
            refusals += 1
    world.platter.full = False
    await asyncio.sleep(1)

    assert await life.produce(b"after", acks=ONE).answer() == "synced"
    assert ({"committed"}, True) == (set(told), refusals > 40)
    assert len(await life.committed()) == 52 + len(told)


@on_virtual_time
async def test_a_partition_with_a_hole_in_the_file_takes_acks_1_when_it_is_committed() -> None:
    """
    What is not in the file would be missing before it; another partition does not wait.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    world.platter.full = True
    hole = life.produce(b"not in the file")
    await asyncio.sleep(0)
    world.platter.full = False
    await asyncio.sleep(1)
    assert await life.produce(b"x", acks=ONE, partition=1).answer() == "synced"
    assert refused(life)
    world.bucket.away = False
    assert await hole.answer() == "committed"

    assert await life.produce(b"y", acks=ONE).answer() == "synced"


@on_virtual_time
async def test_a_refused_write_is_probed_for_although_others_keep_coming() -> None:
    """
    Batches that come meanwhile are not written and do not count as tries: a second after the last
    real one the disk is asked again.
    """
    world = World()
    life = await world.start()
    world.platter.full = True
    await life.produce(b"finds out").answer()
    world.platter.full = False
    taken = 0
    for _ in range(60):
        await life.produce(b"steady").answer()  # every 0.1 s or less
        await asyncio.sleep(0.05)
        taken += not refused(life)

    assert taken > 0


@on_virtual_time
async def test_a_name_that_was_tried_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A file that could be created but not synced into its directory is there: creating it again
    would fail for ever.
    """
    tried: list[int] = []
    create = SimDisk.create_file

    def create_file(self: SimDisk, session_id: str, number: int) -> SimBufferFile:
        tried.append(number)
        file = create(self, session_id, number)
        if len(tried) < 4:
            raise UnavailableError("cannot create: input/output error")
        return file

    monkeypatch.setattr(SimDisk, "create_file", create_file)
    world = World()
    life = await world.start()
    for _ in range(4):
        await life.produce(b"x").answer()
        await asyncio.sleep(1)

    assert await life.produce(b"y", acks=ONE).answer() == "synced"
    assert [1, 2, 3, 4] == tried


@on_virtual_time
async def test_a_file_that_cannot_be_used_again_stays_cache() -> None:
    """
    A rename that fails leaves the old file as it was, and its batches readable.
    """
    world = World()
    small = replace(SETTINGS, buffer=BufferSettings(file_bytes=100, cache_bytes=1))
    life = await world.start(small)
    await life.produce(b"a" * 100, acks=ONE).answer()
    await life.produce(b"b" * 100, acks=ONE).answer()
    await life.committed()
    world.platter.full = True
    await life.produce(b"c" * 100).answer()
    world.platter.full = False
    await asyncio.sleep(1)
    assert await life.produce(b"d" * 100, acks=ONE).answer() == "synced"
    await life.committed()

    files = life.disk.open_files
    assert life.engine.buffer.disk_bytes == sum(file.size for file in files if file.alive)
    assert len(numbers(life)) == len(files)


# ── Cache ──


def cache(file_bytes: int, cache_bytes: int, disk_bytes: int) -> Any:
    """Settings of these, and no memory."""
    return replace(
        SETTINGS,
        buffer=BufferSettings(
            file_bytes=file_bytes, cache_bytes=cache_bytes, disk_bytes=disk_bytes
        ),
    )


@on_virtual_time
async def test_files_are_used_again_when_there_is_enough_cache() -> None:
    """
    The oldest first; never more than the cache and one file, as long as the bucket keeps up.
    """
    world = World()
    life = await world.start(cache(500, 2_500, 100_000))
    for n in range(40):
        await life.produce(b"%03d" % n * 100).answer()
        assert life.engine.buffer.disk_bytes <= 3_000

    assert len(numbers(life)) >= 3
    assert numbers(life) == list(range(numbers(life)[0], numbers(life)[-1] + 1))


@on_virtual_time
async def test_a_file_with_anything_uncommitted_is_neither_used_again_nor_deleted() -> None:
    """
    However much the budget is exceeded: an outage fills the disk, and it is all there afterwards.
    """
    world = World()
    settings = replace(
        cache(500, 1_000, 2_000), flush=replace(SETTINGS.flush, flush_bytes=300, max_uploads=1)
    )
    life = await world.start(settings)
    world.bucket.away, world.bucket.put_s = True, 0.1
    for n in range(30):
        assert await life.produce(b"%03d" % n * 100, acks=ONE).answer() == "synced"
    assert life.engine.buffer.disk_bytes > 10_000
    world.bucket.away = False
    await asyncio.sleep(1.05)
    assert 5 <= life.log().high_watermark <= 15
    life.power_off()

    life = await world.start()

    assert [b"%03d" % n * 100 for n in range(30)] == [v for _, _, v in await life.committed()]


@on_virtual_time
async def test_cache_above_the_disk_budget_is_deleted_when_it_is_committed() -> None:
    """
    What an outage filled is given back, oldest first, down to the budget and not below it.
    """
    world = World()
    life = await world.start(cache(500, 1_000, 4_000))
    world.bucket.away = True
    for n in range(30):
        await life.produce(b"%03d" % n * 100, acks=ONE).answer()
    whole = numbers(life)
    world.bucket.away = False
    await life.committed()

    left = numbers(life)
    assert 3_000 <= life.engine.buffer.disk_bytes <= 4_000
    assert whole[-len(left) :] == left


@on_virtual_time
async def test_sealed_ranges_stay_in_their_files_within_the_budget() -> None:
    """
    Sealing deletes no file.
    """
    world = World()
    life = await world.start(cache(500, 100_000, 100_000))
    for n in range(10):
        await life.produce(b"%03d" % n * 100).answer()
    before = numbers(life)
    assert await life.seal() == 10

    assert before == numbers(life)
