"""CreateAcls (key 30): adds access rules.

| version | change |
|---|---|
| 1 | the oldest: pattern types |
| 2 | flexible |
| 3 | resources of type user |

Source: CreateAclsRequest.json, CreateAclsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class AclCreation:
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True, kw_only=True)
class CreateAclsRequest:
    creations: list[AclCreation] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AclCreationResult:
    error_code: Int16 = 0
    error_message: String | None = ""


@dataclass(slots=True, kw_only=True)
class CreateAclsResponse:
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.CREATE_ACLS, CreateAclsRequest, CreateAclsResponse, versions="1-3", flexible="2+"
)
