"""FindCoordinator (key 10): which agent coordinates a group or a transactional id.

| version | change |
|---|---|
| 1 | key types; throttle time and error messages |
| 3 | flexible |
| 4 | many keys in one request (KIP-699) |
| 5 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 6 | key type 2, share groups (KIP-932) |

Source: FindCoordinatorRequest.json, FindCoordinatorResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class FindCoordinatorRequest:
    key: Annotated[String, V("0-3")] = ""
    key_type: Annotated[Int8, V("1+")] = 0
    coordinator_keys: Annotated[list[String], V("4+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Coordinator:
    key: Annotated[String, V("4+")] = ""
    node_id: Annotated[Int32, V("4+")] = 0
    host: Annotated[String, V("4+")] = ""
    port: Annotated[Int32, V("4+")] = 0
    error_code: Annotated[Int16, V("4+")] = 0
    error_message: Annotated[String | None, V("4+")] = ""


@dataclass(slots=True, kw_only=True)
class FindCoordinatorResponse:
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Annotated[Int16, V("0-3")] = 0
    error_message: Annotated[String | None, V("1-3")] = ""
    node_id: Annotated[Int32, V("0-3")] = 0
    host: Annotated[String, V("0-3")] = ""
    port: Annotated[Int32, V("0-3")] = 0
    coordinators: Annotated[list[Coordinator], V("4+")] = field(default_factory=list)


API: Final = Api(
    ApiKey.FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    versions="0-6",
    flexible="3+",
)
