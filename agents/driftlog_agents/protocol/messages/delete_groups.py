"""DeleteGroups (key 42): deletes groups without members, with their offsets.

| version | change |
|---|---|
| 2 | flexible |

Source: DeleteGroupsRequest.json, DeleteGroupsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class DeleteGroupsRequest:
    groups_names: list[String] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DeletableGroupResult:
    group_id: String = ""
    error_code: Int16 = 0


@dataclass(slots=True, kw_only=True)
class DeleteGroupsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse, versions="0-2", flexible="2+"
)
