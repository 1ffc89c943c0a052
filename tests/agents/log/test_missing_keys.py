"""One of a partition's two keys is gone: that is damage, and no fresh partition."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_metadata.schema.keys import leader_key, partition_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import Delete, KeyValue, Put
from tests.agents.log.lives import ONE, Life, World, on_virtual_time
from tests.agents.log.recovery.test_recovery import left_behind

KEYS = [leader_key, partition_key]
Key = Callable[[TopicPartition], str]


async def take_away(world: World, key: Key) -> KeyValue:
    """Delete a key of t-0; returns what it was."""
    kv = await world.metadata.get(key(TopicPartition(world.topics["t"].topic_id, 0)))
    assert kv is not None
    await world.metadata.txn((), [Delete(kv.key)])
    return kv


async def put_back(world: World, kv: KeyValue) -> None:
    await world.metadata.txn((), [Put(kv.key, kv.value)])


async def started(world: World) -> Life:
    """An agent that serves, and has had time to claim what it can."""
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    await asyncio.sleep(2)
    return life


@pytest.mark.parametrize("key", KEYS)
@on_virtual_time
async def test_a_partition_with_one_key_is_not_led_and_is_whole_when_the_other_is_back(
    key: Key,
) -> None:
    """
    No offset is given out twice; its neighbour is served; the reason names the key that is gone.
    It is led again by itself once the key is what it was.
    """
    world = World(t=2)
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()
    await life.stop()
    gone = await take_away(world, key)

    life = await started(world)
    led = [log.partition for log in life.engine.logs()]
    (reason,) = life.engine.offline().values()
    await put_back(world, gone)
    await life.ready()
    admitted, request = life.admit(b"new")
    await request.answer()

    assert [1] == led
    assert gone.key in reason
    assert "restore the key" in reason
    assert {} == life.engine.offline()
    assert 3 == admitted.base_offset
    assert [b"0", b"1", b"2", b"new"] == [value for *_, value in await life.committed()]


@pytest.mark.parametrize("key", KEYS)
@on_virtual_time
async def test_a_key_that_stays_away_is_looked_for_every_few_seconds(key: Key) -> None:
    """
    The partition stays among those that need an operator.  A leader key that is put back is seen at
    once, for every agent watches those; a partition key within five seconds.
    """
    world = World(t=2)
    life = await world.start()
    await life.produce(b"0").answer()
    await life.stop()
    gone = await take_away(world, key)
    life = await started(world)
    looks = 0
    take = life.engine.takeover.take

    async def counted(*args: Any) -> Taken:
        nonlocal looks
        looks += 1
        return await take(*args)

    life.engine.takeover.take = counted  # type: ignore[assignment,method-assign]
    await asyncio.sleep(600)
    seen = looks
    (reason,) = life.engine.offline().values()
    await put_back(world, gone)
    await asyncio.sleep(1 if key is leader_key else 5)

    assert 600 / 5 <= seen <= 600 / 2.5
    assert gone.key in reason
    assert {0, 1} == {log.partition for log in life.engine.logs()}


@pytest.mark.parametrize("key", KEYS)
@on_virtual_time
async def test_what_a_disk_has_of_a_partition_without_a_key_is_set_aside(key: Key) -> None:
    """
    What was promised is set aside, once: when the key is back, the partition has another leader.
    """
    world = World(t=2)
    await left_behind(world, ONE)
    world.bucket.away = False
    gone = await take_away(world, key)

    life = await started(world)
    led = [log.partition for log in life.engine.logs()]
    await put_back(world, gone)
    await life.ready()
    await asyncio.sleep(60)

    assert [1] == led
    assert [b"0", b"1"] == [value for *_, value in await life.committed()]
    assert [b"mine"] == [value for *_, value in world.set_aside()]
    assert [life.session_id] == world.directories


@pytest.mark.parametrize("key", KEYS)
@on_virtual_time
async def test_a_leader_that_loses_a_key_goes_on_and_says_what_it_cannot_seal(key: Key) -> None:
    """
    What it takes is committed as before, and found by the next leader, once the key is back.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"0").answer()
    gone = await take_away(world, key)
    await life.produce(b"1").answer()
    with pytest.raises(CorruptError, match=gone.key):
        await life.seal()
    with pytest.raises(CorruptError, match=gone.key):
        await life.engine.deletion.delete_to(life.log(), 1)
    await life.produce(b"2").answer()
    life.kill()
    await put_back(world, gone)
    await asyncio.sleep(10)

    life = await world.start()

    assert [b"0", b"1", b"2"] == [value for *_, value in await life.committed()]
