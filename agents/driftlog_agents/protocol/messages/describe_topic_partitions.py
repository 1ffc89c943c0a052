"""DescribeTopicPartitions (key 75): partitions of topics, in pages (KIP-966).  Always flexible.

Source: DescribeTopicPartitionsRequest.json, DescribeTopicPartitionsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Bool, Int16, Int32, String, Uuid


@dataclass(slots=True, kw_only=True)
class TopicRequest:
    name: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    topic_name: String = ""
    partition_index: Int32 = 0


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = field(default_factory=list)
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = field(default_factory=list)
    isr_nodes: list[Int32] = field(default_factory=list)
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = NULL_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: Int32 = -0x8000_0000


@dataclass(slots=True, kw_only=True)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    next_cursor: Cursor | None = None


API: Final = Api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    versions="0",
    flexible="0+",
)
