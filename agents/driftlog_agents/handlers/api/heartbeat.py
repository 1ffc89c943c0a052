"""Heartbeat: a member is alive, and learns whether its group rebalances.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService#heartbeat.
Shell.
"""

from driftlog_agents.groups.classic import messages as classic
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(
    broker: Broker, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse:
    """Answer *request*."""
    try:
        error = await _heard(broker, request)
    except RefusedError as refused:
        error = refused.code
    return HeartbeatResponse(error_code=error)


async def _heard(broker: Broker, request: HeartbeatRequest) -> ErrorCode:
    groups = coordinating(broker)
    refused = classic.refuse_group_id(request.group_id)
    if refused:
        return refused
    beat = classic.HeartbeatRequest(
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    group = await groups.group(request.group_id)
    machine = None if group is None else group.machine
    if group is None or machine is None:
        answer = classic.unknown_group(beat)
    else:
        answer = await group.ask(
            lambda request_id, now_ms: machine.heartbeat(request_id, beat, now_ms)
        )
    assert isinstance(answer, classic.HeartbeatResponse)
    return answer.error
