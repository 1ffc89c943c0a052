"""OffsetDelete (key 47): deletes offsets that a group does not need any more (KIP-496).

Source: OffsetDeleteRequest.json, OffsetDeleteResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    partition_index: Int32 = 0


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetDeleteRequest:
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OffsetDeleteResponse:
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)


API: Final = Api(
    ApiKey.OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse, versions="0", flexible="none"
)
