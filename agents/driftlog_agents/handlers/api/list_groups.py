"""ListGroups: the groups that this agent coordinates; clients ask all agents.

While this agent loads groups it answers COORDINATOR_LOAD_IN_PROGRESS, and clients ask again: in an
incomplete list groups would seem to be deleted.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService#listGroups.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_GROUP_BYTES: Final = 200
"""Memory of one group while an answer is made: its object, and its bytes without its id."""


async def handle(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """Answer *request*."""
    try:
        groups = coordinating(broker)
    except RefusedError as error:
        return ListGroupsResponse(error_code=error.code)
    if not groups.complete:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    await context.room(len(groups.groups) * _GROUP_BYTES)
    listed: list[ListedGroup] = []
    async for group in sliced(list(groups.groups.values())):
        state, kind = group.state, group.kind
        if (not states or state.lower() in states) and (not types or kind in types):
            context.answer.add(len(group.group_id))
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=state,
                    group_type=kind,
                )
            )
    return ListGroupsResponse(groups=listed)
