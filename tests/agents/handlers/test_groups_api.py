"""Group requests are answered truly: for what is not there, too, with a view that is behind, and
between two sessions.

`tests/clients/test_offset_transcripts.py` asks Apache Kafka the same, where there is one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from driftlog_agents.handlers.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    find_coordinator,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import consumer_group_heartbeat as ch
from driftlog_agents.protocol.messages import describe_groups as dg
from driftlog_agents.protocol.messages import find_coordinator as fc
from driftlog_agents.protocol.messages import offset_commit as oc
from driftlog_agents.protocol.messages import offset_delete as od
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages.list_groups import ListGroupsRequest
from driftlog_metadata.schema.model import Topic
from tests.agents.handlers.asking import create, new
from tests.support.engine import NODE_ID, RunningAgent


async def commit(agent: RunningAgent, topic: Topic, *partitions: int) -> list[int]:
    """Offset 5 of each; the error codes."""
    said = [
        oc.OffsetCommitRequestPartition(partition_index=n, committed_offset=5) for n in partitions
    ]
    request = oc.OffsetCommitRequest(
        group_id="g",
        topics=[oc.OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=said)],
    )
    answer = await offset_commit.handle(agent.broker, request, agent.context(10))
    return [partition.error_code for partition in answer.topics[0].partitions]


async def commit_as(
    agent: RunningAgent,
    member: str,
    epoch: int,
    topics: Mapping[UUID, Sequence[int]],
    metadata: Sequence[str] = ("", "", ""),
) -> list[list[int]]:
    """As a member, with metadata for each partition; the error codes of each topic."""
    request = oc.OffsetCommitRequest(
        group_id="g",
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[
            oc.OffsetCommitRequestTopic(
                topic_id=topic_id,
                partitions=[
                    oc.OffsetCommitRequestPartition(
                        partition_index=n, committed_offset=5, committed_metadata=said
                    )
                    for n, said in zip(partitions, metadata, strict=False)
                ],
            )
            for topic_id, partitions in topics.items()
        ],
    )
    answer = await offset_commit.handle(agent.broker, request, agent.context(10))
    return [[partition.error_code for partition in topic.partitions] for topic in answer.topics]


async def delete(
    agent: RunningAgent, *partitions: int, group_id: str = "g", topic: str = "t"
) -> tuple[int, list[int]]:
    """OffsetDelete; the error code, and those of partitions."""
    asked = [od.OffsetDeleteRequestPartition(partition_index=n) for n in partitions]
    request = od.OffsetDeleteRequest(
        group_id=group_id, topics=[od.OffsetDeleteRequestTopic(name=topic, partitions=asked)]
    )
    answer = await offset_delete.handle(agent.broker, request, agent.context(0))
    return answer.error_code, [p.error_code for topic in answer.topics for p in topic.partitions]


async def beat(
    agent: RunningAgent, epoch: int, names: list[str] | None = None
) -> ch.ConsumerGroupHeartbeatResponse:
    """ConsumerGroupHeartbeat of m."""
    request = ch.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=-1 if epoch else 60_000,
        subscribed_topic_names=names,
        topic_partitions=None if epoch else [],
    )
    return await consumer_group_heartbeat.handle(agent.broker, request, agent.context(1))


async def fetch(agent: RunningAgent, topic: Topic, *partitions: int) -> list[int]:
    """What is committed; −1: nothing."""
    asked = of.OffsetFetchRequestTopics(topic_id=topic.topic_id, partition_indexes=list(partitions))
    request = of.OffsetFetchRequest(
        groups=[of.OffsetFetchRequestGroup(group_id="g", topics=[asked])]
    )
    answer = await offset_fetch.handle(agent.broker, request, agent.context(10))
    return [p.committed_offset for p in answer.groups[0].topics[0].partitions]


async def test_partitions_that_the_view_has_not_seen_yet_can_be_committed(tmp_path: Path) -> None:
    """
    A topic was extended, and this agent is behind: who was told by another one commits.  What the
    store does not have either is refused.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 4))
        topic = agent.broker.topics.by_name["t"]
        agent.broker.topics.by_id[topic.topic_id] = replace(topic, partitions=2)

        codes = await commit(agent, topic, 1, 3, 4)

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [ErrorCode.NONE, ErrorCode.NONE, unknown] == codes
        assert [-1, 5, -1, 5] == await fetch(agent, topic, 0, 1, 2, 3)


async def test_offsets_are_deleted_of_partitions_that_exist(tmp_path: Path) -> None:
    """
    Others are unknown, whatever the group says of their topic; those that this agent has not seen
    yet exist.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 4))
        topic = agent.broker.topics.by_name["t"]
        await commit(agent, topic, 0, 1, 3)
        agent.broker.topics.by_name["t"] = replace(topic, partitions=2)

        deleted = await delete(agent, 0, 3, 4, -1)

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (ErrorCode.NONE, [ErrorCode.NONE, ErrorCode.NONE, unknown, unknown]) == deleted
        assert [-1, 5, -1, -1] == await fetch(agent, topic, 0, 1, 2, 3)


async def test_a_partition_that_is_not_there_is_unknown_in_a_topic_that_is_read(
    tmp_path: Path,
) -> None:
    """
    Members subscribe to its topic; that is said of the partitions that it has.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await beat(agent, 0, ["t"])

        deleted = await delete(agent, 0, 1)

        used, unknown = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (ErrorCode.NONE, [used, unknown]) == deleted


