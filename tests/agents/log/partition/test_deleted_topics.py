"""A bounded number of deleted topics is remembered, and forgetting the others costs no record."""

import asyncio
from dataclasses import replace
from uuid import UUID

from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_metadata.schema.keys import leader_key, partition_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.store import Delete
from tests.agents.log.flush_records import NEVER, records
from tests.agents.log.lives import World, on_virtual_time


def test_the_latest_are_remembered() -> None:
    """
    And those that somebody still says are there, however old.
    """
    there = {UUID(int=0), UUID(int=2)}
    gone = DeletedTopics(there.__contains__, limit=3)

    for n in (*range(10), 9):
        gone.add(UUID(int=n))

    assert [0, 2, 9] == [n for n in range(10) if UUID(int=n) in gone]
    assert 3 == len(gone)


def test_none_is_forgotten_that_is_still_there() -> None:
    """
    A deletion may take as long as it takes; there are no more of them than topics.
    """
    gone = DeletedTopics(lambda _: True, limit=2)

    for n in range(5):
        gone.add(UUID(int=n))

    assert all(UUID(int=n) in gone for n in range(5))


@on_virtual_time
async def test_flush_records_of_a_topic_that_was_forgotten_go_all_the_same() -> None:
    """
    What is committed of it late is found to be of a topic that is gone, like any other's.
    """
    few = replace(NEVER, consolidation=replace(NEVER.consolidation, deleted_topics=1))
    world = World(t=1, u=1, v=1)
    life = await world.start(few)
    world.bucket.away = True
    late = life.produce(b"1", topic="u")
    await asyncio.sleep(1)
    for name in ("u", "v"):
        topic_id = world.topics[name].topic_id
        await world.delete(name)
        tp = TopicPartition(topic_id, 0)
        await world.metadata.txn((), [Delete(leader_key(tp)), Delete(partition_key(tp))])
        life.engine.flush_records.topic_gone(topic_id)
        await asyncio.sleep(1)
    world.bucket.away = False
    await asyncio.sleep(5)
    committed = len(await records(world))
    await life.engine.flush_records.look()
    await asyncio.sleep(1)

    assert ["lost"] == late.told
    assert 1 == committed
    assert {} == await records(world)
