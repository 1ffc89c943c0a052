"""ListPartitionReassignments (key 46): reassignments in progress (KIP-455).

Null asks for all partitions.

Source: ListPartitionReassignmentsRequest.json, ListPartitionReassignmentsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class ListPartitionReassignmentsTopics:
    name: String = ""
    partition_indexes: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@dataclass(slots=True, kw_only=True)
class OngoingPartitionReassignment:
    partition_index: Int32 = 0
    replicas: list[Int32] = field(default_factory=list)
    adding_replicas: list[Int32] = field(default_factory=list)
    removing_replicas: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OngoingTopicReassignment:
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = field(default_factory=list)


API: Final = Api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    versions="0",
    flexible="0+",
)
