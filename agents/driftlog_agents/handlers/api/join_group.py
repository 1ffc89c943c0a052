"""JoinGroup: a member joins its group, and waits until the group is complete.

JoinGroup blocks only later requests on the same connection, as in Kafka; a client that disconnects
stays a member until its session ends.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService#joinGroup.
Shell.
"""

from driftlog_agents.configs.limits import MAX_SESSION_TIMEOUT, MIN_SESSION_TIMEOUT
from driftlog_agents.groups.classic.messages import (
    JoinRequest,
    JoinResponse,
    Protocol,
    creates_group,
    refuse_join,
    unknown_group,
)
from driftlog_agents.groups.coordinator.consumer_requests import admit_classic
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import (
    client_host,
    coordinating,
    rebalance_timeout_ms,
)
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)


async def handle(
    broker: Broker, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse:
    """Answer *request*."""
    timeout_ms = rebalance_timeout_ms(broker, request.rebalance_timeout_ms)
    joining = JoinRequest(
        version=context.api_version,
        client_id=context.client_id or "",
        client_host=client_host(context),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout_ms,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(one.name, bytes(one.metadata)) for one in request.protocols),
        reason=request.reason,
    )
    try:
        answer = await _joined(broker, request.group_id, joining, context)
    except RefusedError as error:
        answer = JoinResponse(error=error.code, member_id=request.member_id)
    context.answer.add(sum(len(m.member_id) + len(m.metadata) for m in answer.members))
    protocol = answer.protocol
    if protocol is None and context.api_version < 7:
        protocol = ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ],
    )


async def _joined(
    broker: Broker, group_id: str, joining: JoinRequest, context: RequestContext
) -> JoinResponse:
    groups = coordinating(broker)
    refused = refuse_join(group_id, joining, groups.settings.classic)
    if refused:
        if refused is ErrorCode.INVALID_SESSION_TIMEOUT:
            longest = groups.settings.classic.max_session_timeout_ms
            too_long = joining.session_timeout_ms > longest
            broker.refusals.count(MAX_SESSION_TIMEOUT if too_long else MIN_SESSION_TIMEOUT)
        return JoinResponse(error=refused, member_id=joining.member_id)
    groups.budget.refuse_member(group_id, joining.said_bytes)
    if creates_group(joining):
        group = await groups.made(group_id, CLASSIC)
    else:
        there = await groups.group(group_id)
        if there is None or (there.consumer is not None and there.machine.is_empty):
            answer = unknown_group(joining)
            assert isinstance(answer, JoinResponse)
            return answer
        group = there
    admit_classic(groups, group, joining)
    machine = group.machine
    answer = await group.ask(
        lambda request_id, now_ms: machine.join(request_id, joining, now_ms), context.on_close
    )
    assert isinstance(answer, JoinResponse)
    return answer
