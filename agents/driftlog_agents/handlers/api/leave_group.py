"""LeaveGroup: members leave, or an administrator removes them.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService#leaveGroup.
Shell.
"""

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.groups.classic.messages import (
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    refuse_group_id,
    unknown_group,
)
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


async def handle(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    """Answer *request*."""
    alone = context.api_version < 3
    members = [
        LeavingMember(
            member_id=member.member_id, instance_id=member.group_instance_id, reason=member.reason
        )
        async for member in sliced(request.members)
    ]
    if alone:
        members = [LeavingMember(member_id=request.member_id)]
    try:
        answer = await _left(broker, request.group_id, LeaveRequest(members=tuple(members)))
    except RefusedError as error:
        answer = LeaveResponse(error=error.code)
    code = answer.error
    if alone and not code and answer.members:
        code = answer.members[0].error
    return LeaveGroupResponse(
        error_code=code,
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                error_code=member.error,
            )
            async for member in sliced(answer.members)
        ],
    )


async def _left(broker: Broker, group_id: str, leaving: LeaveRequest) -> LeaveResponse:
    groups = coordinating(broker)
    refused = refuse_group_id(group_id)
    if refused:
        return LeaveResponse(error=refused)
    group = await groups.group(group_id)
    machine = None if group is None else group.machine
    if group is None or machine is None:
        answer = unknown_group(leaving)
    else:
        answer = await group.ask(
            lambda request_id, now_ms: machine.leave(request_id, leaving, now_ms)
        )
    assert isinstance(answer, LeaveResponse)
    return answer
