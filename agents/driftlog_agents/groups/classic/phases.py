"""From one generation of a classic group to the next: joining, syncing, sessions, timeouts.

`classic/machine` has the diagram and handles the requests.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager: prepareRebalance,
completeClassicGroupJoin, tryCompleteInitialRebalanceElseSchedule, expirePendingSync,
expireClassicGroupMemberHeartbeat.
Pure.
"""

from typing import Final

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.description import ClassicGroupState
from driftlog_agents.groups.classic.facts import ClassicFacts
from driftlog_agents.groups.classic.members import ClassicGroupMember
from driftlog_agents.groups.classic.messages import JoinResponse, Response, SyncResponse
from driftlog_agents.groups.classic.stored_value import LAST_GENERATION, UNTOLD, ClassicValue
from driftlog_agents.groups.effects import Answer, Effect
from driftlog_agents.groups.sizes import text_bytes
from driftlog_agents.protocol.errors import ErrorCode

_AGAIN_MS: Final = 100
"""Least time until the next try to end a join phase in which no member waits."""


class ClassicPhases(ClassicFacts):
    """*unix_offset_ms*: unix time minus the events' *now_ms*; *stored*: a value to restore."""

    def __init__(
        self,
        group_id: str,
        settings: ClassicSettings,
        now_ms: int,
        unix_offset_ms: int,
        stored: ClassicValue | None,
    ) -> None:
        super().__init__(group_id, stored or ClassicValue(state_since_ms=now_ms + unix_offset_ms))
        self._settings = settings
        self._unix_offset_ms = unix_offset_ms
        self._least_generation = self._reserved - UNTOLD + 1
        """Above all generations that the previous coordinator may have answered with."""
        self._pending: dict[str, int] = {}
        """Issued member ids that have not joined yet, and when they expire."""
        self._pending_bytes = 0
        self._to_sync: set[str] = set()
        """Members of this generation without a SyncGroup yet."""
        self._join_at_ms: int | None = None
        """When joining ends."""
        self._delay: tuple[int, int] | None = None
        """In a first rebalance: the current delay and the remaining extension, in ms."""
        self._more_came = False
        """Whether a member joined since that delay began."""
        self._sync_at_ms: int | None = None
        """When members that have not synced are removed."""
        self._session_at_ms: int | None = None
        """No session and no pending id ends earlier."""
        self._to_store = False
        self._effects: list[Effect] = []
        for member in self.members:
            self._begin_session(member, now_ms)

    @property
    def deadline_ms(self) -> int | None:
        """When to `tick` next; None: no timer is pending."""
        times = (self._join_at_ms, self._sync_at_ms, self._session_at_ms)
        return min((at for at in times if at is not None), default=None)

    def _pass_time(self, now_ms: int) -> None:
        """Run timers until none is due: with timeouts of 0, a timer can set one that is due."""
        while (deadline_ms := self.deadline_ms) is not None and deadline_ms <= now_ms:
            if self._sync_at_ms == deadline_ms:
                for member_id in list(self._to_sync):
                    self._remove(member_id)
                self._prepare_rebalance(now_ms)
            elif self._join_at_ms == deadline_ms:
                self._end_joining(now_ms)
            else:
                self._end_sessions(now_ms)

    def _unix_ms(self, now_ms: int) -> int:
        return now_ms + self._unix_offset_ms

    # ── Answers ──

    def _answer(self, request_id: int, response: Response) -> None:
        self._effects.append(Answer(request_id, response))

    def _answer_join(self, member: ClassicGroupMember, response: JoinResponse) -> None:
        """Answer the member's waiting JoinGroup, if any."""
        request_id = self.members.set_join(member, None)
        if request_id is not None:
            self._answer(request_id, response)

    def _answer_sync(self, member: ClassicGroupMember, response: SyncResponse, now_ms: int) -> None:
        """Answer the member's waiting SyncGroup, if any, and restart its session."""
        if member.sync_id is not None:
            self._answer(member.sync_id, response)
            member.sync_id = None
            self._begin_session(member, now_ms)

    def _joined(self, member: ClassicGroupMember) -> JoinResponse:
        """The answer to JoinGroup of a member of this generation."""
        leads = member.member_id == self.members.leader
        return JoinResponse(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader or "",
            member_id=member.member_id,
            members=self._joined_members() if leads else (),
        )

    def _reset_assignments(self, error: ErrorCode, now_ms: int) -> None:
        """Clear all assignments; waiting SyncGroups get *error*."""
        for member in self.members:
            self.members.assign(member, b"")
            self._answer_sync(member, SyncResponse(error=error), now_ms)

    def _expect_id(self, member_id: str, until_ms: int) -> None:
        """Remember an issued member id; its client must join before *until_ms*."""
        self._pending[member_id] = until_ms
        self._pending_bytes += text_bytes(member_id)
        self._look_at_sessions(until_ms)

    def _forget_id(self, member_id: str) -> None:
        if self._pending.pop(member_id, None) is not None:
            self._pending_bytes -= text_bytes(member_id)

    def _remove(self, member_id: str) -> None:
        """Forget the member id; its waiting requests get UNKNOWN_MEMBER_ID."""
        self._forget_id(member_id)
        self._to_sync.discard(member_id)
        member = self.members.get(member_id)
        if member is None:
            return
        self._answer_join(member, JoinResponse(error=ErrorCode.UNKNOWN_MEMBER_ID))
        if member.sync_id is not None:
            self._answer(member.sync_id, SyncResponse(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member_id)

    # ── Phases ──

    def _rebalance_or_complete(self, now_ms: int) -> None:
        if self.state is not ClassicGroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(now_ms)
        elif self._delay is None and self._have_all_joined():
            self._complete_joining(now_ms)

    def _have_all_joined(self) -> bool:
        return self.members.joining == len(self.members) and not self._pending

    def _prepare_rebalance(self, now_ms: int) -> None:
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._to_sync.clear()
        self._sync_at_ms = None
        is_first = self.is_empty
        self._transition(ClassicGroupState.PREPARING_REBALANCE, self._unix_ms(now_ms))
        timeout_ms = self.members.rebalance_timeout_ms
        if is_first:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._delay = delay_ms, max(timeout_ms - delay_ms, 0)
            self._more_came = False
            self._join_at_ms = now_ms + delay_ms
        elif self._have_all_joined():
            self._complete_joining(now_ms)
        else:
            self._join_at_ms = now_ms + timeout_ms

    def _end_joining(self, now_ms: int) -> None:
        """End joining at its timeout; extend the delay of a first rebalance if members joined."""
        if self._delay is not None and self._more_came and self._delay[1] > 0:
            delay_ms, remaining_ms = self._delay
            next_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._delay = next_ms, max(remaining_ms - delay_ms, 0)
            self._more_came = False
            self._join_at_ms = now_ms + next_ms
        else:
            self._complete_joining(now_ms)

    def _complete_joining(self, now_ms: int) -> None:
        self._join_at_ms = self._delay = None
        for member in list(self.members):
            if member.join_id is None and not member.is_static:
                self._remove(member.member_id)
        if self.members and not self.members.elect_joined():
            # Only static members, and none has joined: try again until their sessions end.
            again_ms = max(self.members.rebalance_timeout_ms, _AGAIN_MS)
            self._join_at_ms = now_ms + again_ms
            return
        self._next_generation()
        if not self.members:
            self.protocol = None
            self._transition(ClassicGroupState.EMPTY, self._unix_ms(now_ms))
            self._to_store = True
            return
        self.protocol = self.members.choose()
        self._transition(ClassicGroupState.COMPLETING_REBALANCE, self._unix_ms(now_ms))
        self._to_sync = {member.member_id for member in self.members}
        self._sync_at_ms = now_ms + self.members.rebalance_timeout_ms
        for member in self.members:
            self._answer_join(member, self._joined(member))
            member.is_new = False
            self._begin_session(member, now_ms)

    def _next_generation(self) -> None:
        self.generation = max(self.generation + 1, self._least_generation)
        if self.generation > LAST_GENERATION:  # No member remembers 1 after two billion.
            self.generation = self._least_generation = 1
            self._reserved = UNTOLD

    # ── Sessions ──

    def _begin_session(self, member: ClassicGroupMember, now_ms: int) -> None:
        """Restart the member's session timeout."""
        self._expect(member, now_ms + member.session_timeout_ms)

    def _expect(self, member: ClassicGroupMember, until_ms: int) -> None:
        member.expires_ms = until_ms
        self._look_at_sessions(until_ms)

    def _look_at_sessions(self, at_ms: int) -> None:
        """Run `_end_sessions` at *at_ms* or earlier."""
        if self._session_at_ms is None or at_ms < self._session_at_ms:
            self._session_at_ms = at_ms

    def _end_sessions(self, now_ms: int) -> None:
        """Remove members and pending ids whose time has expired, the earliest first."""
        ends = [(at_ms, member_id) for member_id, at_ms in self._pending.items()]
        ends += [(m.expires_ms, m.member_id) for m in self.members if m.expires_ms is not None]
        for at_ms, member_id in sorted(ends):
            if at_ms <= now_ms:
                self._end_session(member_id, now_ms)
        left = [member.expires_ms for member in self.members] + list(self._pending.values())
        self._session_at_ms = min((at for at in left if at is not None), default=None)

    def _end_session(self, member_id: str, now_ms: int) -> None:
        member = self.members.get(member_id)
        if member is not None:
            if member.expires_ms is None or member.expires_ms > now_ms:
                return  # a rebalance ended just before, and restarted the session
            if member.waits:
                member.expires_ms = None
                return
        was_pending = member_id in self._pending
        self._remove(member_id)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            if self._have_all_joined():
                self._complete_joining(now_ms)
        elif not was_pending:
            self._prepare_rebalance(now_ms)
