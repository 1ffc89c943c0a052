"""AlterPartitionReassignments (key 45): other replicas for partitions (KIP-455).

| version | change |
|---|---|
| 1 | whether the replication factor may change (KIP-860) |

Null replicas cancel a reassignment in progress.

Source: AlterPartitionReassignmentsRequest.json, AlterPartitionReassignmentsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class ReassignablePartition:
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


@dataclass(slots=True, kw_only=True)
class ReassignableTopic:
    name: String = ""
    partitions: list[ReassignablePartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, V("1+")] = True
    topics: list[ReassignableTopic] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ReassignablePartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


@dataclass(slots=True, kw_only=True)
class ReassignableTopicResponse:
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, V("1+")] = True
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = field(default_factory=list)


API: Final = Api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    versions="0-1",
    flexible="0+",
)
