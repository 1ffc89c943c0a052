"""ListConfigResources (key 74): which resources have configs of their own (KIP-1142).

| version | change |
|---|---|
| 0 | client metrics only: ListClientMetricsResources |
| 1 | resource types; an empty list asks for all |

Source: ListConfigResourcesRequest.json, ListConfigResourcesResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesRequest:
    resource_types: Annotated[list[Int8], V("1+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ConfigResource:
    resource_name: String = ""
    resource_type: Annotated[Int8, V("1+")] = 16


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = field(default_factory=list)


API: Final = Api(
    ApiKey.LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    versions="0-1",
    flexible="0+",
)
