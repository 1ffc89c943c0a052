"""LeaveGroup (key 13): members leave a classic group.

| version | change |
|---|---|
| 1 | throttle time |
| 3 | many members, also by instance id (KIP-345) |
| 4 | flexible |
| 5 | why they leave (KIP-800) |

Source: LeaveGroupRequest.json, LeaveGroupResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class MemberIdentity:
    member_id: Annotated[String, V("3+")] = ""
    group_instance_id: Annotated[String | None, V("3+")] = None
    reason: Annotated[String | None, V("5+")] = None


@dataclass(slots=True, kw_only=True)
class LeaveGroupRequest:
    group_id: String = ""
    member_id: Annotated[String, V("0-2")] = ""
    members: Annotated[list[MemberIdentity], V("3+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MemberResponse:
    member_id: Annotated[String, V("3+")] = ""
    group_instance_id: Annotated[String | None, V("3+")] = ""
    error_code: Annotated[Int16, V("3+")] = 0


@dataclass(slots=True, kw_only=True)
class LeaveGroupResponse:
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], V("3+")] = field(default_factory=list)


API: Final = Api(
    ApiKey.LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse, versions="0-5", flexible="4+"
)
