"""DescribeAcls (key 29): access rules that match a filter.

| version | change |
|---|---|
| 1 | the oldest: pattern types |
| 2 | flexible |
| 3 | resources of type user |

Source: DescribeAclsRequest.json, DescribeAclsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class DescribeAclsRequest:
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True, kw_only=True)
class AclDescription:
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True, kw_only=True)
class DescribeAclsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeAclsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    resources: list[DescribeAclsResource] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse, versions="1-3", flexible="2+"
)
