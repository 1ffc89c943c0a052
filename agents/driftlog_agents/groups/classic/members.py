"""The members of a classic group: their ids, their protocols, their leader.

1. A protocol can be chosen if every member supports it; all members of `Members` always have at
   least one such protocol in common.
2. A static member (one with an instance id) is in the group once, under its latest member id.
3. A group with members has a leader, which is one of them.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup, ClassicGroupMember.
Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from driftlog_agents.groups.classic.messages import Protocol
from driftlog_agents.groups.sizes import count, texts_bytes


@dataclass(slots=True, kw_only=True)
class ClassicGroupMember:
    """One member.  The stored fields come first; a restore resets the others."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""

    join_id: int | None = None
    """Request id of its waiting JoinGroup."""
    sync_id: int | None = None
    """Request id of its waiting SyncGroup."""
    is_new: bool = False
    """It has no JoinGroup answer with a generation yet."""
    expires_ms: int | None = None
    """When its session ends.  None: the session ended while the member waited for an answer, and
    the member stays; the answer starts a new session."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, so that its client may not heartbeat."""
        return not self.is_new and (self.join_id is not None or self.sync_id is not None)

    @property
    def said_bytes(self) -> int:
        """Memory that the group keeps from its client, without its assignment."""
        names = (self.member_id, self.instance_id, self.client_id, self.client_host)
        return texts_bytes(names) + sum(protocol.size_bytes for protocol in self.protocols)

    def supports(self, protocol: str) -> bool:
        """Whether it has metadata for *protocol*."""
        return any(p.name == protocol for p in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """Its metadata for *protocol*, which it supports."""
        return next(p.metadata for p in self.protocols if p.name == protocol)


class Members:
    """See the module.  Iteration is in the order of arrival."""

    def __init__(
        self, members: Iterable[ClassicGroupMember] = (), leader: str | None = None
    ) -> None:
        self.leader = leader
        self.joining = 0
        """Number of members with a waiting JoinGroup."""
        self.size_bytes = 0
        """Bytes that the group keeps from its members, with their assignments."""
        self._members: dict[str, ClassicGroupMember] = {}
        self._instances: dict[str, str] = {}
        self._supported = Counter[str]()
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicGroupMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ClassicGroupMember:
        return self._members[member_id]

    def get(self, member_id: str) -> ClassicGroupMember | None:
        return self._members.get(member_id)

    def id_of(self, instance_id: str) -> str | None:
        """The member id of a static member; None: unknown *instance_id*."""
        return self._instances.get(instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members; 0: no members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def add(self, member: ClassicGroupMember) -> None:
        assert member.member_id not in self._members
        if member.instance_id is not None:
            assert member.instance_id not in self._instances
            self._instances[member.instance_id] = member.member_id
        self._put(member)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove and return the member, None: unknown.  If it led, another member leads."""
        member = self._members.get(member_id)
        if member is not None:
            self._take(member)
            if member.instance_id is not None:
                del self._instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rename(self, old: ClassicGroupMember, member_id: str) -> ClassicGroupMember:
        """Give a static member a new id; the new entry has no waiting request."""
        assert old.instance_id is not None
        assert self._instances[old.instance_id] == old.member_id
        member = replace(
            old, member_id=member_id, join_id=None, sync_id=None, is_new=False, expires_ms=None
        )
        self._take(old)
        self._put(member)
        self._instances[old.instance_id] = member_id
        if self.leader == old.member_id:
            self.leader = member_id
        return member

    def update(
        self,
        member: ClassicGroupMember,
        protocols: tuple[Protocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Replace the member's protocols and timeouts."""
        count(self._supported, _names(member), -1)
        self.size_bytes -= member.said_bytes
        member.protocols = protocols
        self.size_bytes += member.said_bytes
        count(self._supported, _names(member), +1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def assign(self, member: ClassicGroupMember, assignment: bytes) -> None:
        """Set the member's assignment."""
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join(self, member: ClassicGroupMember, request_id: int | None) -> int | None:
        """Set the member's waiting JoinGroup; return the previous one."""
        before, member.join_id = member.join_id, request_id
        self.joining += (request_id is not None) - (before is not None)
        return before

    def elect_joined(self) -> bool:
        """Ensure that the leader has a waiting JoinGroup; False if no member has one."""
        if self.leader is not None and self[self.leader].join_id is None:
            joined = (member.member_id for member in self if member.join_id is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader = leader
        return self.leader is not None

    # ── Protocols ──

    def support(self, protocols: tuple[Protocol, ...]) -> bool:
        """Whether all members support one of *protocols*."""
        return any(self._supported[protocol.name] == len(self) for protocol in protocols)

    def choose(self) -> str:
        """The protocol with most votes; each member votes for its first one that all support."""
        votes = Counter(
            next(p.name for p in member.protocols if self._supported[p.name] == len(self))
            for member in self
        )
        ((protocol, _),) = votes.most_common(1)
        return protocol

    def _put(self, member: ClassicGroupMember) -> None:
        self._members[member.member_id] = member
        count(self._supported, _names(member), +1)
        self.size_bytes += member.said_bytes + len(member.assignment)
        self.joining += member.join_id is not None

    def _take(self, member: ClassicGroupMember) -> None:
        del self._members[member.member_id]
        count(self._supported, _names(member), -1)
        self.size_bytes -= member.said_bytes + len(member.assignment)
        self.joining -= member.join_id is not None


def _names(member: ClassicGroupMember) -> set[str]:
    """A member that names a protocol twice supports it once."""
    return {protocol.name for protocol in member.protocols}
