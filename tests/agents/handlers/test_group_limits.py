"""What one client can make an agent hold for its groups is bounded."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.group_settings import ClassicSettings, GroupSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.api import (
    consumer_group_describe,
    describe_groups,
    join_group,
    leave_group,
    offset_commit,
    sync_group,
)
from driftlog_agents.handlers.common.context import AnswerBytes
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode, OverLimitError
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import describe_groups as dg
from driftlog_agents.protocol.messages import join_group as jg
from driftlog_agents.protocol.messages import leave_group as lv
from driftlog_agents.protocol.messages import offset_commit as oc
from driftlog_agents.protocol.messages import sync_group as sg
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.test_consumer_groups_api import beat, make
from tests.agents.handlers.test_consumer_groups_api import join as join_consumer
from tests.support.engine import RunningAgent

KiB = 1024


def agent_of(path: Path, max_size: int = 10_000, **limits: Any) -> RunningAgent:
    """With these limits."""
    classic = ClassicSettings(initial_rebalance_delay_ms=0, max_size=max_size)
    settings = BrokerSettings(
        location=str(path / "bucket"),
        limits=Limits(**limits),
        groups=GroupSettings(classic=classic),
    )
    return RunningAgent(path, settings=settings)


async def join(
    agent: RunningAgent, group: str, metadata: bytes = b"m", protocols: int = 1, **said: Any
) -> jg.JoinGroupResponse:
    """JoinGroup of version 3: of a member without an id it is the only one that is needed."""
    fields: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "x",
        **said,
    }
    request = jg.JoinGroupRequest(
        group_id=group,
        protocols=[jg.JoinGroupRequestProtocol(name="p", metadata=metadata)] * protocols,
        **fields,
    )
    return await join_group.handle(agent.broker, request, agent.context(3))


async def sync(
    agent: RunningAgent, group: str, joined: jg.JoinGroupResponse, assignment: bytes
) -> int:
    """SyncGroup of the leader, who is alone; the error code."""
    request = sg.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            sg.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)
        ],
    )
    return (await sync_group.handle(agent.broker, request, agent.context(3))).error_code


async def commit(agent: RunningAgent, group: str, metadata: str = "", partitions: int = 1) -> int:
    """The error code."""
    said = [
        oc.OffsetCommitRequestPartition(
            partition_index=n, committed_offset=1, committed_metadata=metadata
        )
        for n in range(partitions)
    ]
    request = oc.OffsetCommitRequest(
        group_id=group, topics=[oc.OffsetCommitRequestTopic(name="t", partitions=said)]
    )
    answer = await offset_commit.handle(agent.broker, request, agent.context(2))
    return answer.topics[0].partitions[0].error_code


def refused(agent: RunningAgent, limit: str) -> int:
    """What `driftlog_refused_total` says of it."""
    return agent.broker.refusals.counts[limit]


async def test_a_member_says_no_more_than_it_may(tmp_path: Path) -> None:
    """
    JoinGroup, SyncGroup and ConsumerGroupHeartbeat are refused for good, and leave no group.
    """
    async with agent_of(tmp_path, driftlog_max_group_member_bytes=4 * KiB) as agent:
        await make(agent, t=1)

        large = await join(agent, "large", bytes(5 * KiB))
        named = await join_consumer(
            agent, "m", group_id="named", subscribed_topic_names=["x" * 200] * 30
        )
        joined = await join(agent, "g", bytes(3 * KiB))
        assigned = await sync(agent, "g", joined, bytes(2 * KiB))
        assert agent.broker.groups is not None

        assert ErrorCode.INVALID_REQUEST == large.error_code
        assert ErrorCode.INVALID_REQUEST == named.error_code
        assert (ErrorCode.NONE, ErrorCode.INVALID_REQUEST) == (joined.error_code, assigned)
        assert ["g"] == list(agent.broker.groups.groups)
        assert 3 == refused(agent, "driftlog.max.group.member.bytes")


def subscription(*names: str) -> bytes:
    """A classic member's metadata."""
    said = ConsumerProtocolSubscription(topics=list(names), owned_partitions=[])
    return encode_subscription(1, said)


