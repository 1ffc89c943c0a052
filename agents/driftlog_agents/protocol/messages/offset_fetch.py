"""OffsetFetch (key 9): how far groups have read.

| version | change |
|---|---|
| 1 | the oldest |
| 2 | null asks for all topics; one error for the group |
| 3 | throttle time |
| 5 | leader epochs |
| 6 | flexible |
| 7 | require stable: UNSTABLE_OFFSET_COMMIT while a transaction holds an offset (KIP-447) |
| 8 | many groups in one request (KIP-709) |
| 9 | member epochs (KIP-848) |
| 10 | topic ids in place of names |

Source: OffsetFetchRequest.json, OffsetFetchResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Bool, Int16, Int32, Int64, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    name: Annotated[String, V("1-7")] = ""
    partition_indexes: Annotated[list[Int32], V("1-7")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    name: Annotated[String, V("8-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = NULL_UUID
    partition_indexes: Annotated[list[Int32], V("8+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    group_id: Annotated[String, V("8+")] = ""
    member_id: Annotated[String | None, V("9+")] = None
    member_epoch: Annotated[Int32, V("9+")] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, V("8+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetFetchRequest:
    group_id: Annotated[String, V("1-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, V("1-7", nullable="2-7")] = field(
        default_factory=list
    )
    groups: Annotated[list[OffsetFetchRequestGroup], V("8+")] = field(default_factory=list)
    require_stable: Annotated[Bool, V("7+")] = False


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    partition_index: Annotated[Int32, V("1-7")] = 0
    committed_offset: Annotated[Int64, V("1-7")] = 0
    committed_leader_epoch: Annotated[Int32, V("5-7")] = -1
    metadata: Annotated[String | None, V("1-7")] = ""
    error_code: Annotated[Int16, V("1-7")] = 0


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    name: Annotated[String, V("1-7")] = ""
    partitions: Annotated[list[OffsetFetchResponsePartition], V("1-7")] = field(
        default_factory=list
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponsePartitions:
    partition_index: Annotated[Int32, V("8+")] = 0
    committed_offset: Annotated[Int64, V("8+")] = 0
    committed_leader_epoch: Annotated[Int32, V("8+")] = -1
    metadata: Annotated[String | None, V("8+")] = ""
    error_code: Annotated[Int16, V("8+")] = 0


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    name: Annotated[String, V("8-9")] = ""
    topic_id: Annotated[Uuid, V("10+")] = NULL_UUID
    partitions: Annotated[list[OffsetFetchResponsePartitions], V("8+")] = field(
        default_factory=list
    )


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: Annotated[String, V("8+")] = ""
    topics: Annotated[list[OffsetFetchResponseTopics], V("8+")] = field(default_factory=list)
    error_code: Annotated[Int16, V("8+")] = 0


@dataclass(slots=True, kw_only=True)
class OffsetFetchResponse:
    throttle_time_ms: Annotated[Int32, V("3+")] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], V("1-7")] = field(default_factory=list)
    error_code: Annotated[Int16, V("2-7")] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], V("8+")] = field(default_factory=list)


API: Final = Api(
    ApiKey.OFFSET_FETCH, OffsetFetchRequest, OffsetFetchResponse, versions="1-10", flexible="6+"
)
