"""DescribeQuorum (key 55): the nodes that hold the metadata, and how far each is (KIP-595).

| version | change |
|---|---|
| 1 | when a voter last fetched and was caught up (KIP-836) |
| 2 | directory ids, listeners and error messages (KIP-853) |

Source: DescribeQuorumRequest.json, DescribeQuorumResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Int16, Int32, Int64, String, Uint16, Uuid, V


@dataclass(slots=True, kw_only=True)
class DescribeQuorumRequest:
    @dataclass(slots=True, kw_only=True)
    class PartitionData:
        partition_index: Int32 = 0

    @dataclass(slots=True, kw_only=True)
    class TopicData:
        topic_name: String = ""
        partitions: "list[DescribeQuorumRequest.PartitionData]" = field(default_factory=list)

    topics: list[TopicData] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ReplicaState:
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, V("2+")] = NULL_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, V("1+")] = -1
    last_caught_up_timestamp: Annotated[Int64, V("1+")] = -1


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("2+")] = ""
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = field(default_factory=list)
    observers: list[ReplicaState] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class TopicData:
    topic_name: String = ""
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Listener:
    name: Annotated[String, V("2+")] = ""
    host: Annotated[String, V("2+")] = ""
    port: Annotated[Uint16, V("2+")] = 0


@dataclass(slots=True, kw_only=True)
class Node:
    node_id: Annotated[Int32, V("2+")] = 0
    listeners: Annotated[list[Listener], V("2+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeQuorumResponse:
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("2+")] = ""
    topics: list[TopicData] = field(default_factory=list)
    nodes: Annotated[list[Node], V("2+")] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_QUORUM,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    versions="0-2",
    flexible="0+",
)
