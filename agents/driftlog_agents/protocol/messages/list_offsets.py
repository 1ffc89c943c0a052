"""ListOffsets (key 2): offsets by timestamp, and the special ones.

| version | change |
|---|---|
| 1 | the oldest: -1 latest, -2 earliest |
| 2 | isolation level |
| 4 | leader epochs |
| 6 | flexible |
| 7, 8, 9 | -3 max timestamp (KIP-734), -4 earliest local, -5 latest tiered (KIP-405) |
| 10 | a timeout, for remote lookups |
| 11 | -6 earliest pending upload (KIP-1023) |

Source: ListOffsetsRequest.json, ListOffsetsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, Int64, String, V


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, V("4+")] = -1
    timestamp: Int64 = 0


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopic:
    name: String = ""
    partitions: list[ListOffsetsPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ListOffsetsRequest:
    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, V("2+")] = 0
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    timeout_ms: Annotated[Int32, V("10+")] = 0


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, V("4+")] = -1


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ListOffsetsResponse:
    throttle_time_ms: Annotated[Int32, V("2+")] = 0
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)


API: Final = Api(
    ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse, versions="1-11", flexible="6+"
)
