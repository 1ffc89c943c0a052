"""UnregisterBroker: a stopped agent's registration ends with its lease.

Source: org.apache.kafka.controller.ClusterControlManager#unregisterBroker.
Shell.
"""

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import live_agents
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def handle(
    broker: Broker, request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    """Answer *request*.  (Kafka removes a running broker too; here it would register again at
    once.)"""
    node_id = request.broker_id
    if node_id not in live_agents(broker):
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Broker ID {node_id} is not currently registered",
        )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"Agent {node_id} is running: stop it, and the others forget it by "
        "themselves.",
    )
