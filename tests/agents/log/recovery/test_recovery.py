"""After a restart on its own disk an agent appends again, sets aside, and removes, the right
batches.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local import buffer_format
from driftlog_agents.log.local.buffer_format import ENTRY_HEADER_BYTES, FILE_HEADER_BYTES, entries
from driftlog_agents.log.local.leftovers import decode_leftovers
from driftlog_agents.log.partition.partition import State
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, topic_key
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import KeyValue, Put
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.foundation.types import MiB
from tests.agents.log.lives import ALL, ONE, SETTINGS, Life, World, now_ms, on_virtual_time
from tests.simulation.sim_disk import SimDisk

A_FILE_EACH = replace(SETTINGS, buffer=BufferSettings(file_bytes=1))
"""Every turn of the loop that writes begins a new file."""

A_FLUSH_EACH = replace(SETTINGS, flush=replace(SETTINGS.flush, flush_bytes=1))


async def settle() -> None:
    """Until background work that waits for nothing is done."""
    await asyncio.sleep(3)


# ── What is appended again ──


@on_virtual_time
async def test_what_was_synced_is_appended_again_where_it_was() -> None:
    """
    Same offset, same leader epoch, same bytes; the next life's own records follow.
    """
    world = World()
    life = await world.start()
    assert await life.produce(b"in the bucket").answer() == "committed"
    world.bucket.away = True
    assert await life.produce(b"on the disk", acks=ONE).answer() == "synced"
    life.power_off()
    world.bucket.away = False

    life = await world.start()
    await life.produce(b"new").answer()

    expected = [(0, 0, b"in the bucket"), (1, 0, b"on the disk"), (2, 1, b"new")]
    assert expected == await life.committed()
    life.kill()
    life = await world.start()
    assert [(0, 0), (1, 2), (2, 3)] == life.log().epochs


@on_virtual_time
async def test_leftovers_come_before_anything_else_is_admitted() -> None:
    """
    The agent is not ready before the last is appended, though none of them is committed yet.
    """
    world = World()
    life = await world.start(A_FILE_EACH)
    world.bucket.away = True
    for n in range(20):
        await life.produce(b"%d" % n, acks=ONE).answer()
    life.kill()

    life = await world.start()

    assert (20, 0) == (life.log().log_end, life.log().high_watermark)
    assert [State.ONLINE] == [life.log().state]


@on_virtual_time
async def test_a_retry_of_a_leftover_is_a_duplicate_answered_when_it_is_committed() -> None:
    """
    The producer that lost its connection asks again: the old offset, and not before the bucket
    has it.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    life.produce(b"a", b"b", producer=7, epoch=0, sequence=0)
    synced = life.produce(b"c", producer=7, epoch=0, sequence=2, acks=ONE)
    assert await synced.answer() == "synced"
    life.power_off()

    life = await world.start()
    admitted, retry = life.admit(b"a", b"b", producer=7, epoch=0, sequence=0)
    await settle()
    assert ((0, False), []) == (admitted, retry.told)
    world.bucket.away = False

    assert await retry.answer() == "committed"
    assert life.log().log_end == 3


