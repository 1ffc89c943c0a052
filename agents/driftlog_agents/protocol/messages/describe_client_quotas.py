"""DescribeClientQuotas (key 48): quotas of users, client ids and addresses (KIP-546).

| version | change |
|---|---|
| 1 | flexible |

Source: DescribeClientQuotasRequest.json, DescribeClientQuotasResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Float64, Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class ComponentData:
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = field(default_factory=list)
    strict: Bool = False


@dataclass(slots=True, kw_only=True)
class EntityData:
    entity_type: String = ""
    entity_name: String | None = ""


@dataclass(slots=True, kw_only=True)
class ValueData:
    key: String = ""
    value: Float64 = 0.0


@dataclass(slots=True, kw_only=True)
class EntryData:
    entity: list[EntityData] = field(default_factory=list)
    values: list[ValueData] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    versions="0-1",
    flexible="1+",
)
