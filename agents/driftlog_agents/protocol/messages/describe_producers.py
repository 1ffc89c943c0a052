"""DescribeProducers (key 61): the producers that partitions know (KIP-664).

Source: DescribeProducersRequest.json, DescribeProducersResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, Int64, String


@dataclass(slots=True, kw_only=True)
class TopicRequest:
    name: String = ""
    partition_indexes: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeProducersRequest:
    topics: list[TopicRequest] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ProducerState:
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@dataclass(slots=True, kw_only=True)
class PartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class TopicResponse:
    name: String = ""
    partitions: list[PartitionResponse] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeProducersResponse:
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    versions="0",
    flexible="0+",
)
