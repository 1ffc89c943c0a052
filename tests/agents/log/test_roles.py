"""If it failed: an agent that only seals would lead partitions that no client can reach, or keep
what it had acknowledged before it got this role."""

import asyncio

from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.codec import decode_leader
from driftlog_metadata.schema.keys import leader_key
from driftlog_metadata.schema.model import ALL_ROLES, Leader, Role, TopicPartition
from tests.agents.log.leadership.test_handover import joined
from tests.agents.log.lives import ONE, World, on_virtual_time
from tests.agents.log.test_claims import led_by_all

SEAL = frozenset({Role.SEAL})


async def leader_of(world: World, partition: int = 0) -> Leader:
    """As the metadata store has it."""
    kv = await world.metadata.get(leader_key(TopicPartition(world.topics["t"].topic_id, partition)))
    assert kv is not None
    return decode_leader(kv.value)


async def released(world: World) -> None:
    """Returns when partition 0 has no leader."""
    async with asyncio.timeout(120):
        while (await leader_of(world)).session_id is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@on_virtual_time
async def test_an_agent_that_does_not_serve_claims_nothing() -> None:
    """
    Neither alone nor when the agent that leads goes; that one leads all there is beside it.
    """
    world = World(t=20)
    world.roles = SEAL
    sealing = await world.start()
    await asyncio.sleep(30)
    alone = sealing.engine.logs()
    other = world.other_disk()
    serving = await other.start()
    led = len(serving.engine.logs())
    await serving.stop()
    await asyncio.sleep(30)

    assert ([], 20, []) == (list(alone), led, list(sealing.engine.logs()))
    assert [] == sealing.cluster.view.placed()


@on_virtual_time
async def test_an_agent_that_serves_no_more_commits_what_it_had_and_releases_it() -> None:
    """
    The bucket was away: acks=1 batches are in its buffer files.  Afterwards an agent that serves
    has them at their offsets, and the directory is gone.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    for n in range(20):
        assert "synced" == await life.produce(b"%d" % n, acks=ONE).answer()
    life.kill()
    world.roles = SEAL
    sealing = await world.start()
    await asyncio.sleep(30)
    held = sealing.log()
    assert (20, 0) == (held.log_end, held.high_watermark), "released before it is committed"
    world.bucket.away = False
    await released(world)
    serving = await world.other_disk().start()

    assert [b"%d" % n for n in range(20)] == [v for _, _, v in await serving.committed()]
    assert State.CLOSED is held.state
    assert [sealing.session_id] == world.directories
    assert [] == world.set_aside()


@on_virtual_time
async def test_partitions_that_an_agent_led_go_to_the_others_when_it_gets_another_role() -> None:
    """
    Also back, when it serves again.
    """
    world = World(t=20)
    first = await world.start()
    second = await joined(first)
    await led_by_all(world, first, second)
    first.kill()
    world.roles = SEAL
    first = await world.start()
    await led_by_all(world, second)
    assert 20 == len(second.engine.logs())
    await first.stop()
    world.roles = ALL_ROLES
    first = await world.start(ready=False)
    await first.engine.ready.wait()
    await led_by_all(world, first, second)

    assert 0 < len(first.engine.logs()) < 20
