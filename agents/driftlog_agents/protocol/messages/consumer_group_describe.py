"""ConsumerGroupDescribe (key 69): members of consumer groups, with current and target assignments.

| version | change |
|---|---|
| 1 | member types: classic members of a consumer group (KIP-1099) |

Source: ConsumerGroupDescribeRequest.json, ConsumerGroupDescribeResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Bool, Int8, Int16, Int32, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class ConsumerGroupDescribeRequest:
    group_ids: list[String] = field(default_factory=list)
    include_authorized_operations: Bool = False


@dataclass(slots=True, kw_only=True)
class TopicPartitions:
    topic_id: Uuid = NULL_UUID
    topic_name: String = ""
    partitions: list[Int32] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field(default_factory=list)
    subscribed_topic_regex: String | None = None
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    member_type: Annotated[Int8, V("1+")] = -1


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = field(default_factory=list)
    authorized_operations: Int32 = -(1 << 31)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = field(default_factory=list)


API: Final = Api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    versions="0-1",
    flexible="0+",
)
