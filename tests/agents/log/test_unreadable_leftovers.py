"""An unreadable buffer file of an old session holds up its own partitions alone."""

import asyncio
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Put
from tests.agents.log.lives import ONE, Life, World, now_ms, on_virtual_time
from tests.agents.log.recovery.test_recovery import A_FILE_EACH, left_behind, overtaken, settle
from tests.simulation.sim_disk import SimDisk


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Session → number of its file in which a sector is dead; 0: its folder cannot be listed."""
    sectors: dict[str, int] = {}
    read_file, read_files = SimDisk.read_file, SimDisk.read_files

    async def file(self: SimDisk, session_id: str, number: int) -> bytes:
        if sectors.get(session_id) == number:
            raise UnavailableError(f"cannot read {session_id}/{number}.buf: Input/output error")
        return await read_file(self, session_id, number)

    async def files(self: SimDisk, session_id: str) -> list[int]:
        if sectors.get(session_id) == 0:
            raise UnavailableError(f"cannot list {session_id}: Input/output error")
        return await read_files(self, session_id)

    monkeypatch.setattr(SimDisk, "read_file", file)
    monkeypatch.setattr(SimDisk, "read_files", files)
    return sectors


async def promising(world: World, count: int) -> Life:
    """An agent that was killed with this many acks=1 records on its disk alone, a file each."""
    life = await world.start(A_FILE_EACH)
    world.bucket.away = True
    for n in range(count):
        assert await life.produce(b"%d" % n, acks=ONE).answer() == "synced"
    life.kill()
    world.bucket.away = False
    return life


def promised(count: int) -> list[tuple[int, int, bytes]]:
    return [(n, 0, b"%d" % n) for n in range(count)]


async def add_topic(world: World, life: Life, name: str) -> None:
    """A topic of one partition, created while *life* serves."""
    topic = Topic(name=name, topic_id=UUID(int=100), partitions=1)
    await world.metadata.txn((), [Put(topic_key(name), encode_topic(topic))])
    async with asyncio.timeout(10):
        while life.engine.log(name, 0) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("end", ["kill", "stop", "lose_session"])
@on_virtual_time
async def test_what_may_be_in_it_is_waited_for_and_nothing_else(
    number: int, end: str, dead: dict[str, int]
) -> None:
    """
    After ten seconds the agent serves what that session never led.  Its partitions take nothing,
    however often the agent is started, until the file can be read: then every promise is there.
    """
    world = World(t=1)
    old = await promising(world, 3)
    dead[old.session_id] = number
    for start in range(3):
        began = now_ms()
        with capture_logs() as logs:
            life = await world.start()
        (report,) = [entry for entry in logs if entry["event"] == "leftovers_unreadable"]
        assert (["t-0"], old.session_id) == (report["offline"], report["session"])
        assert "Input/output error" in report["error"]
        assert 10_000 <= now_ms() - began < 12_000
        if start == 0:
            await add_topic(world, life, "new")
        log = life.log()
        assert State.OFFLINE is log.state
        assert "out of DIR/buffer" in log.offline_reason
        assert life.engine.counters.buffer_unreadable >= 20
        assert await life.produce(b"%d" % start, topic="new").answer() == "committed"
        with pytest.raises(RefusedError) as refusal:
            life.produce(b"in its place")
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        await settle()
        assert old.session_id in world.directories
        if end == "kill":
            life.kill()
        elif end == "stop":
            await life.stop()
        else:
            await life.lose_session()
    dead.clear()

    life = await world.start()
    await settle()

    assert promised(3) == await life.committed()
    assert 3 == len(await life.committed(topic="new"))
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_what_stood_before_it_is_appended_and_what_stood_behind_it_is_set_aside(
    dead: dict[str, int],
) -> None:
    """
    Of five files the third: two are in the log, and when a person gives the file up the others
    are set aside.
    """
    world = World(t=1)
    old = await promising(world, 5)
    dead[old.session_id] = 3
    life = await world.start()
    await settle()
    assert (2, State.OFFLINE) == (life.log().high_watermark, life.log().state)
    life.kill()
    files = world.platter.sessions[old.session_id]
    del files[3]

    life = await world.start()
    await settle()
    await life.produce(b"new").answer()

    assert [*promised(2), (2, 2, b"new")] == await life.committed()
    assert [(3, 0, b"3"), (4, 0, b"4")] == world.set_aside()
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_partition_that_others_have_led_since_does_not_wait(dead: dict[str, int]) -> None:
    """
    What was promised has no place in its log any more: the directory stays for a person, and
    the partition takes records; after the next segment its key does not name that session.
    """
    world = World()
    old = await left_behind(world, ONE)
    await overtaken(world, records=0)
    dead[old.session_id] = 1

    with capture_logs() as logs:
        life = await world.start()
        assert await life.produce(b"new").answer() == "committed"
        await settle()

    (report,) = [entry for entry in logs if entry["event"] == "leftovers_unreadable"]
    assert ([], State.ONLINE) == (report["offline"], life.log().state)
    assert {old.session_id, life.session_id} == set(world.directories)
    assert await life.seal() == 3
    for _ in range(2):
        life.kill()
        life = await world.start()
        await life.engine.loaded(life.log())
        assert State.ONLINE is life.log().state


@on_virtual_time
async def test_sealing_does_not_forget_whose_leftovers_may_be_there(dead: dict[str, int]) -> None:
    """
    The second life could read the file, sealed what was committed before it, and lost its own
    copy with the power: the promise is in the first one's directory alone.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"sealed").answer()
    world.bucket.away = True
    assert await life.produce(b"promised", acks=ONE).answer() == "synced"
    old = life
    life.power_off()
    life = await world.start()
    assert (2, 1) == (life.log().log_end, await life.seal())
    life.power_off()
    world.platter.sessions[life.session_id].clear()
    world.bucket.away = False
    dead[old.session_id] = 1

    life = await world.start()

    assert State.OFFLINE is life.log().state
    dead.clear()
    life.kill()
    life = await world.start()
    assert [(1, 0, b"promised")] == await life.committed()


@on_virtual_time
async def test_a_short_list_of_sessions_still_names_it(dead: dict[str, int]) -> None:
    """
    Lives that committed nothing leave the list of those who led, but for those whose
    directories are there.
    """
    world = World(t=1)
    old = await promising(world, 1)
    world.bucket.away = True
    for _ in range(8):
        life = await world.start()
        life.power_off()
        world.platter.sessions[life.session_id].clear()
    world.bucket.away = False
    dead[old.session_id] = 1

    life = await world.start()

    assert State.OFFLINE is life.log().state
    dead.clear()
    life.kill()
    life = await world.start()
    assert promised(1) == await life.committed()
    await settle()
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_disk_that_names_no_sessions_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Then nobody can say whose promises are there: nothing is served, and what to do is said.
    """
    world = World(t=1)
    await promising(world, 1)
    sessions = SimDisk.sessions

    def fails(self: SimDisk) -> list[str]:
        raise UnavailableError("cannot list buffer: Input/output error")

    with capture_logs() as logs:
        monkeypatch.setattr(SimDisk, "sessions", fails)
        life = await world.start(ready=False)
        await asyncio.sleep(600)
        assert not life.engine.ready.is_set()
        assert life.engine.counters.buffer_unreadable > 1_000
        assert "DIR/buffer" in logs[-1]["advice"]
        monkeypatch.setattr(SimDisk, "sessions", sessions)
        await life.ready()

    assert promised(1) == await life.committed()
