"""JoinGroup (key 11): joins a classic group, and waits for its next generation.

| version | change |
|---|---|
| 1 | a rebalance timeout of its own |
| 2 | throttle time |
| 4 | MEMBER_ID_REQUIRED: a new member sends two requests (KIP-394) |
| 5 | static members (KIP-345) |
| 6 | flexible |
| 7 | the answer has the protocol type, and may name no protocol (KIP-559) |
| 8 | why the member joins (KIP-800) |
| 9 | the answer may ask the leader not to assign (KIP-814) |

Version 0 has no rebalance timeout: it is -1, and the session timeout replaces it.

Source: JoinGroupRequest.json, JoinGroupResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Bytes, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    name: String = ""
    metadata: Bytes = b""


@dataclass(slots=True, kw_only=True)
class JoinGroupRequest:
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, V("1+")] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("5+")] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    reason: Annotated[String | None, V("8+")] = None


@dataclass(slots=True, kw_only=True)
class JoinGroupResponseMember:
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("5+")] = None
    metadata: Bytes = b""


@dataclass(slots=True, kw_only=True)
class JoinGroupResponse:
    throttle_time_ms: Annotated[Int32, V("2+")] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, V("7+")] = None
    protocol_name: Annotated[String | None, V(nullable="7+")] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, V("9+")] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = field(default_factory=list)


API: Final = Api(
    ApiKey.JOIN_GROUP, JoinGroupRequest, JoinGroupResponse, versions="0-9", flexible="6+"
)
