"""Views of a classic group for describe requests and offset expiry: states, members, subscriptions.

Pure.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum


class ClassicGroupState(StrEnum):
    """Group states by their names in DescribeGroups and ListGroups."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits for its members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All members have joined; the group waits for the leader's assignment."""
    STABLE = "Stable"
    EMPTY = "Empty"
    DEAD = "Dead"
    """Deleted, or coordinated by another agent: every request gets an error."""


class OffsetExpiry(Enum):
    """When `offsets.retention.minutes` starts to count, for topics without a subscriber.

    Source: ClassicGroup#offsetExpirationCondition.
    """

    NEVER = "never"
    FROM_COMMIT = "from each commit"
    FROM_EMPTY = "from when the group became empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """Empty unless the group is Stable."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    state: ClassicGroupState
    protocol_type: str
    """Empty: none."""
    protocol: str
    """Empty unless the group is Stable."""
    members: tuple[DescribedMember, ...]
