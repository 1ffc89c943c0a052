"""DescribeGroups: the members of classic groups, with their metadata and assignments.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager#describeGroups.
Shell.
"""

from driftlog_agents.foundation.loop_slices import each, sliced
from driftlog_agents.groups.classic.description import ClassicGroupState
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import NOT_ASKED
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import (
    DESCRIBED_AT_ONCE,
    GROUP_OPERATIONS,
    as_message,
    coordinating,
)
from driftlog_agents.protocol.api import message_bytes
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


async def handle(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Answer *request*."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    wanted = dict.fromkeys(request.groups)
    found = await each(
        wanted,
        lambda group_id: _described(broker, group_id, context),
        DESCRIBED_AT_ONCE,
    )
    described = dict(zip(wanted, found, strict=True))
    for group in found:
        if not group.error_code:
            group.authorized_operations = operations
    sizes = {group_id: message_bytes(group) async for group_id, group in sliced(described.items())}
    for group_id in request.groups:  # Kafka describes a group as often as it is named.
        context.answer.add(sizes[group_id])
    return DescribeGroupsResponse(groups=[described[group_id] for group_id in request.groups])


async def _described(broker: Broker, group_id: str, context: RequestContext) -> DescribedGroup:
    try:
        group = await coordinating(broker).group(group_id)
    except RefusedError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    machine = None if group is None else group.classic
    if group is None or machine is None:
        dead = DescribedGroup(group_id=group_id, group_state=ClassicGroupState.DEAD)
        if context.api_version >= 6:
            dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            what = "found" if group is None else "a classic group"
            why = f"Group {group_id} {'is ' if group else ''}not {what}."
            dead.error_message = as_message(why)
        return dead
    await context.room(group.members_bytes)
    said = machine.describe()
    return DescribedGroup(
        group_id=group_id,
        group_state=said.state,
        protocol_type=said.protocol_type,
        protocol_data=said.protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in said.members
        ],
    )
