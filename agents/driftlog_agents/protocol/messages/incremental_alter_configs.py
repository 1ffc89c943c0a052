"""IncrementalAlterConfigs (key 44): set 0, delete 1, append 2, subtract 3.  Flexible from 1 on.

Source: IncrementalAlterConfigsRequest.json, IncrementalAlterConfigsResponse.json (KIP-339).
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class AlterableConfig:
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


@dataclass(slots=True, kw_only=True)
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = field(default_factory=list)
    validate_only: Bool = False


@dataclass(slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


@dataclass(slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)


API: Final = Api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    versions="0-1",
    flexible="1+",
)
