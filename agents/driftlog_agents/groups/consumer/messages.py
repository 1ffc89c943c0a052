"""Requests and responses of a group of KIP-848, independent of the protocol versions.

    ConsumerHeartbeat    join, heartbeat or leave → ConsumerHeartbeatResponse
    (describe)           members, assignments     → DescribedConsumerGroup

Names are those of `driftlog_agents.protocol.messages`.  A field that is None (or -1) has not
changed since the last heartbeat.

Source: ConsumerGroupHeartbeatRequest.json, ConsumerGroupDescribeResponse.json, and
org.apache.kafka.coordinator.group.GroupCoordinatorConfig of Apache Kafka 4.3.
Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.sizes import texts_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Epoch of a static member that leaves to return: it keeps its partitions for a session timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat; *member_id* is never empty, *owned*: the member's partitions now."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Mapping[UUID, frozenset[int]] | None = None
    client_id: str = ""
    client_host: str = ""
    """As Kafka writes it: ``/127.0.0.1``."""

    @property
    def said_bytes(self) -> int:
        """Memory that a group keeps of the request; fields that did not change count 0."""
        said = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host)
        return texts_bytes((*said, self.topic_regex, *(self.topic_names or ())))

    @property
    def is_full(self) -> bool:
        """Whether the request has every field that a member must send to join."""
        subscribes = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[UUID, tuple[int, ...]] | None = None
    """None: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str
    assignment: Mapping[UUID, tuple[int, ...]]
    """Its partitions, with those that it has yet to revoke."""
    target: Mapping[UUID, tuple[int, ...]]
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    """The result of ConsumerGroupDescribe; the response shows only topics that are in *topics*."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    topics: ClusterTopics = field(default_factory=lambda: ClusterTopics(0, ()))


@dataclass(frozen=True, slots=True)
class Downgrade:
    """An effect: store the group as *value*, a classic group, and delete its pages of members.

    After the write, the group is that classic group; if *has_to*, it rebalances.
    """

    token: int
    value: ClassicValue
    has_to: bool


@dataclass(frozen=True, slots=True)
class DecideLong:
    """An effect: call *decide* off the event loop, then give `decided` what it returns.

    Meanwhile the group takes events, and decides them afterwards; nothing else of it is called
    that a decision changes (`ConsumerGroup.is_deciding`).
    """

    decide: Callable[[], object]


@dataclass(frozen=True, slots=True)
class ResolveRegexes:
    """An effect: match *patterns* with the names of *topics* off the event loop, then call
    `regexes_resolved`."""

    patterns: frozenset[str]
    topics: ClusterTopics
