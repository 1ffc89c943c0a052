"""DescribeCluster: brokers, the controller, the cluster's id.

There is no controller: answers name a live agent, as KRaft names any broker, but always the same
one while it serves.
Source: kafka.server.KafkaApis#handleDescribeCluster, AuthHelper#computeDescribeClusterResponse.
Shell.
"""

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    controller_id,
    nodes,
)
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1
_CONTROLLERS = 2


async def handle(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Answer *request*."""
    if request.endpoint_type == _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an "
            "endpoint of type CONTROLLER",
        )
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    reachable = nodes(broker, context.listener)
    asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=controller_id(broker, reachable),
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in reachable.values()
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )
