"""SyncGroup (key 14): a member's part of the assignment, which the leader sends.

| version | change |
|---|---|
| 1 | throttle time |
| 3 | static members |
| 4 | flexible |
| 5 | both sides send protocol type and name (KIP-559) |

Assignments are opaque, and may be empty.

Source: SyncGroupRequest.json, SyncGroupResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bytes, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    member_id: String = ""
    assignment: Bytes = b""


@dataclass(slots=True, kw_only=True)
class SyncGroupRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("3+")] = None
    protocol_type: Annotated[String | None, V("5+")] = None
    protocol_name: Annotated[String | None, V("5+")] = None
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class SyncGroupResponse:
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, V("5+")] = None
    protocol_name: Annotated[String | None, V("5+")] = None
    assignment: Bytes = b""


API: Final = Api(
    ApiKey.SYNC_GROUP, SyncGroupRequest, SyncGroupResponse, versions="0-5", flexible="4+"
)
