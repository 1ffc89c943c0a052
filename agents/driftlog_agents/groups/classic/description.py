"""What is said of a classic group to those who only look: states, members, and whose offsets go.

Pure.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum


class GroupState(StrEnum):
    """By the names that DescribeGroups and ListGroups have for them."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """They have; the leader is to say who gets what."""
    STABLE = "Stable"
    EMPTY = "Empty"
    DEAD = "Dead"
    """Deleted, or somebody else's: nothing more comes from it."""


class OffsetExpiry(Enum):
    """From when on `offsets.retention.minutes` counts for topics that nobody subscribes to.

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
    state: GroupState
    protocol_type: str
    """Empty: none."""
    protocol: str
    """Empty unless the group is Stable."""
    members: tuple[DescribedMember, ...]