@pytest.mark.parametrize("crashes", [1, 2, 5])
@pytest.mark.parametrize("power", [False, True])
@on_virtual_time
async def test_a_crash_in_the_middle_of_recovery_changes_nothing(crashes: int, power: bool) -> None:
    """
    Killed, or without power, before anything of it is committed, each time elsewhere: what was
    promised is there once, at its offset, and every directory goes in the end.
    """
    world = World()
    life = await world.start(A_FILE_EACH)
    world.bucket.away = True
    expected = []
    for n in range(10):
        assert await life.produce(b"%d" % n, acks=ONE).answer() == "synced"
        expected.append((n, 0, b"%d" % n))
    for crash in range(crashes):
        end = life.power_off if power else life.kill
        end()
        life = await world.start(A_FILE_EACH, ready=False)
        await asyncio.sleep(0.002 + 0.001 * crash)  # between two of its files
        assert not life.engine.ready.is_set()
    await life.ready()
    assert await life.produce(b"own", acks=ONE).answer() == "synced"
    life.power_off()
    world.bucket.away = False

    life = await world.start()
    found = await life.committed()
    await settle()

    assert expected == found[:10]
    assert [(10, b"own")] == [(offset, value) for offset, _, value in found[10:]]
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_recycled_file_that_has_its_old_name_back_hides_nothing_that_was_promised() -> None:
    """
    Its renaming was lost with the power, and its new contents were not: they stand before files
    that were synced, and are of later offsets.
    """
    world = World()
    recycled = BufferSettings(file_bytes=1, cache_bytes=500)
    life = await world.start(replace(SETTINGS, buffer=recycled))
    for value in (b"0", b"1"):
        await life.produce(value).answer()
        await asyncio.sleep(2)
    world.bucket.away = True
    for value in (b"2", b"3"):
        assert await life.produce(value, acks=ONE).answer() == "synced"
    session_id = life.session_id
    life.produce(b"never synced")
    await asyncio.sleep(0.05)
    life.kill()
    files = world.platter.sessions[session_id]
    ((number, pages),) = [(n, p) for n, p in files.items() if p.named != (session_id, n)]
    assert pages.named is not None
    assert pages.named[1] < min(set(files) - {pages.named[1]})
    files[pages.named[1]] = files.pop(number)
    world.bucket.away = False

    life = await world.start()
    await asyncio.sleep(60)

    assert [b"0", b"1", b"2", b"3"] == [value for *_, value in await life.committed()]


@on_virtual_time
async def test_a_torn_entry_ends_its_file_and_hides_nothing_that_was_promised_later() -> None:
    """
    Half a batch over what an earlier use of the file had left; what was synced afterwards is in
    the next file.
    """
    world = World()
    life = await world.start(A_FILE_EACH)
    await life.produce(b"torn on the disk").answer()
    world.bucket.away = True
    assert await life.produce(b"promised", acks=ONE).answer() == "synced"
    life.kill()
    first, _ = (pages for _, pages in sorted(world.platter.sessions[life.session_id].items()))
    first.data[-20:] = b"of an earlier use..."
    world.bucket.away = False

    life = await world.start()

    expected = [(0, 0, b"torn on the disk"), (1, 0, b"promised")]
    assert expected == await life.committed()


@on_virtual_time
@pytest.mark.parametrize("at", [-1, -70])
async def test_a_flipped_bit_costs_one_batch_and_is_said(at: int) -> None:
    """
    In a batch or in the header before it (*at*: from its end): what was promised before it keeps
    its place, and what was promised behind it is set aside, once and in order.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    for n in range(6):
        assert await life.produce(b"promised %d" % n, acks=ONE).answer() == "synced"
    life.kill()
    [pages] = world.platter.sessions[life.session_id].values()
    whole = list(entries(bytes(pages.data)))
    damaged = FILE_HEADER_BYTES
    damaged += sum(ENTRY_HEADER_BYTES + len(entry.batch) for entry in whole[:3])
    pages.data[damaged + at] ^= 1
    world.bucket.away = False

    with capture_logs() as logs:
        life = await world.start()
        values = [value for *_, value in await life.committed()]
        await settle()

    assert [b"promised 0", b"promised 1"] == values
    assert [(n, 0, b"promised %d" % n) for n in (3, 4, 5)] == world.set_aside()
    [said] = [line for line in logs if line["event"] == "buffer_file_damaged"]
    assert ("warning", 1) == (said["log_level"], said["entries_skipped"])
    counted = life.engine.counters
    assert (1, 1) == (counted.buffer_damaged_files, counted.buffer_damaged_entries)
    assert said["bytes_skipped"] == counted.buffer_damaged_bytes
    assert said["bytes_skipped"] > 0
    [aside] = [line for line in logs if line["event"] == "records_set_aside"]
    [reason] = aside["reasons"]
    assert "earlier records are not on this disk" in reason
    assert "lead" not in reason


@on_virtual_time
async def test_a_page_that_power_took_is_not_called_a_damaged_disk() -> None:
    """
    Pages are not written in the order of the file: of what was not synced a later one may be there
    without an earlier one.  Nothing that was promised is missing, and the line says that this may
    be it.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    assert await life.produce(b"promised", acks=ONE).answer() == "synced"
    [pages] = world.platter.sessions[life.session_id].values()
    synced = len(pages.data)
    for value in (b"never written" * 100, b"written"):
        life.produce(value, acks=ALL)
        await settle()
    life.kill()
    whole = list(entries(bytes(pages.data)))
    assert len(whole) == 3
    missing = ENTRY_HEADER_BYTES + len(whole[1].batch)
    pages.data[synced : synced + missing] = bytes(missing)
    world.bucket.away = False

    with capture_logs() as logs:
        life = await world.start()
        await settle()

    values = [value for *_, value in await life.committed()]
    [said] = [line for line in logs if line["event"] == "buffer_file_damaged"]
    assert b"promised" == values[0]
    assert "power was lost before its sync" in said["means"]
    assert "the disk has damaged the file" not in said["advice"]


