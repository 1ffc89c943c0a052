"""ElectLeaders (key 43): asks for the preferred or any leader of partitions (KIP-460).

| version | change |
|---|---|
| 1 | election types; one error for all |
| 2 | flexible |

Null asks for all partitions.

Source: ElectLeadersRequest.json, ElectLeadersResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ElectLeadersRequest:
    election_type: Annotated[Int8, V("1+")] = 0
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)
    timeout_ms: Int32 = 60000


@dataclass(slots=True, kw_only=True)
class PartitionResult:
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


@dataclass(slots=True, kw_only=True)
class ReplicaElectionResult:
    topic: String = ""
    partition_result: list[PartitionResult] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ElectLeadersResponse:
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, V("1+")] = 0
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse, versions="0-2", flexible="2+"
)
