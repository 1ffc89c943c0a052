"""DescribeGroups (key 15): classic groups, their state and members.

| version | change |
|---|---|
| 1 | throttle time |
| 3 | authorized operations |
| 4 | static members |
| 5 | flexible |
| 6 | GROUP_ID_NOT_FOUND rather than a dead group; error messages (KIP-1043) |

Source: DescribeGroupsRequest.json, DescribeGroupsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Bytes, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class DescribeGroupsRequest:
    groups: list[String] = field(default_factory=list)
    include_authorized_operations: Annotated[Bool, V("3+")] = False


@dataclass(slots=True, kw_only=True)
class DescribedGroupMember:
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("4+")] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("6+")] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    authorized_operations: Annotated[Int32, V("3+")] = -(1 << 31)


@dataclass(slots=True, kw_only=True)
class DescribeGroupsResponse:
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    groups: list[DescribedGroup] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    versions="0-6",
    flexible="5+",
)
