"""CreateTopics (key 19).

| version | change |
|---|---|
| 2 | the oldest |
| 4 | -1 partitions or replicas mean the default (KIP-464) |
| 5 | flexible; the answer has partitions, replicas and configs (KIP-525) |
| 6 | THROTTLING_QUOTA_EXCEEDED |
| 7 | topic ids |

Source: CreateTopicsRequest.json, CreateTopicsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Bool, Int8, Int16, Int32, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class CreatableReplicaAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfig:
    name: String = ""
    value: String | None = ""


@dataclass(slots=True, kw_only=True)
class CreatableTopic:
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = field(default_factory=list)
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfigs:
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


@dataclass(slots=True, kw_only=True)
class CreatableTopicResult:
    name: String = ""
    topic_id: Annotated[Uuid, V("7+")] = NULL_UUID
    error_code: Int16 = 0
    error_message: String | None = ""
    topic_config_error_code: Annotated[Int16, V("5+", tag=0)] = 0
    num_partitions: Annotated[Int32, V("5+")] = -1
    replication_factor: Annotated[Int16, V("5+")] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, V("5+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CreateTopicsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse, versions="2-7", flexible="5+"
)
