"""CreatePartitions (key 37): gives topics more partitions.  Flexible from 2 on.

Source: CreatePartitionsRequest.json, CreatePartitionsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CreatePartitionsTopic:
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@dataclass(slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(slots=True, kw_only=True)
class CreatePartitionsResponse:
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    versions="0-3",
    flexible="2+",
)
