"""ListGroups (key 16): the groups that this agent coordinates.

| version | change |
|---|---|
| 1 | throttle time |
| 3 | flexible |
| 4 | states, also as a filter (KIP-518) |
| 5 | types, also as a filter (KIP-848) |

Source: ListGroupsRequest.json, ListGroupsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class ListGroupsRequest:
    states_filter: Annotated[list[String], V("4+")] = field(default_factory=list)
    types_filter: Annotated[list[String], V("5+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ListedGroup:
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, V("4+")] = ""
    group_type: Annotated[String, V("5+")] = ""


@dataclass(slots=True, kw_only=True)
class ListGroupsResponse:
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = field(default_factory=list)


API: Final = Api(
    ApiKey.LIST_GROUPS, ListGroupsRequest, ListGroupsResponse, versions="0-5", flexible="3+"
)
