"""Writes of a classic group, one at a time, and the requests that wait for them.

    PendingAssignment    the members of a generation wait for the leader's assignment
    PendingReplacement   a static member has a new id
    PendingLeave         the last members have left, and the group is empty

Source: org.apache.kafka.coordinator.group.GroupMetadataManager: the append futures in
classicGroupSyncToClassicGroup and updateStaticMemberThenRebalanceOrCompleteJoin.
Pure.
"""

from dataclasses import dataclass, replace
from typing import Final

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.description import ClassicGroupState
from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    JoinResponse,
    LeaveResponse,
    SyncResponse,
)
from driftlog_agents.groups.classic.phases import ClassicPhases
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.effects import Effect, Persist
from driftlog_agents.protocol.errors import ErrorCode

_SKIP_ASSIGNMENT_VERSION: Final = 9
"""From this version of JoinGroup, the answer can tell a leader not to assign."""


@dataclass(frozen=True, slots=True)
class PendingAssignment:
    """The leader's assignment; members wait until it is stored.  A second one of the same
    generation is ignored: a generation has one assignment."""

    generation: int
    assignments: dict[str, bytes]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReplacement:
    """A static member that returned under another id waits until that is stored."""

    request: JoinRequest
    request_id: int
    generation: int
    leader: str
    """Member id of the leader before the return; it may be this member's old id."""
    member_id: str
    old: ClassicGroupMember


@dataclass(frozen=True, slots=True)
class PendingLeave:
    """The LeaveGroup that emptied the group waits until the empty group is stored."""

    request_id: int
    response: LeaveResponse


Waiter = PendingAssignment | PendingReplacement | PendingLeave


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    token: int
    waiters: list[Waiter]


