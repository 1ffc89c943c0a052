"""A group of Kafka's classic protocol: members join, the leader assigns, all get their share.

              the first joins                   all have joined, or time is up
      EMPTY ───────────────────▶ PREPARING_ ──────────────────────────────▶ COMPLETING_
     │     ◀─────────────────── REBALANCE ◀────────────────────────────── REBALANCE
     │      no member is left    ▲          one joins, leaves, times out         │
     ▼ begin_delete              │                                               │ the leader's
    DEAD                         │ one joins, leaves, times out                  │ assignment is
                                 └──────────────────── STABLE ◀──────────────────┘ stored

    join, sync, leave, heartbeat ──▶ Answer, at once or when the phase ends
    the leader's sync, the last member's leave, a static member's return ──▶ Persist ──▶ Answer

Phases end by timeout: joining after the longest rebalance timeout of the members (in a group's
first rebalance: after a delay that is extended while members join), syncing after the same timeout.
A dynamic member that has not joined in time is removed; so is any member that has not synced.  A
member's session ends after its session timeout without a request, unless it waits for an answer.

1. Every request is answered once; a waiting request is answered when its phase ends.
2. No member gets an assignment before it is stored with its generation.
3. A generation has one leader, one protocol and one assignment.  Generations only increase.  None
   is reused after a restore, not even one that was never stored (`classic/stored_value`).
4. One Persist is in flight at a time; the next one is decided when it has ended.

Kafka leaves a request unanswered when its member left or sent another one meanwhile.  This machine
answers it: later requests on its connection wait for it.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager of Apache Kafka 4.3, its methods
classicGroup…; tests/agents/groups/classic/test_machine_transcripts.py compares this with Kafka.
Pure.
"""

