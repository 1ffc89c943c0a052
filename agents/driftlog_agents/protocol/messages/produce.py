"""Produce (key 0): appends record batches.

| version | change |
|---|---|
| 3 | the oldest |
| 5, 8 | answer: log start offset; errors per record |
| 7 | zstd may be sent |
| 9 | flexible |
| 10 | answer: the current leader and its address, tagged (KIP-951) |
| 12, 13 | partitions join a transaction by themselves (KIP-890); topics by id (KIP-516) |

Versions 0–2 are advertised, because without them librdkafka before 2.11.1 does not compress
(KAFKA-18659); a request of them closes the connection, as in Kafka 4.  12 and 13 are answered and
not advertised: agents use 13 among themselves, where a topic's id matters more than its name.  With
acks = 0 there is no answer.
Source: ProduceRequest.json, ProduceResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import (
    NULL_UUID,
    Int16,
    Int32,
    Int64,
    RecordsView,
    String,
    TopicName,
    Uuid,
    V,
)


@dataclass(slots=True, kw_only=True)
class PartitionProduceData:
    index: Int32 = 0
    records: RecordsView | None = None


@dataclass(slots=True, kw_only=True)
class TopicProduceData:
    name: Annotated[String, V("3-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = NULL_UUID
    partition_data: list[PartitionProduceData] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: String | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class NamedTopicProduceData(TopicProduceData):
    name: Annotated[TopicName, V("3-12")] = ""


@dataclass(slots=True, kw_only=True)
class LargeProduceRequest(ProduceRequest):
    """A Produce request whose topic names are no longer than a topic's name can be."""

    topic_data: list[NamedTopicProduceData] = field(default_factory=list)  # type: ignore[assignment]


@dataclass(slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@dataclass(slots=True, kw_only=True)
class PartitionProduceResponse:
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, V("5+")] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], V("8+")] = field(default_factory=list)
    error_message: Annotated[String | None, V("8+")] = None
    current_leader: Annotated[LeaderIdAndEpoch, V("10+", tag=0)] = LeaderIdAndEpoch()


@dataclass(slots=True, kw_only=True)
class TopicProduceResponse:
    name: Annotated[String, V("3-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = NULL_UUID
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


@dataclass(slots=True, kw_only=True)
class ProduceResponse:
    responses: list[TopicProduceResponse] = field(default_factory=list)
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], V("10+", tag=0)] = field(default_factory=list)


API: Final = Api(
    ApiKey.PRODUCE,
    ProduceRequest,
    ProduceResponse,
    versions="3-13",
    advertised="0-11",
    flexible="9+",
)

LARGE_API: Final = Api(
    ApiKey.PRODUCE,
    LargeProduceRequest,
    ProduceResponse,
    versions="3-13",
    advertised="0-11",
    flexible="9+",
)
"""The codec of requests of many topics, whose answers repeat the topics' names."""
