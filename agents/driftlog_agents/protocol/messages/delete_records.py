"""DeleteRecords (key 21): moves the start of partitions; -1 is the high watermark (KIP-107).

| version | change |
|---|---|
| 2 | flexible |

Source: DeleteRecordsRequest.json, DeleteRecordsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, Int64, String


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartition:
    partition_index: Int32 = 0
    offset: Int64 = 0


@dataclass(slots=True, kw_only=True)
class DeleteRecordsTopic:
    name: String = ""
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    timeout_ms: Int32 = 0


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


@dataclass(slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DeleteRecordsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DELETE_RECORDS,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    versions="0-2",
    flexible="2+",
)