@pytest.mark.parametrize(
    ("names", "answer", "refusals"),
    [
        ([f"{number}" for number in range(70)], ErrorCode.INVALID_REQUEST, 1),
        (["x" * 1_000, "y" * 1_000], ErrorCode.INVALID_REQUEST, 1),
        (["x" * 1_000], ErrorCode.NONE, 0),
    ],
    ids=["many", "long", "few"],
)
async def test_names_of_a_classic_member_count_in_a_group_of_kip_848(
    tmp_path: Path, names: list[str], answer: int, refusals: int
) -> None:
    """
    The group keeps them beside the metadata: without this it would hold many times what it may.
    """
    async with agent_of(tmp_path, driftlog_max_group_member_bytes=4 * KiB) as agent:
        await make(agent, t=1)
        await join_consumer(agent, "m", group_id="g", subscribed_topic_names=["t"])
        joined = await join(agent, "g", subscription(*names), protocol_type="consumer")

        assert (answer, refusals) == (
            joined.error_code,
            refused(agent, "driftlog.max.group.member.bytes"),
        )


async def test_a_classic_member_without_protocols_is_refused(tmp_path: Path) -> None:
    """
    By the group's protocol, and the connection stays.
    """
    async with agent_of(tmp_path) as agent:
        await make(agent, t=1)
        await join_consumer(agent, "m", group_id="g", subscribed_topic_names=["t"])
        joined = await join(agent, "g", protocols=0, protocol_type="consumer")

        assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == joined.error_code


async def test_a_member_has_no_more_protocols_than_clients_have(tmp_path: Path) -> None:
    """
    Each takes memory and time at every rebalance, though it is empty.
    """
    async with agent_of(tmp_path) as agent:
        many = await join(agent, "g", b"", protocols=101)
        enough = await join(agent, "g", b"", protocols=100)

        assert ErrorCode.INVALID_REQUEST == many.error_code
        assert ErrorCode.NONE == enough.error_code


async def test_a_group_holds_no_more_than_it_may(tmp_path: Path) -> None:
    """
    A member more is refused for good; those that are in it go on, and so do other groups.
    """
    async with agent_of(tmp_path, driftlog_max_group_bytes=8 * KiB) as agent:
        first = await join(agent, "g", bytes(6 * KiB))
        second = await join(agent, "g", bytes(6 * KiB))
        other = await join(agent, "other", bytes(6 * KiB))
        too_much = await sync(agent, "g", first, bytes(6 * KiB))
        enough = await sync(agent, "g", first, bytes(1 * KiB))

        assert ErrorCode.GROUP_MAX_SIZE_REACHED == second.error_code
        assert (ErrorCode.NONE, ErrorCode.NONE) == (first.error_code, other.error_code)
        assert (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.NONE) == (too_much, enough)
        assert 2 == refused(agent, "driftlog.max.group.bytes")


async def test_assignments_of_one_generation_make_room_for_those_of_the_next(
    tmp_path: Path,
) -> None:
    """
    They are not counted twice.
    """
    async with agent_of(tmp_path, driftlog_max_group_bytes=8 * KiB) as agent:
        joined = await join(agent, "g")
        codes = []
        for _ in range(4):
            codes.append(await sync(agent, "g", joined, bytes(6 * KiB)))
            joined = await join(agent, "g", member_id=joined.member_id)

        assert [ErrorCode.NONE] * 4 == codes


async def test_an_agent_coordinates_no_more_groups_than_it_may(tmp_path: Path) -> None:
    """
    One more is refused retriably, of whatever kind; when one has gone there is room again.
    """
    async with agent_of(tmp_path, driftlog_max_groups=2) as agent:
        await make(agent, t=1)
        joined = await join(agent, "one")
        assert ErrorCode.NONE == await commit(agent, "two")

        third = await join(agent, "three")
        consumer = await join_consumer(agent, "m", group_id="three")
        simple = await commit(agent, "three")

        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [unavailable] * 3 == [third.error_code, consumer.error_code, simple]
        assert 3 == refused(agent, "driftlog.max.groups")
        assert ErrorCode.NONE == await commit(agent, "two")
        left = lv.LeaveGroupRequest(
            group_id="one", members=[lv.MemberIdentity(member_id=joined.member_id)]
        )
        await leave_group.handle(agent.broker, left, agent.context(3))
        assert agent.broker.groups is not None
        await agent.broker.groups.groups["one"].delete()
        assert ErrorCode.NONE == (await join(agent, "three")).error_code


