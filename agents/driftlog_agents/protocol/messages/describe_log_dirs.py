"""DescribeLogDirs (key 35): sizes of partitions.

| version | change |
|---|---|
| 1 | the oldest |
| 2 | flexible |
| 3 | an error for the whole answer |
| 4 | total and usable bytes (KIP-827) |
| 5 | cordoned directories (KIP-1066) |

Source: DescribeLogDirsRequest.json, DescribeLogDirsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int16, Int32, Int64, String, V


@dataclass(slots=True, kw_only=True)
class DescribableLogDirTopic:
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsPartition:
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsTopic:
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResult:
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    total_bytes: Annotated[Int64, V("4+")] = -1
    usable_bytes: Annotated[Int64, V("4+")] = -1
    is_cordoned: Annotated[Bool, V("5+")] = False


@dataclass(slots=True, kw_only=True)
class DescribeLogDirsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, V("3+")] = 0
    results: list[DescribeLogDirsResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_LOG_DIRS,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    versions="1-5",
    flexible="2+",
)
