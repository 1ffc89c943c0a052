"""DeleteGroups: groups that nobody is in go, with their offsets.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorShard#deleteGroups.
Shell.
"""

import asyncio

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers.coordinating import coordinating
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(
    broker: Broker,
    request: DeleteGroupsRequest,
    context: RequestContext,  # noqa: ARG001 - as all handlers
) -> DeleteGroupsResponse:
    """Answer *request*."""
    async with asyncio.TaskGroup() as tasks:
        results = [
            tasks.create_task(_deleted(broker, group_id))
            for group_id in dict.fromkeys(request.groups_names)
        ]
    return DeleteGroupsResponse(results=[task.result() for task in results])


async def _deleted(broker: Broker, group_id: str) -> DeletableGroupResult:
    try:
        code = await coordinating(broker).delete(group_id)
    except RefusedError as error:
        code = error.code
    return DeletableGroupResult(group_id=group_id, error_code=code)