from collections.abc import Callable
from typing import Self

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.description import ClassicGroupState
from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import (
    ID_REQUIRED_VERSION,
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from driftlog_agents.groups.classic.storage import (
    ClassicStorage,
    PendingAssignment,
    PendingLeave,
    PendingReplacement,
)
from driftlog_agents.groups.classic.stored_value import ClassicValue, decode_value
from driftlog_agents.groups.effects import Effect
from driftlog_agents.protocol.errors import ErrorCode


class ClassicGroup(ClassicStorage):
    """See the module.

    Args:
        new_member_id: returns an unused member id from a prefix that names the client.
        unix_offset_ms: unix time minus the *now_ms* of the events; for stored timestamps.
        stored: the decoded value to restore; see `restore`.
    """

    def __init__(
        self,
        group_id: str,
        settings: ClassicSettings,
        new_member_id: Callable[[str], str],
        now_ms: int,
        *,
        unix_offset_ms: int = 0,
        stored: ClassicValue | None = None,
    ) -> None:
        super().__init__(group_id, settings, now_ms, unix_offset_ms, stored)
        self._new_member_id = new_member_id

    @classmethod
    def restore(
        cls,
        group_id: str,
        value: bytes,
        settings: ClassicSettings,
        new_member_id: Callable[[str], str],
        now_ms: int,
        *,
        unix_offset_ms: int = 0,
    ) -> Self:
        """Restore the group from the value that its claim stored (`claimed_value`); every session
        starts again.

        Raises:
            UnsupportedFormatError: *value* has a newer format.
            CorruptError: *value* is not a classic group.
        """
        stored = decode_value(value)
        return cls(
            group_id, settings, new_member_id, now_ms, unix_offset_ms=unix_offset_ms, stored=stored
        )

    # ── Events: requests ──

    def join(self, request_id: int, request: JoinRequest, now_ms: int) -> list[Effect]:
        """JoinGroup; the caller has checked `refuse_join`."""
        member_id, refused = request.member_id, ErrorCode.NONE
        if self.state is ClassicGroupState.DEAD:
            refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif not self._has_room(request):
            self._remove(member_id)
            member_id, refused = UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED
        elif not self._speaks(request):
            refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if refused:
            self._answer(request_id, JoinResponse(error=refused, member_id=member_id))
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(request_id, request, now_ms)
        elif request.member_id in self._pending:
            self._join_pending(request_id, request, now_ms)
        else:
            self._join_known(request_id, request, now_ms)
        return self._done()

    def sync(self, request_id: int, request: SyncRequest, now_ms: int) -> list[Effect]:
        """SyncGroup; the caller has checked `refuse_sync`."""
        refused = self._refuse_sync(request)
        if refused:
            self._answer(request_id, SyncResponse(error=refused))
            return self._done()
        member = self.members[request.member_id]
        self._to_sync.discard(member.member_id)
        if not self._to_sync:
            self._sync_at_ms = None
        if self.state is ClassicGroupState.STABLE:
            self._answer(request_id, self._assigned(member))
            return self._done()
        self._answer_sync(member, SyncResponse(error=ErrorCode.REBALANCE_IN_PROGRESS), now_ms)
        member.sync_id = request_id
        if member.member_id == self.members.leader and not self.is_assigning:
            shares = {one: said for one, said in request.assignments if one in self.members}
            size_bytes = sum(map(len, shares.values()))
            self._assigning = PendingAssignment(self.generation, shares, size_bytes)
            self._waiters.append(self._assigning)
            self._to_store = True
        return self._done()

    def heartbeat(self, request_id: int, request: HeartbeatRequest, now_ms: int) -> list[Effect]:
        """Heartbeat; the caller has checked `refuse_group_id`."""
        error = self._refuse_generation(request.member_id, request.instance_id, request.generation)
        if not error:
            self._begin_session(self.members[request.member_id], now_ms)
            if self.state is ClassicGroupState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._answer(request_id, HeartbeatResponse(error=error))
        return self._done()

    def leave(self, request_id: int, request: LeaveRequest, now_ms: int) -> list[Effect]:
        """LeaveGroup; the caller has checked `refuse_group_id`."""
        if self.state is ClassicGroupState.DEAD:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._answer(request_id, LeaveResponse(error=error))
            return self._done()
        left = tuple(self._leave(member) for member in request.members)
        response = LeaveResponse(members=left)
        was_empty = self.is_empty
        if not was_empty and any(not member.error for member in left):
            self._rebalance_or_complete(now_ms)
        if self.is_empty and not was_empty:
            self._waiters.append(PendingLeave(request_id, response))
        else:
            self._answer(request_id, response)
        return self._done()

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Start a rebalance: the group has just become a classic group, with existing members."""
        self._rebalance_or_complete(now_ms)
        return self._done()

    def validate_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """OffsetCommit, TxnOffsetCommit: NONE or the error.  An accepted OffsetCommit of a member
        restarts its session."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.is_empty:
            return ErrorCode.NONE
        if generation >= 0 or member_id != UNKNOWN_MEMBER_ID or instance_id is not None:
            error = self._refuse_generation(member_id, instance_id, generation)
            if error:
                return error
        elif not transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if transactional:
            return ErrorCode.NONE
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._begin_session(self.members[member_id], now_ms)
        return ErrorCode.NONE

    # ── Events: time, the store, the end ──

    def tick(self, now_ms: int) -> list[Effect]:
        """Run timers that are due at *now_ms*.  Safe at any time."""
        self._pass_time(now_ms)
        return self._done()

    def begin_delete(self) -> ErrorCode:
        """NONE: the group is now Dead, and its keys can be deleted; else the DeleteGroups error."""
        refused = self.refuse_delete()
        if not refused:
            self.state = ClassicGroupState.DEAD
        return refused

    # ── Answers ──

    def _refuse_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """NONE if this is a member of the current generation."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = self.refuse_member(member_id, instance_id)
        if not refused and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return refused

    def _refuse_sync(self, request: SyncRequest) -> ErrorCode:
        refused = self._refuse_generation(
            request.member_id, request.instance_id, request.generation
        )
        if refused:
            return refused
        for said, chosen in (
            (request.protocol_type, self.protocol_type),
            (request.protocol, self.protocol),
        ):
            if said is not None and chosen is not None and said != chosen:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # ── Joining ──

    def _has_room(self, request: JoinRequest) -> bool:
        member = self.members.get(request.member_id)
        asks_for_an_id = request.member_id == UNKNOWN_MEMBER_ID and request.instance_id is None
        if asks_for_an_id and len(self._pending) >= self._settings.max_pending_members:
            return False
        match self.state:
            case ClassicGroupState.EMPTY | ClassicGroupState.DEAD:
                return True
            case ClassicGroupState.PREPARING_REBALANCE:
                # A group whose limit was lowered loses the members that join last.
                joined = member is not None and member.join_id is not None
                return joined or self.members.joining < self._settings.max_size
            case ClassicGroupState.COMPLETING_REBALANCE | ClassicGroupState.STABLE:
                return member is not None or len(self.members) < self._settings.max_size

    def _speaks(self, request: JoinRequest) -> bool:
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        same_type = request.protocol_type == self.protocol_type
        return same_type and self.members.support(request.protocols)

    def _join_new(self, request_id: int, request: JoinRequest, now_ms: int) -> None:
        instance_id = request.instance_id
        prefix = request.client_id if instance_id is None else instance_id
        member_id = self._new_member_id(prefix)
        if instance_id is None and request.version >= ID_REQUIRED_VERSION:
            self._expect_id(member_id, now_ms + request.session_timeout_ms)
            error = ErrorCode.MEMBER_ID_REQUIRED
            self._answer(request_id, JoinResponse(error=error, member_id=member_id))
            return
        known = None if instance_id is None else self.members.id_of(instance_id)
        if known is None:
            self._add(request_id, request, member_id, now_ms)
        else:
            self._return(request_id, request, self.members[known], member_id, now_ms)

    def _join_pending(self, request_id: int, request: JoinRequest, now_ms: int) -> None:
        if request.instance_id is not None:  # a static member is never pending
            self._answer(request_id, JoinResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        self._forget_id(request.member_id)
        self._add(request_id, request, request.member_id, now_ms)

    def _join_known(self, request_id: int, request: JoinRequest, now_ms: int) -> None:
        member_id = request.member_id
        refused = self.refuse_member(member_id, request.instance_id)
        if refused:
            response = JoinResponse(error=refused, member_id=member_id)
            self._answer(request_id, response)
            return
        member = self.members[member_id]
        leads = member_id == self.members.leader
        in_it = self.state is ClassicGroupState.COMPLETING_REBALANCE or (
            self.state is ClassicGroupState.STABLE and not leads
        )
        if in_it and member.protocols == request.protocols:
            self._answer(request_id, self._joined(member))
            return
        self._update(member, request_id, request)
        self._rebalance_or_complete(now_ms)

    def _add(self, request_id: int, request: JoinRequest, member_id: str, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member = ClassicGroupMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            join_id=request_id,
            is_new=True,
        )
        self.members.add(member)
        self._expect(member, now_ms + self._settings.new_member_join_timeout_ms)
        self._more_came = self._delay is not None
        self._rebalance_or_complete(now_ms)

    def _return(
        self,
        request_id: int,
        request: JoinRequest,
        old: ClassicGroupMember,
        member_id: str,
        now_ms: int,
    ) -> None:
        """A static member joins again, under a new id."""
        error, leader = ErrorCode.FENCED_INSTANCE_ID, self.members.leader or ""
        fenced = JoinResponse(error=error, member_id=old.member_id)
        self._answer_join(old, fenced)
        self._answer_sync(old, SyncResponse(error=error), now_ms)
        member = self._rename(old, member_id, now_ms)
        self._update(member, request_id, request)
        if self.state is not ClassicGroupState.STABLE or self.members.choose() != self.protocol:
            # COMPLETING_REBALANCE too: the leader assigns to the old id.
            self._rebalance_or_complete(now_ms)
            return
        self._waiters.append(
            PendingReplacement(
                request=request,
                request_id=request_id,
                generation=self.generation,
                leader=leader,
                member_id=member_id,
                old=old,
            )
        )
        self._to_store = True

    def _update(self, member: ClassicGroupMember, request_id: int, request: JoinRequest) -> None:
        timeouts = _rebalance_timeout_ms(request), request.session_timeout_ms
        self.members.update(member, request.protocols, *timeouts)
        again = JoinResponse(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        self._answer_join(member, again)
        self.members.set_join(member, request_id)

    def _leave(self, leaving: LeavingMember) -> LeftMember:
        member_id, instance_id = leaving.member_id, leaving.instance_id
        if member_id == UNKNOWN_MEMBER_ID:
            known = None if instance_id is None else self.members.id_of(instance_id)
            error = ErrorCode.UNKNOWN_MEMBER_ID if known is None else ErrorCode.NONE
        elif member_id in self._pending:
            known, error = member_id, ErrorCode.NONE
        else:
            known, error = member_id, self.refuse_member(member_id, instance_id)
        if not error and known is not None:
            self._remove(known)
        return LeftMember(member_id=member_id, instance_id=instance_id, error=error)


def _rebalance_timeout_ms(request: JoinRequest) -> int:
    """Version 0 has no rebalance timeout: the session timeout counts."""
    return request.session_timeout_ms if request.version == 0 else request.rebalance_timeout_ms