async def test_groups_together_hold_no_more_than_they_may(tmp_path: Path) -> None:
    """
    What makes them larger is refused retriably, by members, by offsets and by what members will
    be assigned; what is in the place of something goes on, and what goes makes room.
    """
    async with agent_of(tmp_path, driftlog_max_groups_bytes=100 * KiB) as agent:
        await create(agent, new("t", 64))
        joined = await join(agent, "g", bytes(30 * KiB))
        assert ErrorCode.NONE == await sync(agent, "g", joined, b"")
        assert ErrorCode.NONE == await commit(agent, "offsets", "x" * 500, partitions=60)
        assert agent.broker.groups is not None
        held = agent.broker.groups.budget.held_bytes
        assert 80 * KiB < held < 100 * KiB

        second = await join(agent, "second", bytes(30 * KiB))
        larger = await commit(agent, "offsets", "x" * 1_000, partitions=60)
        assigned = await join_consumer(agent, "m", group_id="assigned")

        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [unavailable] * 3 == [second.error_code, larger, assigned.error_code]
        assert 3 == refused(agent, "driftlog.max.groups.bytes")
        assert held == agent.broker.groups.budget.held_bytes
        again = await join(agent, "g", bytes(30 * KiB), member_id=joined.member_id)
        assert ErrorCode.NONE == again.error_code
        assert ErrorCode.NONE == await commit(agent, "offsets", "y" * 500, partitions=60)
        await agent.broker.groups.groups["offsets"].delete()
        assert ErrorCode.NONE == (await join(agent, "second", bytes(30 * KiB))).error_code


async def test_the_keys_of_offsets_count(tmp_path: Path) -> None:
    """
    Each page's key has the group's id, also while it is being written: agents held 400 times what
    was counted.
    """
    async with agent_of(tmp_path, driftlog_max_groups_bytes=100 * KiB) as agent:
        await create(agent, *(new(f"t{n}") for n in range(40)))
        group = "%" * 1_024

        async def commit(*numbers: int) -> int:
            said = [oc.OffsetCommitRequestPartition(committed_offset=1, committed_metadata="")]
            topics = [
                oc.OffsetCommitRequestTopic(name=f"t{number}", partitions=said)
                for number in numbers
            ]
            request = oc.OffsetCommitRequest(group_id=group, topics=topics)
            answer = await offset_commit.handle(agent.broker, request, agent.context(2))
            (code,) = {topic.partitions[0].error_code for topic in answer.topics}
            return code

        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert unavailable == await commit(*range(40))
        at_once = await asyncio.gather(*(commit(n) for n in range(40)))
        assert agent.broker.groups is not None
        budget = agent.broker.groups.budget
        stored = [n for n, code in enumerate(at_once) if code == ErrorCode.NONE]
        assert {ErrorCode.NONE, unavailable} == set(at_once)
        assert 3 * KiB * len(stored) < budget.held_bytes < 100 * KiB
        assert unavailable == await commit(*range(40))
        assert ErrorCode.NONE == await commit(*stored)
        await agent.broker.groups.groups[group].delete()
        assert 0 == budget.held_bytes


async def test_a_new_group_has_a_short_id(tmp_path: Path) -> None:
    """
    However it comes into being.
    """
    async with agent_of(tmp_path) as agent:
        await make(agent, t=1)
        longest, longer = "é" * 512, "é" * 512 + "g"

        joined = [(await join(agent, group)).error_code for group in (longer, longest)]
        committed = [await commit(agent, f"xy{group[1:]}") for group in (longer, longest)]
        beaten = await join_consumer(agent, "m", group_id=longer)

        refused = [ErrorCode.INVALID_GROUP_ID, ErrorCode.NONE]
        assert [refused, refused] == [joined, committed]
        assert ErrorCode.INVALID_GROUP_ID == beaten.error_code
        assert "1024 bytes, and not 1025" in (beaten.error_message or "")


