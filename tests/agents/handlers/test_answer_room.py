"""Handlers whose answers may be large claim their memory before they make them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.groups.offsets import Committed
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.handlers.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    join_group,
    list_config_resources,
    list_groups,
    offset_fetch,
    reassignments,
    sync_group,
)
from driftlog_agents.handlers.common.context import AnswerBytes
from driftlog_agents.protocol.errors import OverLimitError
from driftlog_agents.protocol.messages import alter_partition_reassignments as ar
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import consumer_group_heartbeat as ch
from driftlog_agents.protocol.messages import describe_configs as dc
from driftlog_agents.protocol.messages import describe_groups as dg
from driftlog_agents.protocol.messages import describe_log_dirs as dl
from driftlog_agents.protocol.messages import describe_producers as dp
from driftlog_agents.protocol.messages import elect_leaders as el
from driftlog_agents.protocol.messages import join_group as jg
from driftlog_agents.protocol.messages import list_config_resources as lc
from driftlog_agents.protocol.messages import list_groups as lg
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages import sync_group as sg
from driftlog_metadata.schema.model import TopicPartition
from tests.agents.handlers.asking import create, new
from tests.support.engine import RunningAgent

PARTITIONS = 100


async def test_answers_over_whole_state_wait_for_room_before_they_are_made(tmp_path: Path) -> None:
    """
    A request of 40 bytes has an answer of megabytes: each waits, as Metadata does, until there is
    room for its objects and its bytes.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", PARTITIONS))
        topic_id = agent.broker.topics.by_name["t"].topic_id
        coordinator = agent.broker.groups
        assert coordinator is not None
        group = await coordinator.made("offsets", CLASSIC)
        tps = [TopicPartition(topic_id, n) for n in range(PARTITIONS)]
        await group.store({tp: Committed(offset=1) for tp in tps})
        beat = ch.ConsumerGroupHeartbeatRequest(
            group_id="members",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t", "x" * 2_000],
            topic_partitions=[],
        )
        await consumer_group_heartbeat.handle(agent.broker, beat, agent.context(1))
        joining = jg.JoinGroupRequest(
            group_id="classic",
            protocol_type="x",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocols=[jg.JoinGroupRequestProtocol(name="p", metadata=bytes(2_000))],
        )
        waits = asyncio.ensure_future(
            join_group.handle(agent.broker, joining, agent.context(3))
        )  # It has the member, and waits for others.
        async with asyncio.timeout(60):
            while not coordinator.complete or len(coordinator.groups) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        async def waits_for(
            handle: Callable[..., Any], request: object, version: int, least_bytes: int
        ) -> None:
            claimed, full = 0, asyncio.Event()

            async def room(size_bytes: int) -> None:
                nonlocal claimed
                claimed += size_bytes
                if claimed >= least_bytes:
                    full.set()
                    await asyncio.Event().wait()

            context = replace(agent.context(version), room=room)
            asking = asyncio.ensure_future(handle(agent.broker, request, context))
            waiting = asyncio.ensure_future(full.wait())
            await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
            assert not asking.done(), (handle.__module__, claimed)
            asking.cancel()

        every = of.OffsetFetchRequestGroup(group_id="offsets", topics=None)
        topic = dc.DescribeConfigsResource(resource_type=2, resource_name="t")
        electing = el.ElectLeadersRequest(
            topic_partitions=[el.TopicPartitions(topic="t", partitions=list(range(PARTITIONS)))]
        )
        await waits_for(
            offset_fetch.handle, of.OffsetFetchRequest(groups=[every]), 8, 200 * PARTITIONS
        )
        await waits_for(
            offset_fetch.handle,
            of.OffsetFetchRequest(group_id="offsets", topics=None),
            7,
            200 * PARTITIONS,
        )
        await waits_for(
            describe_log_dirs.handle, dl.DescribeLogDirsRequest(topics=None), 4, 200 * PARTITIONS
        )
        await waits_for(
            describe_configs.handle, dc.DescribeConfigsRequest(resources=[topic]), 4, 10_000
        )
        await waits_for(elect_leaders.handle, electing, 2, 200 * PARTITIONS)
        await waits_for(list_groups.handle, lg.ListGroupsRequest(), 5, 3 * 200)
        await waits_for(
            list_config_resources.handle, lc.ListConfigResourcesRequest(resource_types=[2]), 1, 200
        )
        await waits_for(
            consumer_group_describe.handle,
            cd.ConsumerGroupDescribeRequest(group_ids=["members"]),
            1,
            2_000,
        )
        await waits_for(
            describe_groups.handle, dg.DescribeGroupsRequest(groups=["classic"]), 5, 2_000
        )
        waits.cancel()