@on_virtual_time
async def test_a_file_that_cannot_be_read_now_is_read_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What is promised in it is worth the wait: nothing is admitted meanwhile.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    await life.produce(b"promised", acks=ONE).answer()
    life.kill()
    world.bucket.away = False
    read, refusals = SimDisk.read_file, [1, 2, 3]

    async def read_file(self: SimDisk, session_id: str, number: int) -> bytes:
        if refusals:
            refusals.pop()
            raise UnavailableError("input/output error")
        return await read(self, session_id, number)

    monkeypatch.setattr(SimDisk, "read_file", read_file)
    began = now_ms()

    life = await world.start()

    assert [(0, 0, b"promised")] == await life.committed()
    assert now_ms() - began >= 1_500


@on_virtual_time
async def test_others_get_a_turn_while_directories_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Also over what is in the log already: keep-alives must not wait for a long recovery.
    """
    world = World()
    settings = replace(SETTINGS, buffer=BufferSettings(file_bytes=16 * MiB))  # all in one file
    life = await world.start(settings)
    for n in range(4):
        await life.produce(b"%d" % n * MiB).answer()
    life.kill()
    looked: list[int] = [0]

    def check(*args: Any, **options: Any) -> Any:
        looked[-1] += 1
        asyncio.get_running_loop().call_soon(looked.append, 0)
        return check_batch(*args, **options)

    monkeypatch.setattr(buffer_format, "check_batch", check)

    life = await world.start(settings)

    assert (4, 1) == (sum(looked), max(looked))
    assert not life.engine.flusher.pending_bytes


@on_virtual_time
async def test_half_a_batch_is_not_asked_for_its_epoch() -> None:
    """
    Its bytes may say any epoch, also one that only the manifest could judge: a bucket that does
    not answer, or a manifest that is gone, is no reason to wait for what is torn anyway.
    """
    world = World()
    for _ in range(3):
        life = await world.start()
        await life.produce(b"in the bucket").answer()
        await life.seal()
        life.kill()
    life = await world.start()
    world.bucket.away = True
    life.produce(b"torn")
    await asyncio.sleep(0)
    life.kill()
    (pages,) = world.platter.sessions[life.session_id].values()
    header = FILE_HEADER_BYTES + ENTRY_HEADER_BYTES
    pages.data[header:] = bytes(len(pages.data) - header)
    world.bucket.manifests.clear()

    life = await world.start()

    assert (3, State.LOADING) == (life.log().log_end, life.log().state)


# ── What is not appended ──


async def overtaken(world: World, *, records: int, seal: bool = False) -> None:
    """Another machine led after the disk's agent was killed, and wrote *records*."""
    world.bucket.away = False
    other = world.other_disk()
    life = await other.start()
    for n in range(records):
        await life.produce(b"other %d" % n).answer()
    if seal:
        assert await life.seal() == 2 + records
    await life.stop()


