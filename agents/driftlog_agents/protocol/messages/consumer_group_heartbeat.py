"""ConsumerGroupHeartbeat (key 68): a member's subscription and assignment (KIP-848).

| version | change |
|---|---|
| 1 | subscriptions by regular expression; members make their ids (KIP-1082) |

Fields that have not changed since the last heartbeat are null or -1.

Source: ConsumerGroupHeartbeatRequest.json, ConsumerGroupHeartbeatResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Int16, Int32, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic_id: Uuid = NULL_UUID
    partitions: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, V("1+")] = None
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitions] | None = None


@dataclass(slots=True, kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


API: Final = Api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    versions="0-1",
    flexible="0+",
)
