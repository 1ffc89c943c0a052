"""DeleteTopics (key 20).

| version | change |
|---|---|
| 1 | the oldest |
| 4 | flexible |
| 5 | error messages |
| 6 | by name or by id; `topics` instead of `topic_names` |

Source: DeleteTopicsRequest.json, DeleteTopicsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Int16, Int32, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class DeleteTopicState:
    name: String | None = None
    topic_id: Uuid = NULL_UUID


@dataclass(slots=True, kw_only=True)
class DeleteTopicsRequest:
    topics: Annotated[list[DeleteTopicState], V("6+")] = field(default_factory=list)
    topic_names: Annotated[list[String], V("1-5")] = field(default_factory=list)
    timeout_ms: Int32 = 0


@dataclass(slots=True, kw_only=True)
class DeletableTopicResult:
    name: Annotated[String | None, V(nullable="6+")] = ""
    topic_id: Annotated[Uuid, V("6+")] = NULL_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, V("5+")] = None


@dataclass(slots=True, kw_only=True)
class DeleteTopicsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse, versions="1-6", flexible="4+"
)