async def test_a_description_counts_every_text_of_its_answer(tmp_path: Path) -> None:
    """
    Names of 32 KB are larger than the metadata of members, which alone was counted.
    """
    async with agent_of(tmp_path) as agent:
        await make(agent, t=1)
        await join(agent, "classic", protocol_type="x" * 30_000)
        names = [f"{number}{'y' * 200}" for number in range(100)]
        await join_consumer(agent, "m", group_id="modern", subscribed_topic_names=names)
        classic = dg.DescribeGroupsRequest(groups=["classic"])
        modern = cd.ConsumerGroupDescribeRequest(group_ids=["modern"])

        narrow = replace(agent.context(5), answer=AnswerBytes(20_000))
        with pytest.raises(OverLimitError):
            await describe_groups.handle(agent.broker, classic, narrow)
        narrow = replace(agent.context(1), answer=AnswerBytes(20_000))
        with pytest.raises(ExceptionGroup) as refused:
            await consumer_group_describe.handle(agent.broker, modern, narrow)
        assert isinstance(refused.value.exceptions[0], OverLimitError)


async def test_a_full_group_is_counted(tmp_path: Path) -> None:
    """
    `group.max.size`, as in Kafka.
    """
    async with agent_of(tmp_path, max_size=1) as agent:
        joined = await join(agent, "g")
        assert ErrorCode.NONE == await sync(agent, "g", joined, b"")

        second = await join(agent, "g")

        assert ErrorCode.GROUP_MAX_SIZE_REACHED == second.error_code
        assert 1 == refused(agent, "group.max.size")


async def test_the_longest_rebalance_timeout_is_cut_and_not_refused(tmp_path: Path) -> None:
    """
    Clients say max.poll.interval.ms there, which may be 2^31 - 1 (Kafka Streams).
    """
    async with agent_of(tmp_path, driftlog_max_rebalance_timeout_ms=70_000) as agent:
        await make(agent, t=1)
        longest = 2**31 - 1
        joined = await join(agent, "classic", rebalance_timeout_ms=longest)
        consumer = await join_consumer(
            agent, "m", group_id="consumer", rebalance_timeout_ms=longest
        )
        kept = await beat(agent, "m", consumer.member_epoch, group_id="consumer")
        assert agent.broker.groups is not None
        groups = agent.broker.groups.groups

        assert [ErrorCode.NONE] * 3 == [joined.error_code, consumer.error_code, kept.error_code]
        classic, modern = groups["classic"].classic, groups["consumer"].consumer
        assert classic is not None
        assert modern is not None
        members = (*classic.members, *modern.members.values())
        assert [70_000] * 2 == [member.rebalance_timeout_ms for member in members]
        assert refused(agent, "driftlog.max.rebalance.timeout.ms") >= 2


async def test_a_session_timeout_that_is_too_long_is_refused_and_counted(tmp_path: Path) -> None:
    """
    There is a count of 0 before; one that is too short is counted as that.
    """
    limit = "group.max.session.timeout.ms"
    async with agent_of(tmp_path) as agent:
        short = await join(agent, "g", session_timeout_ms=1)
        before = dict(agent.broker.refusals.counts)
        long = await join(agent, "g", session_timeout_ms=1_800_001)

        invalid = ErrorCode.INVALID_SESSION_TIMEOUT
        assert [invalid] * 2 == [short.error_code, long.error_code]
        assert (0, 1) == (before[limit], refused(agent, limit))
        assert 1 == before["group.min.session.timeout.ms"]
        assert 0 == before["group.max.size"] == before["group.consumer.max.size"]


@pytest.mark.parametrize("patterns", [100])
async def test_a_group_has_no_more_patterns_than_it_may(tmp_path: Path, patterns: int) -> None:
    """
    Each is matched with all topics; members that bring no new one are welcome.
    """
    async with agent_of(tmp_path) as agent:
        await make(agent, t=1)

        async def bring(number: int, pattern: str) -> int:
            answer = await join_consumer(
                agent, f"m{number}", subscribed_topic_names=None, subscribed_topic_regex=pattern
            )
            return answer.error_code

        codes = await asyncio.gather(*(bring(n, f"t{n}") for n in range(patterns)))

        assert {ErrorCode.NONE} == set(codes)
        assert ErrorCode.GROUP_MAX_SIZE_REACHED == await bring(patterns, "more")
        assert ErrorCode.NONE == await bring(patterns, "t0")