async def left_behind(world: World, *acks: int) -> Life:
    """An agent that committed offsets 0 and 1, and was killed with more in its buffer."""
    life = await world.start()
    await life.produce(b"0", b"1").answer()
    world.bucket.away = True
    for each in acks:
        request = life.produce(b"mine", acks=each)
        if each == ONE:
            assert await request.answer() == "synced"
    await asyncio.sleep(0)
    life.kill()
    return life


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("records", [1, 2, 3, 10])
@on_virtual_time
async def test_what_lost_its_place_to_another_leader_is_set_aside(records: int, seal: bool) -> None:
    """
    A batch of epoch e is in the log exactly if its offset is below the start of the next epoch,
    however far the log has gone since.  What was promised and is not there is on this disk, named
    by a line that says what to do, counted, and appended nowhere by itself.
    """
    world = World()
    old = await left_behind(world, ONE, ONE)
    await overtaken(world, records=records, seal=seal)

    with capture_logs() as logs:
        life = await world.start()
        await settle()
        await life.produce(b"new").answer()

    (report,) = [entry for entry in logs if entry["event"] == "records_set_aside"]
    kept = decode_leftovers(world.platter.kept_notes[old.session_id])
    (of,) = kept.partitions.values()
    assert ("t", 2, 2, {0: 2}) == (of.topic, of.batches, of.records, of.first_offsets)
    assert kept.set_aside_at_ms is not None
    assert (old.session_id, 2, kept.size_bytes) == (
        report["session"],
        report["records"],
        report["size_bytes"],
    )
    assert f"driftlog buffer replay {report['directory']}" in report["advice"]
    counted = life.engine.counters
    assert (2, kept.size_bytes) == (
        counted.buffer_set_aside_records,
        counted.buffer_set_aside_bytes,
    )
    assert [(2, 0, b"mine"), (3, 0, b"mine")] == world.set_aside()
    assert [life.session_id] == world.directories
    values = [value for _, _, value in await life.committed()]
    expected = [b"0", b"1", *(b"other %d" % n for n in range(records)), b"new"]
    assert expected[2 + records if seal else 0 :] == values


@on_virtual_time
async def test_what_is_below_log_start_and_cannot_be_decided_is_told_and_not_set_aside() -> None:
    """
    DeleteRecords forgets the epochs that tell whether the log had a batch.  To produce it again
    may bring back what a user deleted; to drop it says so.
    """
    world = World()
    old = await left_behind(world, ONE, ONE)
    world.bucket.away = False
    other = await world.other_disk().start()
    await other.produce(*[b"other"] * 10).answer()
    await other.seal()
    await other.engine.deletion.delete_to(other.log(), 8)
    await asyncio.sleep(400)
    manifest = await other.engine.manifests.get(other.log())
    assert [(1, 8)] == [(entry.epoch, entry.start_offset) for entry in manifest.leader_epochs]
    await other.stop()

    with capture_logs() as logs:
        life = await world.start()
        await settle()

    (report,) = [entry for entry in logs if entry["event"] == "leftovers_deleted"]
    told = {name: report[name] for name in ("session", "records", "partitions", "first")}
    # 0 and 1 were committed, 2 and 3 lost their place.
    assert {"session": old.session_id, "records": 2, "partitions": 1, "first": "t-0"} == told
    assert 2 == life.engine.counters.buffer_deleted_records
    assert ([], [life.session_id]) == (world.set_aside(), world.directories)


@on_virtual_time
async def test_what_is_set_aside_stays_through_later_starts() -> None:
    """
    No start reads it again, deletes it, or writes it a second time.
    """
    world = World()
    await left_behind(world, ONE)
    await overtaken(world, records=1)
    life = await world.start()
    await settle()
    kept = {session: dict(files) for session, files in world.platter.kept.items()}
    for _ in range(2):
        life.kill()
        life = await world.start()
        await settle()

    assert [(2, 0, b"mine")] == world.set_aside()
    assert kept == world.platter.kept
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_what_is_in_the_log_below_the_next_epoch_is_not_set_aside() -> None:
    """
    It was committed before its agent was killed, and its directory held it still: no false alarm.
    """
    world = World()
    life = await world.start()
    await life.produce(b"0", b"1", acks=ONE).answer()
    await life.committed()
    life.kill()
    await overtaken(world, records=5)

    life = await world.start()
    await settle()

    assert ([life.session_id], {}) == (world.directories, world.platter.kept)
    assert 7 == life.log().log_end


