"""DescribeConfigs (key 32): configs of topics and brokers.

| version | change |
|---|---|
| 1 | the oldest: sources and synonyms |
| 3 | types and documentation (KIP-569) |
| 4 | flexible |

Source: DescribeConfigsRequest.json, DescribeConfigsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int8, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = field(default_factory=list)
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, V("3+")] = False


@dataclass(slots=True, kw_only=True)
class DescribeConfigsSynonym:
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    config_type: Annotated[Int8, V("3+")] = 0
    documentation: Annotated[String | None, V("3+")] = ""


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResult:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    versions="1-4",
    flexible="4+",
)
