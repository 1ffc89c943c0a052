"""Group requests are answered truly with a view that is behind, and between two sessions."""

from dataclasses import replace
from pathlib import Path

import pytest

from driftlog_agents.handlers.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    find_coordinator,
    list_groups,
    offset_commit,
    offset_fetch,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import consumer_group_heartbeat as ch
from driftlog_agents.protocol.messages import describe_groups as dg
from driftlog_agents.protocol.messages import find_coordinator as fc
from driftlog_agents.protocol.messages import offset_commit as oc
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
