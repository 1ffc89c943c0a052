"""One group that this agent coordinates: its machine and its offsets, and what they wait for.

    request ──▶ machine ──▶ Answer ──▶ the handler that waits
                       └──▶ Persist ─┐
    commit ──▶ Changes ──────────────┴─▶ decided ──gather──▶ one write ──▶ stored ──▶ replay,
                                                                           persisted, answered

What is decided is written in its order; what gathers while a write is in flight goes together in
the next.  A group that is dropped answers waiting requests with the reason; a write of its that is
in flight is still answered as what it came to.

Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from driftlog_agents.groups.classic.description import OffsetExpiry
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import Downgrade, ResolveRegexes
from driftlog_agents.groups.coordinator.budget import GROUP_BYTES, MEMBER_BYTES, GroupBudget
from driftlog_agents.groups.coordinator.pending_writes import Decided, PendingWrites, parts
from driftlog_agents.groups.coordinator.write_batcher import GroupWrite, GroupWrites
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.offsets import Changes, Committed, GroupOffsets, size_of
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

Machine = ClassicGroup | ConsumerGroup
GroupEffect = Answer | Persist | Downgrade | ResolveRegexes

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Kinds of groups, as they are stored and as ListGroups has them."""

_MAX_DECIDED: Final = 2_000
"""Decisions of a group that wait to be written.  More are refused: the store is away or full."""


@dataclass(slots=True, kw_only=True)
class GroupShell:
    """What a group needs of the agent around it."""

    session_id: str
    writes: GroupWrites
    now_ms: Callable[[], int]
    """Since 1970, and never back while the session lives."""
    nonce: Callable[[], str]
    schedule: "Callable[[ServedGroup], None]"
    """Look at the group's `deadline_ms` again."""
    lost: "Callable[[ServedGroup], None]"
    """Another agent coordinates it."""
    resolve: "Callable[[ServedGroup, ResolveRegexes], None]"
    """Match patterns with topics off the event loop, and tell `ServedGroup.resolved`."""
    downgraded: Callable[[str, ClassicValue], ClassicGroup]
    """The group of the classic protocol that one of KIP-848 becomes."""
    removed: "Callable[[ServedGroup], None]"
    """It is not there any more: deleted, or never stored and of no use."""
    counted: Counter[str]
    """By the name of their metric."""
    budget: GroupBudget
    """What all groups hold."""


