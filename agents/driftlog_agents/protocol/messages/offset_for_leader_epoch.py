"""OffsetForLeaderEpoch (key 23): where a leader epoch ended, to notice a truncated log.

| version | change |
|---|---|
| 2 | the oldest: current leader epoch (KIP-320) |
| 3 | replica id, -2 from consumers |
| 4 | flexible |

Source: OffsetForLeaderEpochRequest.json, OffsetForLeaderEpochResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, Int64, String, V


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderTopic:
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    replica_id: Annotated[Int32, V("3+")] = -2
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class EpochEndOffset:
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: String = ""
    partitions: list[EpochEndOffset] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    versions="2-4",
    flexible="4+",
)
