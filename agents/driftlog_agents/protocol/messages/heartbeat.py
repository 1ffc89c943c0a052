"""Heartbeat (key 12): a member of a classic group is alive, and asks whether the group rebalances.

| version | change |
|---|---|
| 1 | throttle time |
| 3 | static members |
| 4 | flexible |

Source: HeartbeatRequest.json, HeartbeatResponse.json.
Pure.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, V("3+")] = None


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse:
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0


API: Final = Api(
    ApiKey.HEARTBEAT, HeartbeatRequest, HeartbeatResponse, versions="0-4", flexible="4+"
)