@on_virtual_time
async def test_what_another_agent_leads_is_decided_about_as_well() -> None:
    """
    The agent leads neither partition when it is back, and asks no agent: the stores say what is
    committed.
    """
    world = World()
    life = await world.start()
    for partition in range(2):
        await life.produce(b"committed", acks=ONE, partition=partition).answer()
        await life.committed(partition)
    world.bucket.away = True
    assert await life.produce(b"mine", acks=ONE, partition=1).answer() == "synced"
    life.kill()
    world.bucket.away = False
    other = await world.other_disk().start()
    for partition in range(2):
        await other.produce(b"other", partition=partition).answer()

    back = await world.start()
    await settle()

    assert [[], [(1, 0, b"mine")]] == [world.set_aside(0), world.set_aside(1)]
    assert [back.session_id] == world.directories
    await other.stop()


@on_virtual_time
async def test_what_is_sealed_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The leader seals, so that flush records go, between the read of the partition's key and that
    of the records: what is in the log is not taken for lost.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"committed", acks=ONE).answer()
    await life.committed()
    life.kill()
    await overtaken(world, records=1)
    look, read_prefix = Takeover.look, Session.read_prefix
    in_a_look = ContextVar("in_a_look", default=False)
    sealed: list[int] = []
    one_at_a_time = asyncio.Lock()

    async def looking(self: Takeover, *args: Any) -> Any:
        await back.ready()
        await back.engine.loaded(back.log())
        in_a_look.set(True)
        return await look(self, *args)

    async def sealed_before(self: Session, prefix: str) -> list[KeyValue]:
        if in_a_look.get() and prefix.startswith(FLUSHES_PREFIX):
            async with one_at_a_time:
                if not sealed:
                    sealed.append(await back.seal())
                    await asyncio.sleep(30)
                    assert [] == (await world.metadata.get_prefix(FLUSHES_PREFIX))[1]
        return await read_prefix(self, prefix)

    monkeypatch.setattr(Takeover, "look", looking)
    monkeypatch.setattr(Session, "read_prefix", sealed_before)

    back = await world.start(ready=False)
    await back.ready()
    await asyncio.sleep(60)

    assert [2] == sealed
    assert ([back.session_id], {}) == (world.directories, world.platter.kept)


@on_virtual_time
async def test_what_was_never_promised_is_not_kept() -> None:
    """
    acks=all was not answered: its producer knows that it failed.
    """
    world = World()
    await left_behind(world, ALL, ALL)
    await overtaken(world, records=1)

    life = await world.start()
    await settle()

    assert ([life.session_id], {}) == (world.directories, world.platter.kept)


@pytest.mark.parametrize("records", [0, 1, 7])
@on_virtual_time
async def test_a_promise_behind_what_was_not_promised_is_set_aside(records: int) -> None:
    """
    Of one partition's leftovers the first was acks=all, the second acks=1.
    """
    world = World()
    await left_behind(world, ALL, ONE)
    await overtaken(world, records=records)

    life = await world.start()
    await settle()

    assert [(3, 0, b"mine")] == world.set_aside()
    assert [life.session_id] == world.directories
    assert [] == [value for _, _, value in (await life.committed())[2 + records :]]


@pytest.mark.parametrize("own", [0, 1, 3])
@on_virtual_time
async def test_what_had_no_place_at_one_start_is_given_none_at_the_next(own: int) -> None:
    """
    The first life's leftovers had no place at the second start, for others had led since, and
    written nothing; it was killed before they were set aside.  The third continues the second,
    which had promised their offsets to its own records: those keep them.
    """
    world = World()
    first = await left_behind(world, ALL, ONE, ONE)
    await overtaken(world, records=0)
    world.bucket.away = True
    second = await world.start()
    for n in range(own):
        assert await second.produce(b"second %d" % n, acks=ONE).answer() == "synced"
    assert first.session_id in world.directories
    second.kill()
    world.bucket.away = False

    life = await world.start()
    await settle()
    await life.produce(b"new").answer()

    assert [life.session_id] == world.directories
    expected = [b"0", b"1", *(b"second %d" % n for n in range(own)), b"new"]
    assert expected == [value for _, _, value in await life.committed()]
    assert [(3, 0, b"mine"), (4, 0, b"mine")] == world.set_aside()