async def test_answers_that_repeat_what_members_said_are_counted_before_they_are_encoded(
    tmp_path: Path,
) -> None:
    """
    The leader's, with the metadata of all members; a member's assignment; offsets with their
    metadata, also in the versions that ask for one group.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 1))
        coordinator = agent.broker.groups
        assert coordinator is not None
        topic_id = agent.broker.topics.by_name["t"].topic_id
        group = await coordinator.made("offsets", CLASSIC)
        await group.store({TopicPartition(topic_id, 0): Committed(offset=1, metadata="x" * 3_000)})

        async def counts(handle: Callable[..., Any], request: object, version: int) -> Any:
            context = agent.context(version)
            answer = await handle(agent.broker, request, context)
            counted.append(context.answer.counted_bytes)
            return answer

        counted: list[int] = []
        joining = jg.JoinGroupRequest(
            group_id="g",
            protocol_type="x",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocols=[jg.JoinGroupRequestProtocol(name="p", metadata=bytes(3_000))],
        )
        joined = await counts(join_group.handle, joining, 3)
        share = sg.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(3_000))
        syncing = sg.SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[share],
        )
        synced = await counts(sync_group.handle, syncing, 3)
        asked = [of.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        fetched = await counts(
            offset_fetch.handle, of.OffsetFetchRequest(group_id="offsets", topics=asked), 5
        )

    assert 3_000 == len(joined.members[0].metadata)
    assert 3_000 == len(synced.assignment)
    assert 3_000 == len(fetched.topics[0].partitions[0].metadata)
    assert [True] * 3 == [3_000 <= size < 4_000 for size in counted]


async def test_a_long_name_in_messages_is_made_once_and_counted_for_each_partition(
    tmp_path: Path,
) -> None:
    """
    Each partition's message repeats the name of an unknown topic: 108 KB of a request came to
    0.7 GB before the answer was refused.
    """
    name, numbers = "x" * 32_000, list(range(PARTITIONS))
    electing = el.ElectLeadersRequest(
        topic_partitions=[el.TopicPartitions(topic=name, partitions=numbers)]
    )
    producers = dp.DescribeProducersRequest(
        topics=[dp.TopicRequest(name=name, partition_indexes=[*numbers, 0])]
    )
    partitions = [ar.ReassignablePartition(partition_index=n, replicas=None) for n in numbers]
    altering = ar.AlterPartitionReassignmentsRequest(
        topics=[ar.ReassignableTopic(name=name, partitions=partitions)]
    )
    async with RunningAgent(tmp_path) as agent:

        async def answered(handle: Callable[..., Any], request: object, version: int) -> Any:
            context = agent.context(version)
            answer = await handle(agent.broker, request, context)
            counted.append(context.answer.counted_bytes // len(name))
            over = replace(context, answer=AnswerBytes(50 * len(name)))
            with pytest.raises(OverLimitError):
                await handle(agent.broker, request, over)
            return answer

        counted: list[int] = []
        elected = await answered(elect_leaders.handle, electing, 2)
        described = await answered(describe_producers.handle, producers, 0)
        altered = await answered(reassignments.alter, altering, 1)

    texts = [each.error_message for each in elected.replica_election_results[0].partition_result]
    assert 1 == len({id(text) for text in texts})
    assert {f"No such topic as {name}"} == set(texts)
    texts = [each.error_message for each in described.topics[0].partitions]
    assert 1 == len({id(text) for text in texts})
    assert "is longer than the max allowed length 249" in texts[0]
    texts = [each.error_message for each in altered.responses[0].partitions]
    assert 1 == len({id(text) for text in texts})
    assert {f"Unable to find a topic named {name}."} == set(texts)
    assert [PARTITIONS, PARTITIONS + 1, PARTITIONS] == counted


async def test_reassignments_wait_for_room_before_they_are_answered(tmp_path: Path) -> None:
    """
    Each message names the topic, and says what moves partitions here.
    """
    claimed = 0

    async def room(size_bytes: int) -> None:
        nonlocal claimed
        claimed += size_bytes

    partitions = [
        ar.ReassignablePartition(partition_index=n, replicas=[]) for n in range(PARTITIONS)
    ]
    altering = ar.AlterPartitionReassignmentsRequest(
        topics=[ar.ReassignableTopic(name="t", partitions=partitions)]
    )
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", PARTITIONS))
        await reassignments.alter(agent.broker, altering, replace(agent.context(1), room=room))
    assert claimed >= 500 * PARTITIONS
