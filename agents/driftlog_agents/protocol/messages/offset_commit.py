"""OffsetCommit (key 8): how far a group has read.

| version | change |
|---|---|
| 2 | the oldest |
| 3 | throttle time |
| 5 | no retention time |
| 6 | leader epochs |
| 7 | static members |
| 8 | flexible |
| 9 | member epochs: STALE_MEMBER_EPOCH, GROUP_ID_NOT_FOUND (KIP-848) |
| 10 | topic ids in place of names |

Source: OffsetCommitRequest.json, OffsetCommitResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Int16, Int32, Int64, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, V("6+")] = -1
    committed_metadata: String | None = ""


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    name: Annotated[String, V("2-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = NULL_UUID
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetCommitRequest:
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("7+")] = None
    retention_time_ms: Annotated[Int64, V("2-4")] = -1
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    name: Annotated[String, V("2-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = NULL_UUID
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetCommitResponse:
    throttle_time_ms: Annotated[Int32, V("3+")] = 0
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)


API: Final = Api(
    ApiKey.OFFSET_COMMIT, OffsetCommitRequest, OffsetCommitResponse, versions="2-10", flexible="8+"
)
