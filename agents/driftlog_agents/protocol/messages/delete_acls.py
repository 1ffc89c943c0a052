"""DeleteAcls (key 31): removes access rules that match filters.

| version | change |
|---|---|
| 1 | the oldest: pattern types |
| 2 | flexible |
| 3 | resources of type user |

Source: DeleteAclsRequest.json, DeleteAclsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilter:
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True, kw_only=True)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DeleteAclsMatchingAcl:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilterResult:
    error_code: Int16 = 0
    error_message: String | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DeleteAclsResponse:
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DELETE_ACLS, DeleteAclsRequest, DeleteAclsResponse, versions="1-3", flexible="2+"
)