@pytest.mark.parametrize("exists", [False, True])
async def test_offsets_of_a_group_without_a_name_are_not_deleted(
    tmp_path: Path, exists: bool
) -> None:
    """
    A client that sets no group id commits as such a group; nobody may delete its offsets.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        topic = agent.broker.topics.by_name["t"]
        if exists:
            asked = oc.OffsetCommitRequestTopic(
                topic_id=topic.topic_id,
                partitions=[oc.OffsetCommitRequestPartition(committed_offset=5)],
            )
            request = oc.OffsetCommitRequest(group_id="", topics=[asked])
            answer = await offset_commit.handle(agent.broker, request, agent.context(10))
            assert ErrorCode.NONE == answer.topics[0].partitions[0].error_code

        assert (ErrorCode.INVALID_GROUP_ID, []) == await delete(agent, 0, group_id="")


async def test_an_older_epoch_commits_beside_what_fails_anyway(tmp_path: Path) -> None:
    """
    KIP-1251: a topic that was deleted, or metadata that is too large, fails alone; else a member
    would lose the offsets of all that it has.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 2), new("u"))
        topic = agent.broker.topics.by_name["t"]
        joined = await beat(agent, 0, ["t"])
        epoch = joined.member_epoch
        await beat(agent, epoch, ["t", "u"])
        async with asyncio.timeout(60):
            while (await beat(agent, epoch)).member_epoch == epoch:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        gone = await commit_as(agent, "m", epoch, {topic.topic_id: [0, 2], UUID(int=9): [0]})
        large = await commit_as(agent, "m", epoch, {topic.topic_id: [0, 1]}, ["", "x" * 4097])
        not_had = agent.broker.topics.by_name["u"].topic_id
        stale = await commit_as(agent, "m", epoch, {topic.topic_id: [0], not_had: [0]})

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [[ErrorCode.NONE, unknown], [ErrorCode.UNKNOWN_TOPIC_ID]] == gone
        assert [[ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]] == large
        assert [[ErrorCode.STALE_MEMBER_EPOCH]] * 2 == stale


async def test_what_is_unknown_stays_so_when_the_group_refuses(tmp_path: Path) -> None:
    """
    A consumer drops a deleted topic only if it is told that this is unknown.  The group's error is
    that of the others, and a group is not asked about nothing.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        topic = agent.broker.topics.by_name["t"]

        some = await commit_as(agent, "nobody", 3, {topic.topic_id: [0, 1], UUID(int=9): [0]})
        too_large = await commit_as(agent, "nobody", 3, {topic.topic_id: [0]}, ["x" * 4097])
        none = await commit_as(agent, "nobody", 3, {topic.topic_id: [1]})

        refused, unknown = ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [[refused, unknown], [ErrorCode.UNKNOWN_TOPIC_ID]] == some
        assert [[refused]] == too_large
        assert [[unknown]] == none


async def test_offsets_outlive_a_session_and_are_refused_between_two(tmp_path: Path) -> None:
    """
    The next session of the agent claims its groups again; without one nobody is told anything.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        topic = agent.broker.topics.by_name["t"]
        assert [ErrorCode.NONE] == await commit(agent, topic, 0)
        await agent.lose_session()
        assert [5] == await fetch(agent, topic, 0)

        groups, agent.broker.groups = agent.broker.groups, None

        assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == await commit(agent, topic, 0)
        listed = await list_groups.handle(agent.broker, ListGroupsRequest(), agent.context(5))
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == listed.error_code
        agent.broker.groups = groups


@pytest.mark.parametrize(
    ("listener", "where"),
    [("PLAINTEXT", ("localhost", 9092)), ("EXTERNAL", ("broker.example.com", 19092))],
)
async def test_a_coordinator_is_named_by_the_listener_that_a_client_uses(
    tmp_path: Path, listener: str, where: tuple[str, int]
) -> None:
    """
    A client outside is told the address that it can reach; one of an unknown listener, nobody's.
    """
    async with RunningAgent(tmp_path) as agent:
        request = fc.FindCoordinatorRequest(coordinator_keys=["a", "b"])
        context = agent.context(4, listener=listener)

        answer = await find_coordinator.handle(agent.broker, request, context)
        nowhere = await find_coordinator.handle(
            agent.broker, request, agent.context(4, listener="NONE")
        )

        assert [(NODE_ID, *where)] * 2 == [(c.node_id, c.host, c.port) for c in answer.coordinators]
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [(-1, unavailable)] * 2 == [(c.node_id, c.error_code) for c in nowhere.coordinators]


async def test_a_transactional_producer_is_refused_at_once(tmp_path: Path) -> None:
    """
    There are no transactions: an error that clients take as final, not one that they wait on.
    """
    async with RunningAgent(tmp_path) as agent:
        request = fc.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])

        answer = await find_coordinator.handle(agent.broker, request, agent.context(6))

        [found] = answer.coordinators
        assert ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED == found.error_code
        assert not ErrorCode(found.error_code).retriable


@pytest.mark.parametrize("name", ["g" * 32_767, "😀" * 8_191])
async def test_errors_that_quote_the_longest_name_can_be_sent(tmp_path: Path, name: str) -> None:
    """
    A string of the protocol has no more bytes than what the client has sent already.
    """
    beat = ch.ConsumerGroupHeartbeatRequest(group_id=name, member_id="m", member_epoch=1)
    about = cd.ConsumerGroupDescribeRequest(group_ids=[name])
    classic = dg.DescribeGroupsRequest(groups=[name])
    async with RunningAgent(tmp_path) as agent:
        one, six = agent.context(1), agent.context(6)
        beaten = await consumer_group_heartbeat.handle(agent.broker, beat, one)
        said = await consumer_group_describe.handle(agent.broker, about, one)
        dead = await describe_groups.handle(agent.broker, classic, six)

    assert ch.API.encode_response(1, 1, beaten)
    assert cd.API.encode_response(1, 1, said)
    assert dg.API.encode_response(6, 1, dead)
