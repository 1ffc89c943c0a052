"""Claims of unreadable partitions that are retained.

Otherwise acks=1 records on this disk would lose their offsets, though no other session has led in
between.
"""

import asyncio

import pytest

from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from tests.agents.log.lives import ONE, Keys, Life, World, on_virtual_time
from tests.agents.log.test_withheld import led_again
from tests.simulation.sim_disk import SimDisk

BACK_S = 80
"""Longer than the longest wait between two attempts."""


async def promised(world: World, *values: bytes) -> Life:
    """A killed process: one record is committed, *values* are synced only."""
    life = await world.start()
    assert "committed" == await life.produce(b"old").answer()
    world.bucket.away = True
    assert "synced" == await life.produce(*values, acks=ONE).answer()
    life.kill()
    world.bucket.away = False
    world.bucket.withheld = {world.bucket.puts[0]}
    return life


def tp_of(world: World) -> TopicPartition:
    """The partition with the promised records."""
    return TopicPartition(world.topics["t"].topic_id, 0)


@pytest.mark.parametrize("how", ["at once", "killed", "stopped", "session lost"])
@on_virtual_time
async def test_what_no_other_session_has_led_is_appended_when_its_object_is_back(how: str) -> None:
    """
    At its offset, and by a later start as well; the agent serves meanwhile.
    """
    world = World(t=1)
    dead = await promised(world, b"1", b"2")

    life = await world.start(ready=False)
    await asyncio.sleep(30)
    states = life.engine.find(tp_of(world)), life.engine.assignments.retains_claim(tp_of(world))
    is_ready = life.engine.ready.is_set()
    there = dead.session_id in world.directories
    if how == "killed":
        life.kill()
    elif how == "stopped":
        await life.stop()
    elif how == "session lost":
        await life.lose_session()
    if how != "at once":
        life = await world.start(ready=False)
        await asyncio.sleep(5)
    world.bucket.withheld = set()
    await life.ready()

    assert (None, True) == states
    assert (True, True) == (is_ready, there)
    assert [(0, 0, b"old"), (1, 0, b"1"), (2, 0, b"2")] == await life.committed()
    assert "committed" == await life.produce(b"3").answer()
    await asyncio.sleep(BACK_S)
    assert [] == world.set_aside()
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_it_is_set_aside_when_another_session_has_led() -> None:
    """
    The agent does not come back before another one has claimed the partition.
    """
    world = World(t=1)
    await promised(world, b"1")
    retained = await world.start(ready=False)
    await asyncio.sleep(30)
    retained.kill()
    world.bucket.withheld = set()
    await asyncio.sleep(10)
    other = await world.other_disk().start()
    assert "committed" == await other.produce(b"other").answer()

    life = await world.start(ready=False)
    await asyncio.sleep(BACK_S)

    assert [(1, 0, b"1")] == world.set_aside()
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_claim_without_promised_records_is_not_retained() -> None:
    """
    Other agents may try to read the partition, and its directory goes.
    """
    world = World(t=1)
    life = await world.start()
    assert "committed" == await life.produce(b"old").answer()
    life.kill()
    world.bucket.withheld = {world.bucket.puts[0]}

    life = await world.start(ready=False)
    await asyncio.sleep(30)

    assert not life.engine.assignments.retains_claim(tp_of(world))
    assert [life.session_id] == world.directories


@on_virtual_time
async def test_a_claim_is_retained_wherever_the_partition_is_placed() -> None:
    """
    An agent that joins is to lead it: it does when the records are appended.
    """
    world = World(t=1)
    await promised(world, b"1")
    life = await world.start(ready=False)
    await asyncio.sleep(5)
    others = [await world.other_disk().start(ready=False) for _ in range(1)]
    await asyncio.sleep(60)
    retained = life.engine.assignments.retains_claim(tp_of(world))
    world.bucket.withheld = set()
    await asyncio.sleep(BACK_S)

    leaders = [each for each in (life, *others) if each.engine.find(tp_of(world)) is not None]
    assert retained
    assert [(0, 0, b"old"), (1, 0, b"1")] == await leaders[0].committed()
    assert [] == world.set_aside()


@on_virtual_time
async def test_a_deleted_topic_ends_the_wait() -> None:
    """
    Its records are dropped, and their directory goes.
    """
    world = World(t=1)
    await promised(world, b"1")
    life = await world.start(ready=False)
    await asyncio.sleep(30)
    await world.delete("t")
    await asyncio.sleep(BACK_S)

    assert [life.session_id] == world.directories
    assert [] == world.set_aside()


@on_virtual_time
async def test_a_directory_that_cannot_be_read_later_takes_only_what_waits_for_it_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Partition 1 continues from the same session, and is served.  The next start appends the records.
    """
    world = World(t=2)
    dead = await world.start()
    for partition in range(2):
        assert "committed" == await dead.produce(b"old", partition=partition).answer()
    await led_again(dead, 0)
    assert "committed" == await dead.produce(b"new").answer()
    await dead.seal()
    world.bucket.away = True
    assert "synced" == await dead.produce(b"promised", acks=ONE).answer()
    dead.kill()
    world.bucket.away = False
    world.bucket.withheld = Keys({"/00000/manifest/"})
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    read_file = SimDisk.read_file

    async def file(self: SimDisk, session_id: str, number: int) -> bytes:
        if session_id == dead.session_id:
            raise UnavailableError("Input/output error")
        return await read_file(self, session_id, number)

    with monkeypatch.context() as patch:
        patch.setattr(SimDisk, "read_file", file)
        world.bucket.withheld = set()
        await life.ready()
        states = [life.log(partition).state for partition in range(2)]
        served = await life.produce(b"served", partition=1).answer()
        await asyncio.sleep(BACK_S)
        assert {dead.session_id, life.session_id} == set(world.directories)
        life.kill()
    life = await world.start()

    assert [State.OFFLINE, State.ONLINE] == states
    assert "committed" == served
    assert [b"promised"] == [value for _, _, value in await life.committed()]
    assert [] == world.set_aside()
