"""AlterConfigs (key 33): replace all configs of a resource.  Flexible from 2 on.

Source: AlterConfigsRequest.json, AlterConfigsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class AlterableConfig:
    name: String = ""
    value: String | None = ""


@dataclass(slots=True, kw_only=True)
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = field(default_factory=list)
    validate_only: Bool = False


@dataclass(slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


@dataclass(slots=True, kw_only=True)
class AlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)


API: Final = Api(
    ApiKey.ALTER_CONFIGS, AlterConfigsRequest, AlterConfigsResponse, versions="0-2", flexible="2+"
)
