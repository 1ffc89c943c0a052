"""DeleteGroups: deletes empty groups with their offsets.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorShard#deleteGroups.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import each
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

_AT_ONCE: Final = 64
"""Groups looked up and deleted at the same time; what is decided together is written together."""


async def handle(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Answer *request*."""
    wanted = dict.fromkeys(request.groups_names)
    results = await each(wanted, lambda group_id: _deleted(broker, group_id), _AT_ONCE)
    return DeleteGroupsResponse(results=results)


async def _deleted(broker: Broker, group_id: str) -> DeletableGroupResult:
    try:
        code = await coordinating(broker).delete(group_id)
    except RefusedError as error:
        code = error.code
    return DeletableGroupResult(group_id=group_id, error_code=code)
