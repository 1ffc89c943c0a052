"""Fetch (key 1): reads record batches, and waits for them if the request says so.

| version | change |
|---|---|
| 4 | the oldest |
| 7 | sessions (KIP-227) |
| 9, 12 | leader epochs are checked (KIP-320); the last fetched one too (KIP-595) |
| 10 | zstd may be answered |
| 11 | racks (KIP-392) |
| 12 | flexible |
| 13 | topics by id (KIP-516) |
| 15–18 | fields that replicas send; leaders' addresses in the answer (16) |

The codec knows version 18, agents do not serve it.  Aborted transactions are null for
read_uncommitted.
Source: FetchRequest.json, FetchResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import (
    NULL_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    RecordParts,
    String,
    Uuid,
    V,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@dataclass(slots=True, kw_only=True)
class FetchPartition:
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, V("9+")] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, V("12+")] = -1
    log_start_offset: Annotated[Int64, V("5+")] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, V("17+", tag=0)] = NULL_UUID
    high_watermark: Annotated[Int64, V("18+", tag=1)] = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(slots=True, kw_only=True)
class FetchTopic:
    topic: Annotated[String, V("4-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = NULL_UUID
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ForgottenTopic:
    topic: Annotated[String, V("7-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = NULL_UUID
    partitions: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class FetchRequest:
    cluster_id: Annotated[String | None, V("12+", tag=0)] = None
    replica_id: Annotated[Int32, V("4-14")] = -1
    replica_state: Annotated[ReplicaState, V("15+", tag=1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFF_FFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, V("7+")] = 0
    session_epoch: Annotated[Int32, V("7+")] = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: Annotated[list[ForgottenTopic], V("7+")] = field(default_factory=list)
    rack_id: Annotated[String, V("11+")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    end_offset: Int64 = -1
    epoch: Int32 = -1


@dataclass(slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: Int64 = 0
    first_offset: Int64 = 0


@dataclass(slots=True, kw_only=True)
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, V("5+")] = -1
    diverging_epoch: Annotated[EpochEndOffset, V("12+", tag=0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, V("12+", tag=1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, V("12+", tag=2)] = SnapshotId()
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    preferred_read_replica: Annotated[Int32, V("11+")] = -1
    records: RecordParts | None = None


@dataclass(slots=True, kw_only=True)
class FetchableTopicResponse:
    topic: Annotated[String, V("4-12")] = ""
    topic_id: Annotated[Uuid, V("13+")] = NULL_UUID
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


@dataclass(slots=True, kw_only=True)
class FetchResponse:
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, V("7+")] = 0
    session_id: Annotated[Int32, V("7+")] = 0
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], V("16+", tag=0)] = field(default_factory=list)


API: Final = Api(
    ApiKey.FETCH, FetchRequest, FetchResponse, versions="4-18", served="4-17", flexible="12+"
)