class ServedGroup:
    """See the module.

    Args:
        revision: mod revision of the group's key; 0: it is not stored yet.
        revisions: the same of its members' and pages' keys.
    """

    def __init__(
        self,
        *,
        group_id: str,
        machine: Machine,
        shell: GroupShell,
        offsets: GroupOffsets | None = None,
        revision: int = 0,
        revisions: Mapping[str, int] | None = None,
    ) -> None:
        self.group_id = group_id
        self.machine = machine
        self.offsets = offsets or GroupOffsets()
        self._shell = shell
        self._pending = PendingWrites(
            group_id=group_id,
            session_id=shell.session_id,
            nonce=shell.nonce,
            offsets=self.offsets,
            revision=revision,
            revisions=revisions or {},
        )
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._reply: Any = None
        self.dropped: ErrorCode | None = None
        """Why it is not served here any more."""
        self._next: tuple[ClassicGroup, bool] | None = None
        """What it becomes with the write that is under way, and whether that is to rebalance."""
        self._generation = self.generation
        self.scheduled_ms: int | None = None
        """When the coordinator will look at it; the coordinator's."""
        self._held_bytes = 0
        """What of the budget is this group's."""

    # ── What it is ──

    @property
    def key(self) -> str:
        """Of the group itself."""
        return self._pending.key

    @property
    def revision(self) -> int:
        """Mod revision of its key; 0: it is not stored yet."""
        return self._pending.revision

    @property
    def kind(self) -> str:
        """Which protocol it is of."""
        return CLASSIC if isinstance(self.machine, ClassicGroup) else CONSUMER

    @property
    def classic(self) -> ClassicGroup | None:
        """Its machine, if it is of the classic protocol."""
        return self.machine if isinstance(self.machine, ClassicGroup) else None

    @property
    def consumer(self) -> ConsumerGroup | None:
        """Its machine, if it is of KIP-848."""
        return self.machine if isinstance(self.machine, ConsumerGroup) else None

    @property
    def generation(self) -> int:
        """Rises with every rebalance."""
        if isinstance(self.machine, ClassicGroup):
            return self.machine.generation
        return self.machine.assignment_epoch

    @property
    def state(self) -> str:
        """As ListGroups has it."""
        return self.machine.state

    @property
    def protocol_type(self) -> str:
        """As ListGroups has it; empty: none."""
        if isinstance(self.machine, ClassicGroup):
            return self.machine.protocol_type or ""
        return CONSUMER

    def become(self, machine: Machine) -> None:
        """Change the protocol of the group, which is empty, or whose members *machine* has
        too; its offsets stay.  Waiting requests are told to join again.

        Raises:
            RefusedError: COORDINATOR_LOAD_IN_PROGRESS: something of it is being written.
        """
        if not self._pending.idle:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        old, self.machine = self.machine, machine
        if isinstance(old, ClassicGroup):
            self._apply(old.drop(ErrorCode.REBALANCE_IN_PROGRESS))
        if isinstance(machine, ClassicGroup):  # The other one stores itself with its first member.
            gone = dict.fromkeys(self._pending.members)
            self._pending.add(Decided(kind=CLASSIC, puts={**gone, "": machine.value}))
            self._wake()

    def _downgrade(self, effect: Downgrade) -> None:
        """Store it as a classic group; it is that one when that is stored."""
        machine = self._shell.downgraded(self.group_id, effect.value)
        self._next = (machine, effect.has_to)
        puts = {**dict.fromkeys(self._pending.members), "": machine.value}
        self._pending.add(Decided(of=self.machine, token=effect.token, kind=CLASSIC, puts=puts))
        self._wake()

    def _go_classic(self) -> None:
        assert self._next is not None
        (machine, has_to), self._next = self._next, None
        self.machine = machine
        if has_to:
            self._apply(machine.rebalance(self._shell.now_ms()))

    def _value(self) -> tuple[str, bytes]:
        assert isinstance(self.machine, ClassicGroup), "a simple group is made by what it commits"
        return CLASSIC, self.machine.value

    # ── What it holds ──

    @property
    def size_bytes(self) -> int:
        """What it takes of memory, about."""
        said = self.machine.size_bytes * (2 if self.classic is None else 1)  # Encoded, too.
        members = said + MEMBER_BYTES * len(self.machine.members)
        offsets = self.offsets.size_bytes + self._pending.size_bytes
        return GROUP_BYTES + len(self.group_id) + members + offsets

    def account(self) -> None:
        """Say to the budget what it holds now."""
        held_bytes = 0 if self.dropped is not None else self.size_bytes
        self._shell.budget.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes

    def release(self) -> None:
        """It is not one of the groups any more."""
        self._shell.budget.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def admit(self, member_id: str, said_bytes: int) -> None:
        """Refuse a member that says more than it, its group or all groups may hold.

        Args:
            member_id: whose words of before those are in the place of, if it is in the group.

        Raises:
            RefusedError: INVALID_REQUEST, GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        budget = self._shell.budget
        try:
            budget.refuse_member(self.group_id, said_bytes)
            growth_bytes = said_bytes - self.machine.said_bytes(member_id)
            budget.refuse_growth(self.group_id, self.machine.size_bytes, growth_bytes)
        except RefusedError:
            self._shell.schedule(self)  # It may have been made for this.
            raise

    def admit_assignment(self, assignments: Sequence[tuple[str, bytes]]) -> None:
        """Refuse what a leader assigns if it is more than members or their group may hold.

        Raises:
            RefusedError: INVALID_REQUEST, GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        if self.classic is None:
            return  # Groups of KIP-848 assign themselves.
        budget, growth_bytes = self._shell.budget, 0
        for member_id, assignment in assignments:
            member = self.classic.members.get(member_id)
            if member is not None:
                budget.refuse_member(self.group_id, member.said_bytes + len(assignment))
                growth_bytes += len(assignment) - len(member.assignment)
        budget.refuse_growth(self.group_id, self.machine.size_bytes, growth_bytes)

    # ── What clients ask ──

    async def ask(
        self,
        event: Callable[[int, int], Sequence[GroupEffect]],
        on_close: set[Callable[[], None]] | None = None,
    ) -> Any:
        """Have the machine answer; *event* is given a request id and the time.

        Args:
            on_close: called when no client waits for the answer any more.

        Raises:
            RefusedError: the group is not served here any more, or the client is gone.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        self._asked = request_id = self._asked + 1
        self._apply(event(request_id, self._shell.now_ms()))
        reply, self._reply = self._reply, None
        self._shell.schedule(self)
        if reply is not None:
            return reply
        future = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        gone = partial(_nobody_waits, future)
        if on_close is not None:
            on_close.add(gone)
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)
            if on_close is not None:
                on_close.discard(gone)
            del future, gone  # The error of it has this frame in its traceback: no cycle of them.

    def tick(self) -> None:
        """The machine's time has come."""
        self._apply(self.machine.tick(self._shell.now_ms()))

    @property
    def deadline_ms(self) -> int | None:
        """When to `tick` next."""
        return self.machine.deadline_ms

    @property
    def is_writing(self) -> bool:
        """Whether a write of it is in flight."""
        return self._pending.in_flight

    @property
    def is_of_no_use(self) -> bool:
        """Whether nothing is stored of it, nor will be, and it has no members."""
        return not (
            self.revision
            or not self._pending.idle
            or self._waiting
            or self.machine.deadline_ms is not None
        )

    async def store(self, changes: Changes) -> None:
        """Write *changes* of its offsets; returns when they are stored.

        Raises:
            RefusedError: they are not, as far as we know.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        if not self.revision and self.consumer is not None:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # Its first member joins.
        if len(self._pending) >= _MAX_DECIDED:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._admit_changes(changes)
        done: asyncio.Future[None] | None = None
        for part in parts(changes):
            done = asyncio.get_running_loop().create_future()
            self._pending.add(Decided(changes=part, done=done))
        if done is None:
            self._shell.schedule(self)  # It may have been made for this.
            return
        self.account()
        self._wake()
        try:
            await done
        finally:
            del done  # As in `ask`.

    def _admit_changes(self, changes: Changes) -> None:
        """What replaces offsets needs no room, unless the store does not take it."""
        growth = self.offsets.growth_bytes(changes) if self._pending.idle else size_of(changes)
        try:
            self._shell.budget.refuse_bytes(self.group_id, growth)
        except RefusedError:
            self._shell.schedule(self)  # It may have been made for this.
            raise

    async def delete(self) -> ErrorCode:
        """Delete it and its offsets, if it is empty; returns when it is gone.

        Raises:
            RefusedError: it is not, as far as we know.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        refused = self.machine.begin_delete()
        if refused is not ErrorCode.NONE:
            return refused
        if not self.revision and self._pending.idle:
            self._removed()
            return ErrorCode.NONE
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.add(Decided(delete=True, done=done))
        self._wake()
        try:
            await done
        finally:
            del done  # As in `ask`.
        return ErrorCode.NONE

    async def expire(self, retention_ms: int, name_of: Callable[[UUID], str]) -> int:
        """Forget offsets that were kept long enough, and the group when it is empty then.

        Returns how many went.

        Raises:
            RefusedError: they are not gone, as far as we know.
        """
        since_ms: Callable[[Committed], int]
        expiry, empty_since_ms = OffsetExpiry.FROM_COMMIT, None
        if isinstance(self.machine, ClassicGroup):
            expiry, empty_since_ms = self.machine.offsets_expire(), self.machine.empty_since_ms
        if expiry is OffsetExpiry.FROM_EMPTY and empty_since_ms is not None:
            since_ms = lambda _: empty_since_ms  # noqa: E731
        elif expiry is OffsetExpiry.FROM_COMMIT:
            since_ms = lambda committed: committed.commit_ms  # noqa: E731
        else:
            return 0
        expired = self.offsets.expire(
            self._shell.now_ms(),
            retention_ms,
            since_ms,
            lambda topic_id: self.machine.is_subscribed_to(name_of(topic_id)),
        )
        if expired:
            await self.store(expired)
        if not self.offsets and self._pending.idle:
            await self.delete()
        return len(expired)

    def drop(self, code: ErrorCode, *, session_over: bool = False) -> None:
        """Answer waiting requests with *code*, and serve nothing any more."""
        if self.dropped is None:
            self.dropped = code
            if isinstance(self.machine, ClassicGroup):
                effects: Sequence[GroupEffect] = self.machine.drop(code)
            else:
                effects = self.machine.resign(code)
            for effect in effects:
                if isinstance(effect, Answer):
                    self._answer(effect)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(RefusedError(code))
            self._pending.fail(code, in_flight=False)
            self.account()
        if session_over:
            self._pending.fail(code, in_flight=True)

    # ── Effects ──

    def _apply(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    self._answer(effect)
                case Persist(token, puts):
                    self._persist(token, puts)
                case Downgrade():
                    self._downgrade(effect)
                case ResolveRegexes():
                    self._shell.resolve(self, effect)
        if self._generation != self.generation:
            self._generation = self.generation
            self._shell.counted["driftlog_group_rebalances"] += 1
        self.account()

    def resolved(self, topics: Mapping[str, frozenset[str]] | None) -> None:
        """What `ResolveRegexes` asked for; None: it could not be done."""
        if self.dropped is None and isinstance(self.machine, ConsumerGroup):
            self._apply(self.machine.regexes_resolved(topics, self._shell.now_ms()))
            self._shell.schedule(self)

    def _answer(self, answer: Answer) -> None:
        if getattr(answer.response, "error", None) is ErrorCode.GROUP_MAX_SIZE_REACHED:
            limit = "group.max.size" if self.kind == CLASSIC else "group.consumer.max.size"
            self._shell.budget.full(self.group_id, limit)
        future = self._waiting.get(answer.request_id)
        if future is None:
            if answer.request_id == self._asked:
                self._reply = answer.response
        elif not future.done():
            future.set_result(answer.response)

    def _persist(self, token: int, puts: Mapping[str, bytes | None]) -> None:
        decided = Decided(of=self.machine, token=token, kind=self.kind, puts=puts)
        self._pending.add(decided)
        self._wake()

    def _wake(self) -> None:
        if not self._pending.in_flight:
            self._shell.writes.wake(self)

    # ── Writer ──

    def gather(self) -> GroupWrite | None:
        """See `writes.Writer`."""
        while len(self._pending) and not self._pending.in_flight:
            taken, write = self._pending.gather(self._value)
            if write is not None:
                return write
            self._end(taken)
            if any(decided.delete for decided in taken):
                self._removed()
        return None

    def stored(self, revision: int) -> None:
        """See `writes.Writer`."""
        taken = self._pending.stored(revision)
        self._end(taken)
        if any(decided.delete for decided in taken):
            self._removed()
        self._go_on()

    def refused(self) -> None:
        """See `writes.Writer`."""
        for decided in self._pending.refused():
            decided.fail(ErrorCode.NOT_COORDINATOR)
        self._shell.lost(self)

    def too_large(self) -> None:
        """See `writes.Writer`."""
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        for decided in self._pending.refused():
            decided.fail(code)
            if decided.of is self.machine and self.dropped is None:
                now_ms = self._shell.now_ms()
                self._next = None
                self._apply(self.machine.not_persisted(decided.token, code, now_ms))
        self._shell.schedule(self)
        self._go_on()

    def _end(self, taken: Iterable[Decided]) -> None:
        for decided in taken:
            decided.succeed()
            if decided.of is self.machine and self.dropped is None:
                self._apply(self.machine.persisted(decided.token, self._shell.now_ms()))
                if self._next is not None:
                    self._go_classic()
                self._shell.schedule(self)

    def _go_on(self) -> None:
        self.account()
        if self.dropped is not None:
            self._shell.removed(self)
        elif len(self._pending):
            self._wake()

    def _removed(self) -> None:
        if self.dropped is None:
            self._shell.removed(self)
            self.drop(ErrorCode.NOT_COORDINATOR)  # What came while it was going.


def _nobody_waits(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(RefusedError(ErrorCode.NETWORK_EXCEPTION, "nobody waits"))
