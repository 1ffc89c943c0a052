"""An agent answers ConsumerGroupHeartbeat and ConsumerGroupDescribe, also while the protocol
changes.

`tests/clients/test_consumer_transcripts.py` asks Apache Kafka the same, where there is one.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.handlers.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import consumer_group_heartbeat as ch
from driftlog_agents.protocol.messages import heartbeat as hb
from driftlog_agents.protocol.messages import join_group as jg
from driftlog_agents.protocol.messages import leave_group as lv
from driftlog_agents.protocol.messages import sync_group as sg
from driftlog_agents.protocol.messages.list_groups import ListGroupsRequest
from tests.agents.handlers.asking import create, new
from tests.support.engine import RunningAgent


async def beat(
    agent: RunningAgent, member: str, epoch: int, version: int = 1, **said: Any
) -> ch.ConsumerGroupHeartbeatResponse:
    """ConsumerGroupHeartbeat."""
    request = ch.ConsumerGroupHeartbeatRequest(
        group_id=said.pop("group_id", "g"), member_id=member, member_epoch=epoch, **said
    )
    return await consumer_group_heartbeat.handle(agent.broker, request, agent.context(version))


async def join(agent: RunningAgent, member: str, **said: Any) -> ch.ConsumerGroupHeartbeatResponse:
    """The same with all that a member has to say."""
    defaults: dict[str, Any] = {
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return await beat(agent, member, 0, **{**defaults, **said})


async def make(agent: RunningAgent, **partitions: int) -> None:
    """Topics, and wait until groups have heard of them."""
    await create(agent, *(new(name, count) for name, count in partitions.items()))
    await heard_of(agent, *partitions)


async def heard_of(agent: RunningAgent, *topics: str) -> None:
    """Wait until groups know *topics*."""
    groups = agent.broker.groups
    assert groups is not None
    async with asyncio.timeout(60):
        while not set(topics) <= groups.topics.current.by_name.keys():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def describe(agent: RunningAgent) -> cd.DescribedGroup:
    """ConsumerGroupDescribe."""
    request = cd.ConsumerGroupDescribeRequest(group_ids=["g"])
    answer = await consumer_group_describe.handle(agent.broker, request, agent.context(1))
    return answer.groups[0]


async def group_types(agent: RunningAgent) -> list[tuple[str, str]]:
    """ListGroups, when all groups are loaded."""
    for _ in range(1_000):
        answer = await list_groups.handle(agent.broker, ListGroupsRequest(), agent.context(5))
        if not answer.error_code:
            break
        await asyncio.sleep(0.01)
    return [(group.group_type, group.group_state) for group in answer.groups]


@pytest.mark.parametrize(
    ("member", "said", "expected"),
    [
        ("", {}, "MemberId can't be empty."),
        (" ", {}, "MemberId can't be empty."),
        ("a", {"group_id": " "}, "GroupId can't be empty."),
        ("a", {"instance_id": ""}, "InstanceId can't be empty."),
        ("a", {"rack_id": " "}, "RackId can't be empty."),
        (
            "a",
            {"rebalance_timeout_ms": -1},
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        ("a", {"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            "a",
            {"topic_partitions": [ch.TopicPartitions(partitions=[0])]},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            "a",
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
    ],
)
async def test_what_is_no_request_is_refused(
    tmp_path: Path, member: str, said: dict[str, Any], expected: str
) -> None:
    """
    INVALID_REQUEST, in Kafka's words, before a group is looked for.
    """
    async with RunningAgent(tmp_path) as agent:
        answer = await join(agent, member, **said)

        assert (ErrorCode.INVALID_REQUEST, expected) == (answer.error_code, answer.error_message)
        assert [] == await group_types(agent)


async def test_a_topic_that_was_just_made_is_assigned_at_once(tmp_path: Path) -> None:
    """
    However soon after another one: who joins is not left without it until the next heartbeat.
    """
    async with RunningAgent(tmp_path) as agent:
        await make(agent, before=1)
        await create(agent, new("t", 2))
        answer = await join(agent, "a")
        await heard_of(agent, "t")
        later = await beat(agent, "a", answer.member_epoch)

        assert answer.assignment is not None
        assert [[0, 1]] == [t.partitions for t in answer.assignment.topic_partitions]
        assert (0, answer.member_epoch) == (later.error_code, later.member_epoch)


async def test_epochs_assignors_and_patterns_that_are_none_are_refused(tmp_path: Path) -> None:
    """
    Each with an error of its own.
    """
    async with RunningAgent(tmp_path) as agent:
        answers = [
            await beat(agent, "a", -2),
            await beat(agent, "a", -3),
            await join(agent, "a", server_assignor="sticky"),
            await join(agent, "a", subscribed_topic_regex="("),
            await beat(agent, "a", 2),
            await beat(agent, "a", -1),
        ]

        assert [
            (ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
            (ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
            (
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
            ),
            (
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                "SubscribedTopicRegex `(` is not a valid regular expression: missing ): (.",
            ),
            (ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
            (ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
        ] == [(answer.error_code, answer.error_message) for answer in answers]


async def test_members_of_version_0_are_given_an_id(tmp_path: Path) -> None:
    """
    22 characters, as Kafka's ids are written.
    """
    async with RunningAgent(tmp_path) as agent:
        await make(agent, t=2)
        one, other = [await join(agent, "", version=0) for _ in range(2)]

        assert 22 == len(one.member_id or "")
        assert one.member_id != other.member_id


async def test_a_group_outlives_a_session(tmp_path: Path) -> None:
    """
    Epoch and assignment are what the member was told; nobody else gets what it has.
    """
    async with RunningAgent(tmp_path) as agent:
        await make(agent, t=2)
        joined = await join(agent, "a")
        assert joined.assignment is not None
        assert [[0, 1]] == [t.partitions for t in joined.assignment.topic_partitions]
        await agent.lose_session()

        again = await beat(agent, "a", joined.member_epoch)
        assert (ErrorCode.NONE, joined.member_epoch) == (again.error_code, again.member_epoch)
        other = await join(agent, "b")
        assert other.assignment is not None
        assert [] == other.assignment.topic_partitions
        described = await describe(agent)
        assert {"a", "b"} == {member.member_id for member in described.members}
        has = {m.member_id: m.assignment.topic_partitions for m in described.members}
        assert [("t", [0, 1])] == [(t.topic_name, t.partitions) for t in has["a"]]


async def test_a_pattern_is_matched_away_from_the_heartbeat(tmp_path: Path) -> None:
    """
    A later heartbeat has what it matches.
    """
    async with RunningAgent(tmp_path) as agent:
        await make(agent, t=2, u=1)
        said = {"subscribed_topic_names": None, "subscribed_topic_regex": "[tu]"}
        answer = await join(agent, "a", **said)
        for _ in range(100):
            if answer.assignment is not None and answer.assignment.topic_partitions:
                break
            await asyncio.sleep(0.02)
            answer = await join(agent, "a", **said)

        assert answer.assignment is not None
        assert 2 == len(answer.assignment.topic_partitions)


async def test_a_group_changes_its_protocol_with_its_members(tmp_path: Path) -> None:
    """
    Classic, then both, then classic again; what is stored is what it is, at every step.
    """
    async with RunningAgent(tmp_path) as agent:
        await make(agent, t=2)
        subscription = encode_subscription(1, ConsumerProtocolSubscription(topics=["t"]))
        request = jg.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        joined = await join_group.handle(agent.broker, request, agent.context(3))
        member_id = request.member_id = joined.member_id
        sync = sg.SyncGroupRequest(
            group_id="g", generation_id=joined.generation_id, member_id=member_id
        )
        await sync_group.handle(agent.broker, sync, agent.context(3))
        assert [("classic", "Stable")] == await group_types(agent)

        assert ErrorCode.NONE == (await join(agent, "z")).error_code
        await agent.lose_session()
        assert "Reconciling" == (await describe(agent)).group_state
        assert [("consumer", "Reconciling")] == await group_types(agent)
        lives = hb.HeartbeatRequest(
            group_id="g", generation_id=joined.generation_id, member_id=member_id
        )
        alive = await heartbeat.handle(agent.broker, lives, agent.context(3))
        assert ErrorCode.REBALANCE_IN_PROGRESS == alive.error_code
        again = await join_group.handle(agent.broker, request, agent.context(3))
        assert joined.generation_id + 1 == again.generation_id

        assert ErrorCode.NONE == (await beat(agent, "z", -1)).error_code
        assert [("classic", "PreparingRebalance")] == await group_types(agent)
        await agent.lose_session()
        assert ErrorCode.GROUP_ID_NOT_FOUND == (await describe(agent)).error_code
        assert [("classic", "Stable")] == await group_types(agent)
        leave = lv.LeaveGroupRequest(group_id="g", members=[lv.MemberIdentity(member_id=member_id)])
        left = await leave_group.handle(agent.broker, leave, agent.context(3))
        assert [ErrorCode.NONE] == [member.error_code for member in left.members]