@on_virtual_time
async def test_what_stands_in_the_log_with_another_epoch_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The same, where the disk took no note at the second start: the first life's leftover takes the
    offset that the second had promised to its own, and that one is set aside.
    """
    world = World()
    await left_behind(world, ONE)
    await overtaken(world, records=0)

    async def refused(*_: Any) -> None:
        raise UnavailableError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SimDisk, "save_note", refused)
        patch.setattr(SimDisk, "create_kept", refused)
        with capture_logs() as logs:
            second = await world.start()
            await settle()
        assert "leftovers_not_noted" in [entry["event"] for entry in logs]
        assert 2 == second.log().log_end
        world.bucket.away = True
        assert await second.produce(b"second", acks=ONE).answer() == "synced"
        assert await second.produce(b"behind it", acks=ONE).answer() == "synced"
        second.kill()
    world.bucket.away = False

    life = await world.start()
    await settle()
    await life.produce(b"new").answer()

    found = await life.committed()
    assert [b"0", b"1", b"mine", b"new"] == [value for _, _, value in found]
    assert (2, 0, b"mine") == found[2]
    assert [b"second", b"behind it"] == [value for _, _, value in world.set_aside()]
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_what_is_behind_a_hole_is_set_aside() -> None:
    """
    The disk lost a file that it had synced: offsets stay dense, and the rest is not lost.
    """
    world = World()
    life = await world.start(A_FILE_EACH)
    world.bucket.away = True
    for n in range(4):
        await life.produce(b"%d" % n, acks=ONE).answer()
    life.kill()
    files = world.platter.sessions[life.session_id]
    del files[sorted(files)[1]]
    life = await world.start()
    await settle()
    life.power_off()
    world.bucket.away = False

    life = await world.start()
    await settle()

    assert [b"0"] == [value for _, _, value in await life.committed()]
    assert [(2, 0, b"2"), (3, 0, b"3")] == world.set_aside()
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_leftovers_of_a_topic_that_is_gone_are_dropped() -> None:
    """
    Nobody waits for them: its directory goes, and the other topic's are appended.
    """
    world = World(gone=1, stays=1)
    life = await world.start()
    world.bucket.away = True
    await life.produce(b"dropped", acks=ONE, topic="gone").answer()
    await life.produce(b"kept", acks=ONE, topic="stays").answer()
    life.power_off()
    await world.delete("gone")
    world.bucket.away = False

    life = await world.start()
    found = await life.committed(topic="stays")
    await settle()

    assert [(0, 0, b"kept")] == found
    assert ([life.session_id], {}) == (world.directories, world.platter.kept)


@on_virtual_time
async def test_leftovers_of_a_topic_whose_key_cannot_be_read_wait_for_it() -> None:
    """
    It is not taken for deleted: what was promised there is set aside when the key is what it was.
    """
    world = World(broken=1, stays=1)
    life = await world.start()
    world.bucket.away = True
    for topic in ("broken", "stays"):
        assert await life.produce(b"promised", acks=ONE, topic=topic).answer() == "synced"
    old = life.session_id
    life.kill()
    world.bucket.away = False
    key = topic_key("broken")
    kv = await world.metadata.get(key)
    assert kv is not None
    await world.metadata.txn((), [Put(key, b"not JSON")])

    life = await world.start()
    await asyncio.sleep(30)
    assert [(0, 0, b"promised")] == await life.committed(topic="stays")
    assert {old, life.session_id} == set(world.directories)
    await world.metadata.txn((), [Put(key, kv.value)])
    await asyncio.sleep(30)

    assert [(0, 0, b"promised")] == world.set_aside(topic="broken")
    assert [life.session_id] == world.directories


# ── When a directory goes ──


@on_virtual_time
async def test_an_old_directory_goes_when_its_last_batch_is_committed_and_not_before() -> None:
    """
    Until then it is the only safe copy: the new session's own is not synced.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    old = life.session_id
    await life.produce(b"a", acks=ONE).answer()
    await life.produce(b"b", acks=ONE, partition=1).answer()
    life.power_off()

    life = await world.start()
    await asyncio.sleep(100)
    assert {old, life.session_id} == set(world.directories)
    world.bucket.away = False
    await life.committed()
    await settle()

    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_directory_does_not_wait_for_a_topic_that_is_deleted() -> None:
    """
    What was appended from it and not committed is nobody's any more.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    await life.produce(b"a", acks=ONE).answer()
    life.kill()

    life = await world.start()
    await settle()
    assert len(world.directories) == 2
    life.engine.remove_topic(world.topics["t"].topic_id)
    await settle()

    assert [life.session_id] == world.directories


@on_virtual_time
async def test_leftovers_wait_for_an_object_that_is_missing() -> None:
    """
    While a flush object is missing the end of the log is not known: the directory stays, and what
    was promised is appended when the object is back, without another start.
    """
    world = World()
    life = await world.start()
    await life.produce(b"0").answer()
    (key,) = world.bucket.puts
    world.bucket.away = True
    await life.produce(b"promised", acks=ONE).answer()
    life.power_off()
    world.bucket.away = False
    body = await world.bucket.get(key)
    await world.bucket.delete([key])

    life = await world.start(ready=False)
    await asyncio.sleep(600)
    assert [] == [log for log in life.engine.logs() if log.partition == 0]
    assert (2, {}) == (len(world.directories), world.platter.kept)
    await world.bucket.put(key, [body])
    await asyncio.sleep(100)

    assert [b"0", b"promised"] == [value for _, _, value in await life.committed()]
    assert [] == world.set_aside()
    await asyncio.sleep(30)
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_directory_waits_for_one_partition_when_another_is_decided() -> None:
    """
    Nobody knows where the epochs of partition 0 ended before its manifest is back: until then the
    directory is as it was, and then all of it is decided.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    for partition in range(2):
        request = life.produce(b"promised", acks=ONE, partition=partition)
        assert await request.answer() == "synced"
    old = life.session_id
    life.kill()
    world.bucket.away = False
    other = await world.other_disk().start()
    for partition in range(2):
        await other.produce(b"other", partition=partition).answer()
    assert await other.seal() == 1
    await other.stop()
    (key,) = [
        info.key
        async for page in world.bucket.list("topics/t/")
        for info in page.objects
        if "/manifest/" in info.key
    ]
    manifest = await world.bucket.get(key)
    await world.bucket.delete([key])

    life = await world.start()
    await asyncio.sleep(30)
    assert [State.LOADING] == [life.log().state]
    assert ({old, life.session_id}, {}) == (set(world.directories), world.platter.kept)
    await world.bucket.put(key, [manifest])
    await asyncio.sleep(100)

    assert [[(0, 0, b"promised")]] * 2 == [world.set_aside(0), world.set_aside(1)]
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_directory_that_cannot_be_set_aside_stays_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A full disk: the agent serves, says so, and tries again; what it had written of it is not
    taken for the whole.
    """
    world = World()
    old = await left_behind(world, ONE)
    await overtaken(world, records=1)

    async def refused(*_: Any) -> str:
        raise UnavailableError("cannot write: no space left on device")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(SimDisk, "finish_kept", refused)
        life = await world.start()
        await asyncio.sleep(20)
        assert await life.produce(b"new").answer() == "committed"
    assert old.session_id in world.directories
    (said,) = [entry for entry in logs if entry["event"] == "leftovers_delayed"]
    assert "no space left" in said["reason"]
    await asyncio.sleep(60)

    assert [(2, 0, b"mine")] == world.set_aside()
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_crash_while_records_are_set_aside_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Killed before each operation of the disk in turn: they are in the buffer, or set aside, whole.
    """
    steps = ("create_kept", "write_kept", "finish_kept", "remove_session")
    for step in steps:
        world = World()
        await left_behind(world, ONE, ONE)
        await overtaken(world, records=1)
        original = getattr(SimDisk, step)
        reached = asyncio.Event()

        async def dying(self: SimDisk, *_: Any, reached: asyncio.Event = reached) -> None:
            reached.set()
            self.process.dead = True
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(SimDisk, step, dying)
            life = await world.start(ready=False)
            await reached.wait()
            life.kill()
        assert original is getattr(SimDisk, step)

        life = await world.start()
        await settle()

        assert [(2, 0, b"mine"), (3, 0, b"mine")] == world.set_aside(), step
        assert [life.session_id] == life.disk.all_sessions, step