class ClassicStorage(ClassicPhases):
    """See the module."""

    def __init__(
        self,
        group_id: str,
        settings: ClassicSettings,
        now_ms: int,
        unix_offset_ms: int,
        stored: ClassicValue | None,
    ) -> None:
        super().__init__(group_id, settings, now_ms, unix_offset_ms, stored)
        self._storing: _PendingWrite | None = None
        self._waiters: list[Waiter] = []
        """Requests that wait for the next write."""
        self._tokens = 0
        self._assigning: PendingAssignment | None = None
        """The latest assignment, until it is stored."""

    def persisted(self, token: int, now_ms: int) -> list[Effect]:
        """The write with *token* is stored."""
        for waiter in self._stored(token):
            match waiter:
                case PendingAssignment(assignments=assignments) if self._is_current(waiter):
                    for member in self.members:
                        self.members.assign(member, assignments.get(member.member_id, b""))
                    self._transition(ClassicGroupState.STABLE, self._unix_ms(now_ms))
                    for member in self.members:
                        self._answer_sync(member, self._assigned(member), now_ms)
                case PendingReplacement(member_id=member_id) if self._still_waits(waiter):
                    self._begin_session(self.members[member_id], now_ms)
                    self._answer_join(self.members[member_id], self._returned(waiter))
                case PendingLeave(request_id, response):
                    self._answer(request_id, response)
                case _:
                    pass  # a rebalance has begun, and answers the waiting requests
        return self._done()

    def not_persisted(self, token: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The write with *token* is not stored and never will be; waiting requests get *error*."""
        assert error
        for waiter in self._stored(token):
            match waiter:
                case PendingAssignment() if self._is_current(waiter):
                    self._reset_assignments(error, now_ms)
                    self._prepare_rebalance(now_ms)
                case PendingReplacement() if self._still_waits(waiter):
                    self._take_back(waiter, error, now_ms)
                case PendingLeave(request_id):
                    self._answer(request_id, LeaveResponse(error=error))
                case _:
                    pass
        return self._done()

    def drop(self, error: ErrorCode) -> list[Effect]:
        """Stop serving the group: waiting requests get *error*, the group is Dead."""
        for member in self.members:
            self._answer_join(member, JoinResponse(error=error, member_id=member.member_id))
            if member.sync_id is not None:
                self._answer(member.sync_id, SyncResponse(error=error))
                member.sync_id = None
        waiters = self._waiters + (self._storing.waiters if self._storing else [])
        for waiter in waiters:
            if isinstance(waiter, PendingLeave):
                self._answer(waiter.request_id, LeaveResponse(error=error))
        self._storing, self._waiters, self._to_store = None, [], False
        self._assigning = None
        self._join_at_ms = self._sync_at_ms = self._session_at_ms = None
        self.state = ClassicGroupState.DEAD
        return self._done()

    @property
    def is_assigning(self) -> bool:
        """Whether the leader of this generation has sent an assignment that is not stored yet."""
        return self._assigning is not None and self._is_current(self._assigning)

    @property
    def size_bytes(self) -> int:
        """Bytes that the group keeps from its members."""
        assigning = 0 if self._assigning is None else self._assigning.size_bytes
        return self.members.size_bytes + assigning + self._pending_bytes

    # ── Waiting requests ──

    def _assigned(self, member: ClassicGroupMember) -> SyncResponse:
        """The answer to SyncGroup with the member's assignment."""
        return SyncResponse(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def _returned(self, returning: PendingReplacement) -> JoinResponse:
        """The answer to a returned static member: generation and assignments stay."""
        joined = self._joined(self.members[returning.member_id])
        if returning.request.version >= _SKIP_ASSIGNMENT_VERSION:
            return replace(joined, skip_assignment=joined.leader == joined.member_id)
        return replace(joined, leader=returning.leader, members=())

    def _rename(self, old: ClassicGroupMember, member_id: str, now_ms: int) -> ClassicGroupMember:
        if old.member_id in self._to_sync:
            self._to_sync.remove(old.member_id)
            self._to_sync.add(member_id)
        member = self.members.rename(old, member_id)
        self._begin_session(member, now_ms)
        return member

    def _take_back(self, waiter: PendingReplacement, error: ErrorCode, now_ms: int) -> None:
        """Restore the static member's old id: the write of the new one failed."""
        self.members.set_join(self.members[waiter.member_id], None)
        old = waiter.old
        member = self._rename(self.members[waiter.member_id], old.member_id, now_ms)
        timeouts = old.rebalance_timeout_ms, old.session_timeout_ms
        self.members.update(member, old.protocols, *timeouts)
        response = replace(self._joined(member), error=error, leader=waiter.leader)
        self._answer(waiter.request_id, replace(response, member_id=UNKNOWN_MEMBER_ID, members=()))

    def _done(self) -> list[Effect]:
        """Return the effects of an event; start a pending write if none is in flight."""
        if self._to_store and self._storing is None:
            self._to_store = False
            waiters, self._waiters = self._waiters, []
            value = self._value_to_store(waiters)
            if value is not None:
                self._tokens += 1
                self._storing = _PendingWrite(self._tokens, waiters)
                self._effects.append(Persist(self._tokens, {"": value}))
            else:
                self._assigning = None
                for waiter in waiters:
                    if isinstance(waiter, PendingLeave):
                        self._answer(waiter.request_id, waiter.response)
        effects, self._effects = self._effects, []
        return effects

    def _value_to_store(self, waiters: list[Waiter]) -> bytes | None:
        """The value to store; None: a rebalance is in progress, and its end is stored."""
        if self.state in (ClassicGroupState.STABLE, ClassicGroupState.EMPTY):
            return self.value
        for waiter in waiters:
            if isinstance(waiter, PendingAssignment) and self._is_current(waiter):
                shares = waiter.assignments
                return self._encoded(
                    replace(member, assignment=shares.get(member.member_id, b""))
                    for member in self.members
                )
        return None

    def _stored(self, token: int) -> list[Waiter]:
        """End the write with *token*; return the requests that waited for it."""
        if self._storing is None:
            return []  # dropped meanwhile
        assert token == self._storing.token
        waiters, self._storing = self._storing.waiters, None
        if any(waiter is self._assigning for waiter in waiters):
            self._assigning = None
        return waiters

    def _is_current(self, assigning: PendingAssignment) -> bool:
        completing = self.state is ClassicGroupState.COMPLETING_REBALANCE
        return completing and assigning.generation == self.generation

    def _still_waits(self, returning: PendingReplacement) -> bool:
        if self.state is not ClassicGroupState.STABLE or self.generation != returning.generation:
            return False
        member = self.members.get(returning.member_id)
        return member is not None and member.join_id == returning.request_id
