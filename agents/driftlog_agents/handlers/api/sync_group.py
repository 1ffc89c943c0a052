"""SyncGroup: the leader sends the assignment, the other members wait for theirs.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService#syncGroup.
Shell.
"""

from driftlog_agents.groups.classic.messages import (
    SyncRequest,
    SyncResponse,
    refuse_sync,
    unknown_group,
)
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(
    broker: Broker, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse:
    """Answer *request*."""
    syncing = SyncRequest(
        version=context.api_version,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    try:
        answer = await _synced(broker, request.group_id, syncing, context)
    except RefusedError as error:
        answer = SyncResponse(error=error.code)
    context.answer.add(len(answer.assignment))
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


async def _synced(
    broker: Broker, group_id: str, syncing: SyncRequest, context: RequestContext
) -> SyncResponse:
    groups = coordinating(broker)
    refused = refuse_sync(group_id, syncing)
    if refused:
        return SyncResponse(error=refused)
    group = await groups.group(group_id)
    machine = None if group is None else group.machine
    if group is None or machine is None:
        answer = unknown_group(syncing)
    else:
        group.admit_assignment(syncing.assignments)
        answer = await group.ask(
            lambda request_id, now_ms: machine.sync(request_id, syncing, now_ms), context.on_close
        )
    assert isinstance(answer, SyncResponse)
    return answer
