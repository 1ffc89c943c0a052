"""State of a classic group, and queries that do not change it.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup.
Pure.
"""

from collections.abc import Iterable

from driftlog_agents.groups.classic.description import (
    ClassicGroupState,
    DescribedMember,
    GroupDescription,
    OffsetExpiry,
)
from driftlog_agents.groups.classic.members import ClassicGroupMember, Members
from driftlog_agents.groups.classic.messages import JoinedMember
from driftlog_agents.groups.classic.stored_value import UNTOLD, ClassicValue, encode_value
from driftlog_agents.protocol.consumer_protocol import PROTOCOL_TYPE
from driftlog_agents.protocol.errors import ErrorCode


class ClassicFacts:
    """See the module."""

    def __init__(self, group_id: str, value: ClassicValue) -> None:
        self.group_id = group_id
        self.generation = value.generation
        self.protocol_type = value.protocol_type
        self.protocol = value.protocol
        self.state = ClassicGroupState.STABLE if value.members else ClassicGroupState.EMPTY
        self.members = Members(value.members, value.leader)
        self._state_since_ms = value.state_since_ms
        self._reserved = value.reserved
        """Last generation that answers may contain (`classic/stored_value`)."""

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def empty_since_ms(self) -> int | None:
        """Unix time since which the group is empty; None: it is not empty."""
        return self._state_since_ms if self.is_empty else None

    @property
    def value(self) -> bytes:
        """The value to store for a group that is Stable or Empty."""
        return self._encoded(self.members)

    def said_bytes(self, member_id: str) -> int:
        """Bytes that the group keeps from a member; 0: not a member."""
        member = self.members.get(member_id)
        return 0 if member is None else member.said_bytes

    # ── Queries ──

    def describe(self) -> GroupDescription:
        """For DescribeGroups and ListGroups; the members' metadata only while Stable."""
        protocol = self.protocol if self.state is ClassicGroupState.STABLE else None
        return GroupDescription(
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=protocol or "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=b"" if protocol is None else member.metadata(protocol),
                    assignment=member.assignment,
                )
                for member in self.members
            ),
        )

    @property
    def subscriptions(self) -> tuple[bytes, ...] | None:
        """The metadata of members of protocol type "consumer", which say what they subscribe to;
        None: it is not known.  `all_subscribed_topics` reads them when it is asked for, and not at
        each rebalance: they may have thousands of topics each."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None
        if self.protocol is None:
            return None if self.members else ()
        if not all(member.supports(self.protocol) for member in self.members):
            return None  # During a rebalance.
        return tuple(member.metadata(self.protocol) for member in self.members)

    def is_subscribed_to(self, topic: str, subscribed: frozenset[str] | None) -> bool:
        """Whether its offsets of *topic* are in use; True for consumers with unknown topics.

        Args:
            subscribed: topics that `subscriptions` name; None: they are not known.
        """
        if subscribed is None:
            return self.protocol_type == PROTOCOL_TYPE
        return topic in subscribed

    def offsets_expire(self, subscribed: frozenset[str] | None) -> OffsetExpiry:
        """When the retention starts for offsets of topics without a subscriber; *subscribed*: as
        for `is_subscribed_to`."""
        if self.protocol_type is None:
            return OffsetExpiry.FROM_COMMIT
        if self.is_empty:
            return OffsetExpiry.FROM_EMPTY
        if self.state is ClassicGroupState.STABLE and subscribed is not None:
            return OffsetExpiry.FROM_COMMIT
        return OffsetExpiry.NEVER

    def refuse_offset_delete(self) -> ErrorCode:
        """NONE, or the error of OffsetDelete; after NONE, check `is_subscribed_to` per topic."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.is_empty or self.protocol_type == PROTOCOL_TYPE:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def refuse_delete(self) -> ErrorCode:
        """NONE, or the error of DeleteGroups."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if self.is_empty else ErrorCode.NON_EMPTY_GROUP

    def refuse_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if this is a member, for a static one under its latest id; else the error."""
        if instance_id is not None:
            latest = self.members.id_of(instance_id)
            if latest is not None and latest != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if latest is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # ── For the machine ──

    def _transition(self, state: ClassicGroupState, unix_ms: int) -> None:
        self.state = state
        self._state_since_ms = unix_ms

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        """All members, for the leader's JoinGroup answer."""
        assert self.protocol is not None
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members
        )

    def _encoded(self, members: Iterable[ClassicGroupMember]) -> bytes:
        return encode_value(
            ClassicValue(
                generation=self.generation,
                reserved=max(self._reserved, self.generation + UNTOLD // 2),
                protocol_type=self.protocol_type,
                protocol=self.protocol,
                leader=self.members.leader,
                state_since_ms=self._state_since_ms,
                members=tuple(members),
            )
        )
