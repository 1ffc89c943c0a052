"""DescribeCluster (key 60): brokers, controller, cluster id.  Always flexible.

| version | change |
|---|---|
| 1 | brokers (1) or controllers (2) (KIP-919) |
| 2 | fenced brokers on request (KIP-1073) |

Source: DescribeClusterRequest.json, DescribeClusterResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int8, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, V("1+")] = 1
    include_fenced_brokers: Annotated[Bool, V("2+")] = False


@dataclass(slots=True, kw_only=True)
class DescribeClusterBroker:
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, V("2+")] = False


@dataclass(slots=True, kw_only=True)
class DescribeClusterResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, V("1+")] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    cluster_authorized_operations: Int32 = -0x8000_0000


API: Final = Api(
    ApiKey.DESCRIBE_CLUSTER,
    DescribeClusterRequest,
    DescribeClusterResponse,
    versions="0-2",
    flexible="0+",
)
