"""FindCoordinator: which agent coordinates a group.

Any agent answers from its view of the cluster.  There are no transactions yet: a transactional id
gets the error of InitProducerId, so that a producer fails at once and does not wait for a
coordinator that never comes.

Source: kafka.server.KafkaApis#handleFindCoordinatorRequest.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import Node, node_of
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.producer_ids import log_transactional_id
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
"""CoordinatorType#id."""

_MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the "
    "message was sent to an incompatible broker. See the broker logs for more details."
)
"""Errors.INVALID_REQUEST#message."""

_NOWHERE: Final = Node(-1, "", -1, None)


async def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Answer *request*."""
    if request.key_type == TRANSACTION:
        log_transactional_id((request.coordinator_keys or [request.key])[0], context)
    if context.api_version >= 4:
        return FindCoordinatorResponse(
            coordinators=[
                _coordinator(broker, request.key_type, key, context)
                async for key in sliced(request.coordinator_keys)
            ]
        )
    found = _coordinator(broker, request.key_type, request.key, context)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message if found.error_code else "NONE",
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(broker: Broker, key_type: int, key: str, context: RequestContext) -> Coordinator:
    code, message, node = ErrorCode.NONE, "", _NOWHERE
    if key_type == GROUP:  # An empty id too: old clients commit under it.
        node_id = broker.coordinators.of(key)
        there = None if node_id is None else node_of(broker, node_id, context.listener)
        if there is None:
            code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available."
        else:
            node = there
    elif key_type == TRANSACTION:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        message = "This version has no transactions: use an idempotent producer without an id."
    elif key_type == SHARE:
        code, message = ErrorCode.INVALID_REQUEST, "There are no share groups."
    else:
        code, message = ErrorCode.INVALID_REQUEST, _MALFORMED
    return Coordinator(
        key=key,
        node_id=node.node_id,
        host=node.host,
        port=node.port,
        error_code=code,
        error_message=message,
    )
