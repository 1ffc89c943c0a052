"""Requests of KIP-848 clients to the groups that this agent coordinates.

The first join creates a group that does not exist.  It converts a classic group that is empty or
whose members KIP-848 can take over.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager#getOrMaybeCreateConsumerGroup.
Shell.
"""

from collections.abc import Awaitable, Callable

from driftlog_agents.groups.classic.messages import JoinRequest
from driftlog_agents.groups.classic.subscription import named_topics, subscribed_topics
from driftlog_agents.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DescribedConsumerGroup,
)
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.sizes import ELEMENT_BYTES, texts_bytes
from driftlog_agents.groups.storage_format import CONSUMER
from driftlog_agents.protocol.errors import ErrorCode, RefusedError


async def heartbeat(
    groups: GroupCoordinator, group_id: str, beat: ConsumerHeartbeat
) -> ConsumerHeartbeatResponse:
    """Join, heartbeat or leave.

    Raises:
        RefusedError: the group does not exist, this agent does not coordinate it, a limit refuses
            the request, or the write failed.
    """
    groups.budget.refuse_member(group_id, beat.said_bytes)
    await groups.topics.know(beat.topic_names or ())
    if beat.member_epoch == JOIN_EPOCH:
        group = await groups.made(group_id, CONSUMER)
    else:
        there = await groups.group(group_id)
        if there is None:
            what = "Consumer group" if beat.member_epoch > JOIN_EPOCH else "Group"
            why = f"{what} {group_id} not found."
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, why)
        group = there
    machine = group.consumer
    if machine is None:
        why = f"Group {group_id} is not a consumer group."
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, why)
    growth_bytes = machine.assigned_growth_bytes(beat.topic_names or (), beat.topic_regex)
    group.admit(beat.member_id, beat.said_bytes, growth_bytes)
    answer = await group.ask(lambda request_id, now_ms: machine.heartbeat(request_id, beat, now_ms))
    assert isinstance(answer, ConsumerHeartbeatResponse)
    return answer


def admit_classic(groups: GroupCoordinator, group: ServedGroup, joining: JoinRequest) -> None:
    """Refuse a member of the classic protocol as `heartbeat` refuses one of KIP-848: beside what it
    has sent, the group keeps the names of its topics.

    Raises:
        RefusedError: a limit refuses the member.
    """
    machine = group.consumer
    if machine is None:
        group.admit(joining.member_id, joining.said_bytes)
        return
    metadata = joining.protocols[0].metadata if joining.protocols else b""
    # Before the names are read: one of a few bytes takes more in memory.
    least_bytes = joining.said_bytes + ELEMENT_BYTES * named_topics(metadata)
    groups.budget.refuse_member(group.group_id, least_bytes)
    names = subscribed_topics(metadata) or frozenset()
    said_bytes = joining.said_bytes + texts_bytes(names)
    group.admit(joining.member_id, said_bytes, machine.assigned_growth_bytes(names, None))


async def describe(
    groups: GroupCoordinator, group_id: str, room: Callable[[int], Awaitable[None]]
) -> DescribedConsumerGroup:
    """The members of a group, with the current and the target assignment of each.

    *room* waits until there is room for so many bytes.

    Raises:
        RefusedError: the group does not exist, or this agent does not coordinate it.
    """
    group = await groups.group(group_id)
    if group is None:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    await room(group.members_bytes)
    machine = group.consumer
    if machine is None:
        why = f"Group {group_id} is not a consumer group."
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, why)
    answer = await group.ask(lambda request_id, now_ms: machine.describe(request_id, now_ms))
    assert isinstance(answer, DescribedConsumerGroup)
    return answer
