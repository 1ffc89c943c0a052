"""A coordinator that hears late that another agent has its group: its memory alone would answer.

    the group's agent dies ──▶ another one coordinates ──▶ the first is back, and takes commits
                                        │                               │
                                        └── hears late of that ◀── is asked for offsets

The group has no members, so that nobody writes to the one who is behind: a write would tell it.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.final_log import read_topics
from tests.simulation.group_ledger import GroupLedger
from tests.simulation.group_members import ask

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_AWAY_S: Final = 9.0
"""Longer than the session of an agent that was killed."""
_BEHIND_S: Final = 20.0
_ROUNDS: Final = 2
ALONE: Final = "alone"
"""The group."""


async def blind_coordinators(world: "World") -> None:
    """When the other faults are over."""
    rng = Random(f"blind coordinators {world.seed}")
    ledger = GroupLedger(ALONE, world.expect)
    await world.ready()
    for _ in range(_ROUNDS):
        topics = sorted((await read_topics(world)).values(), key=lambda topic: topic.name)
        if not topics:
            continue
        tp = TopicPartition(rng.choice(topics).topic_id, 0)
        first = await _commit(world, ledger, tp, world.nodes)
        if first is None:
            continue
        stays_away_s, first.stays_away_s = first.stays_away_s, (_AWAY_S,)
        first.kill("kill")
        others = [node for node in world.nodes if node is not first]
        second = None
        for _ in range(int(_AWAY_S)):
            await asyncio.sleep(1)
            second = second or await _commit(world, ledger, tp, others)
        for node in others:
            node.metadata_weather.watch_lag_ms = 2_000 * _BEHIND_S
        back = False
        for _ in range(int(_BEHIND_S)):
            await asyncio.sleep(1)
            back = back or await _commit(world, ledger, tp, [first]) is not None
            if back and second is not None:
                await _read(world, ledger, tp, second)
        for node in others:
            node.metadata_weather.watch_lag_ms = 0.0
        first.stays_away_s = stays_away_s
    await asyncio.sleep(2 * _BEHIND_S)  # what is on its way to them arrives late
    await world.ready()


async def _commit(
    world: "World", ledger: GroupLedger, tp: TopicPartition, nodes: "list[Node]"
) -> "Node | None":
    """Commit through the first of *nodes* that takes it; None: none does."""
    assert world.groups is not None
    for node in nodes:
        commit = ledger.begin(tp, world.groups.next_offset(), world.loop.now_s)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=commit.offset)
        topic = OffsetCommitRequestTopic(topic_id=tp.topic_id, partitions=[partition])
        request = OffsetCommitRequest(
            group_id=ALONE, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        answer = await ask(node.process, ApiKey.OFFSET_COMMIT, 10, request)
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            ledger.acknowledged(commit, -1, world.loop.now_s)
            return node
    return None


async def _read(world: "World", ledger: GroupLedger, tp: TopicPartition, node: "Node") -> None:
    start_s = world.loop.now_s
    topic = OffsetFetchRequestTopics(topic_id=tp.topic_id, partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=ALONE, topics=[topic])])
    answer = await ask(node.process, ApiKey.OFFSET_FETCH, 10, request)
    if answer is None or answer.groups[0].error_code:
        return
    (partition,) = answer.groups[0].topics[0].partitions
    if not partition.error_code:
        ledger.read(tp, partition.committed_offset, start_s)
