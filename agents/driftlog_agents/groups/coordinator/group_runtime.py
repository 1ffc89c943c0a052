"""One group that this agent coordinates: its machine, its offsets, and the requests that wait.

    request ──▶ machine ──▶ Answer ──▶ the handler that waits
                       └──▶ Persist ─┐
    commit ──▶ Changes ──────────────┴─▶ decided ──gather──▶ one write ──▶ stored ──▶ replay,
                                                                           persisted, answered

Decisions are written in their order; decisions that arrive while a write is in flight go together
into the next write.  A dropped group answers waiting requests with the reason; a request whose
write is in flight still gets the outcome of that write.

An error in a group (a bug) ends neither the agent nor another group: the group is dropped, and the
next request loads it again as it is stored.

Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol
from uuid import UUID

from driftlog_agents.configs.limits import OFFSET_METADATA
from driftlog_agents.foundation.fair_queue import NOBODY, Client
from driftlog_agents.foundation.loop_slices import served_client, sliced
from driftlog_agents.foundation.offload import FairOffload
from driftlog_agents.groups.classic.description import OffsetExpiry
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.classic.subscription import all_subscribed_topics
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import DecideLong, Downgrade, ResolveRegexes
from driftlog_agents.groups.coordinator.budget import GROUP_BYTES, MEMBER_BYTES, GroupBudget
from driftlog_agents.groups.coordinator.pending_writes import (
    Decided,
    PendingWrites,
    UnencodedWrite,
)
from driftlog_agents.groups.coordinator.write_batcher import GroupWrite, GroupWrites
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.offsets import Changes, Committed, GroupOffsets, size_of
from driftlog_agents.groups.sizes import text_bytes
from driftlog_agents.groups.storage_format import CLASSIC, CONSUMER
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.foundation.types import Offload

Machine = ClassicGroup | ConsumerGroup
GroupEffect = Answer | Persist | Downgrade | DecideLong | ResolveRegexes

_LONG_BYTES: Final = 16 * 1024
"""Bytes of subscriptions that are read on the event loop: some 5,000 names of topics, at most."""

_ASKERS: Final = 16
"""So many addresses that wait for a group share its long work; more would take the event loop
longer to queue."""

_MAX_DECIDED: Final = 2_000
"""Most unwritten decisions of a group.  More are refused: the store is unavailable or full."""


class GroupHost(Protocol):
    """The coordinator of a group, as the group uses it."""

    session_id: str
    writes: GroupWrites
    budget: GroupBudget
    """Memory of all groups."""
    counted: Counter[str]
    """Counts by metric name."""
    page_text_bytes: int
    """Most bytes of the metadata texts of one page of offsets."""
    turns: FairOffload
    """Runs what takes long, and uses no state that changes, off the event loop."""
    offload: Offload
    """The same, in a turn of its own: for what requests of several clients wait for."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, which never decrease while the session lives."""

    def nonce(self) -> str:
        """Tells a write from all others."""

    def schedule(self, group: "ServedGroup") -> None:
        """The `deadline_ms` of *group* may have changed."""

    def lost(self, group: "ServedGroup") -> None:
        """Another agent coordinates *group*."""

    def failed(self, group: "ServedGroup") -> None:
        """An error of *group* is in `sys.exc_info`: drop it."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of a group's work while the session lives."""

    def removed(self, group: "ServedGroup") -> None:
        """*group* is deleted, or was never stored and is unused."""

    def resolve(
        self, group: "ServedGroup", wanted: ResolveRegexes, clients: Collection[Client]
    ) -> None:
        """Match patterns with topics off the event loop in turns of *clients*, then call
        `ServedGroup.resolved`."""

    def downgraded(self, group_id: str, value: ClassicValue) -> ClassicGroup:
        """The classic group that a group of KIP-848 becomes."""


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
        host: GroupHost,
        offsets: GroupOffsets | None = None,
        revision: int = 0,
        revisions: Mapping[str, int] | None = None,
    ) -> None:
        self.group_id = group_id
        self.machine = machine
        self.offsets = offsets or GroupOffsets()
        self._host = host
        self._pending = PendingWrites(
            group_id=group_id,
            session_id=host.session_id,
            nonce=host.nonce,
            offsets=self.offsets,
            revision=revision,
            revisions=revisions or {},
        )
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asking: dict[int, Client] = {}
        """The clients of requests that have no answer yet."""
        self._clients: Collection[Client] = (NOBODY,)
        """Whose turn the last long work took."""
        self._asked = 0
        self._reply: Any = None
        self.dropped: ErrorCode | None = None
        """Why this agent no longer serves it; None: it does."""
        self._next: tuple[ClassicGroup, bool] | None = None
        """The classic group that it becomes with the pending write, and whether that rebalances."""
        self._decision: asyncio.Future[None] | None = None
        """Done when the long decision that is being made has ended."""
        self._generation = self.generation
        self.scheduled_ms: int | None = None
        """When the coordinator ticks it; set by the coordinator."""
        self._held_bytes = 0
        """This group's part of `GroupBudget.held_bytes`."""
        self._expected_bytes = 0
        """Memory of assignments that admitted requests bring, until they are decided."""

    # ── Identity and state ──

    @property
    def key(self) -> str:
        """The group's own key in the metadata store."""
        return self._pending.key

    @property
    def revision(self) -> int:
        """Mod revision of its key; 0: it is not stored yet."""
        return self._pending.revision

    @property
    def kind(self) -> str:
        """CLASSIC or CONSUMER."""
        return CLASSIC if isinstance(self.machine, ClassicGroup) else CONSUMER

    @property
    def classic(self) -> ClassicGroup | None:
        """Its machine if it is a classic group."""
        return self.machine if isinstance(self.machine, ClassicGroup) else None

    @property
    def consumer(self) -> ConsumerGroup | None:
        """Its machine if it is a group of KIP-848."""
        return self.machine if isinstance(self.machine, ConsumerGroup) else None

    @property
    def generation(self) -> int:
        """Increases with every rebalance."""
        if isinstance(self.machine, ClassicGroup):
            return self.machine.generation
        return self.machine.assignment_epoch

    @property
    def state(self) -> str:
        """The state that ListGroups returns."""
        return self.machine.state

    @property
    def protocol_type(self) -> str:
        """The protocol type that ListGroups returns; empty: none."""
        if isinstance(self.machine, ClassicGroup):
            return self.machine.protocol_type or ""
        return CONSUMER

    def become(self, machine: Machine) -> None:
        """Change the protocol of the group; its offsets stay.  The group is empty, or *machine* has
        its members too.  Waiting requests are answered with REBALANCE_IN_PROGRESS.

        Raises:
            RefusedError: COORDINATOR_LOAD_IN_PROGRESS: a decision or a write is pending.
        """
        if not self._pending.idle or self._decision is not None:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        old, self.machine = self.machine, machine
        with self._contained():
            if isinstance(old, ClassicGroup):
                self._apply(old.drop(ErrorCode.REBALANCE_IN_PROGRESS))
        if isinstance(machine, ClassicGroup):  # A KIP-848 group is stored with its first member.
            gone = dict.fromkeys(self._pending.members)
            self._pending.add(Decided(kind=CLASSIC, puts={**gone, "": machine.value}))
            self._wake()

    def _downgrade(self, effect: Downgrade) -> None:
        """Store the group as a classic group; `_go_classic` switches after the write."""
        machine = self._host.downgraded(self.group_id, effect.value)
        self._next = (machine, effect.has_to)
        puts = {**dict.fromkeys(self._pending.members), "": machine.value}
        self._pending.add(Decided(of=self.machine, token=effect.token, kind=CLASSIC, puts=puts))
        self._wake()

    def _go_classic(self) -> None:
        assert self._next is not None
        (machine, has_to), self._next = self._next, None
        self.machine = machine
        if has_to:
            self._apply(machine.rebalance(self._host.now_ms()))

    def _value(self) -> tuple[str, bytes]:
        assert isinstance(self.machine, ClassicGroup), "a simple group is made by what it commits"
        return CLASSIC, self.machine.value

    # ── Memory ──

    @property
    def size_bytes(self) -> int:
        """Its approximate memory."""
        offsets = self.offsets.size_bytes + self._pending.size_bytes + self._pending.keys_bytes
        known = GROUP_BYTES + text_bytes(self.group_id) + self.members_bytes + offsets
        return known + self._expected_bytes

    @property
    def members_bytes(self) -> int:
        """Approximate memory of its members and their assignments."""
        said = self.machine.size_bytes * (2 if self.classic is None else 1)  # Also encoded.
        assigned = 0 if self.consumer is None else self.consumer.assigned_bytes
        return said + MEMBER_BYTES * len(self.machine.members) + assigned

    def account(self) -> None:
        """Update the budget with the group's current memory."""
        held_bytes = 0 if self.dropped is not None else self.size_bytes
        self._host.budget.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes

    def release(self) -> None:
        """Return the group's memory to the budget: the coordinator has removed the group."""
        self._host.budget.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def admit(self, member_id: str, said_bytes: int, assigned_bytes: int = 0) -> None:
        """Refuse a member whose data exceed the limits of a member, a group or the agent.

        Args:
            member_id: a member of the group with this id is replaced.
            said_bytes: size of the data that the member sends and the group keeps.
            assigned_bytes: memory that new assignments will take; only the agent's limit counts it.

        Raises:
            RefusedError: INVALID_REQUEST, GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        budget = self._host.budget
        try:
            budget.refuse_member(self.group_id, said_bytes)
            growth_bytes = said_bytes - self.machine.said_bytes(member_id)
            budget.refuse_scarce(self.group_id, growth_bytes)
            budget.refuse_growth(self.group_id, self.machine.size_bytes, growth_bytes)
            budget.refuse_bytes(self.group_id, assigned_bytes)
        except RefusedError:
            self._host.schedule(self)  # The group may have been created for this request.
            raise
        self._expected_bytes += assigned_bytes
        self.account()

    def admit_assignment(self, assignments: Sequence[tuple[str, bytes]]) -> None:
        """Refuse a leader's assignments that exceed the limits of a member, a group or the agent.

        Raises:
            RefusedError: INVALID_REQUEST, GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        if self.classic is None:
            return  # The coordinator assigns in groups of KIP-848.
        budget, growth_bytes = self._host.budget, 0
        for member_id, assignment in assignments:
            member = self.classic.members.get(member_id)
            if member is not None:
                budget.refuse_member(self.group_id, member.said_bytes + len(assignment))
                growth_bytes += len(assignment) - len(member.assignment)
        budget.refuse_scarce(self.group_id, growth_bytes)
        budget.refuse_growth(self.group_id, self.machine.size_bytes, growth_bytes)

    # ── Requests ──

    async def ask(
        self,
        event: Callable[[int, int], Sequence[GroupEffect]],
        on_close: set[Callable[[], None]] | None = None,
    ) -> Any:
        """Apply *event* to the machine and return the answer.

        Args:
            event: called with a request id and the time; returns effects.
            on_close: callbacks of the connection; one that ends the wait is added meanwhile.

        Raises:
            RefusedError: this agent no longer serves the group, or the client disconnected.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        self._asked = request_id = self._asked + 1
        self._asking[request_id] = served_client()
        try:
            return await self._ask(request_id, event, on_close)
        finally:
            del self._asking[request_id]

    async def _ask(
        self,
        request_id: int,
        event: Callable[[int, int], Sequence[GroupEffect]],
        on_close: set[Callable[[], None]] | None,
    ) -> Any:
        with self._contained():
            self._apply(event(request_id, self._host.now_ms()))
        if self.dropped is not None:
            raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR)
        reply, self._reply = self._reply, None
        self._host.schedule(self)
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
            del future, gone  # The error's traceback holds this frame: avoid a reference cycle.

    def tick(self) -> None:
        """Run the machine's timers that are due."""
        with self._contained():
            self._apply(self.machine.tick(self._host.now_ms()))

    @property
    def is_dropped(self) -> bool:
        """Whether this agent coordinates it no more."""
        return self.dropped is not None

    @property
    def deadline_ms(self) -> int | None:
        """When to `tick` next; None: no timer is pending."""
        return self.machine.deadline_ms

    @property
    def is_writing(self) -> bool:
        """Whether a write of the group is in flight."""
        return self._pending.in_flight

    @property
    def is_of_no_use(self) -> bool:
        """Whether the group is not stored, has no pending decision or write, no waiting request,
        no timer."""
        return not (
            self.revision
            or not self._pending.idle
            or self._decision is not None
            or self._waiting
            or self.machine.deadline_ms is not None
        )

    async def settled(self) -> None:
        """Return when no long decision is being made: half of one must not be seen.

        Raises:
            RefusedError: this agent no longer serves the group.
        """
        while self._decision is not None:
            await asyncio.shield(self._decision)
        if self.dropped is not None:
            raise RefusedError(self.dropped)

    async def subscribed(self, names: Collection[str]) -> frozenset[str] | None:
        """Those of *names* that members subscribe to; None: not known.

        Raises:
            RefusedError: this agent no longer serves the group.
        """
        await self.settled()
        if isinstance(self.machine, ConsumerGroup):
            machine, used = self.machine, set[str]()
            async for name in sliced(names):
                await self.settled()
                if machine.is_subscribed_to(name):
                    used.add(name)
            return frozenset(used)
        said = self.machine.subscriptions
        if said is None or sum(map(len, said)) <= _LONG_BYTES:
            return None if said is None else all_subscribed_topics(said, names)
        found: frozenset[str] | None
        turns, client = self._host.turns, served_client()
        found = await turns.run(client, 0, all_subscribed_topics, said, names)
        return found

    def is_used(self, topic: str, subscribed: frozenset[str] | None) -> bool:
        """Whether the group's offsets of *topic* are in use; *subscribed*: see the method."""
        if isinstance(self.machine, ConsumerGroup):
            return subscribed is None or topic in subscribed
        return self.machine.is_subscribed_to(topic, subscribed)

    async def store(self, changes: Changes) -> None:
        """Write *changes* of its offsets; return when they are stored.

        Raises:
            RefusedError: the write was refused or failed, or its outcome is unknown.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        if not self.revision and self.consumer is not None:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # The first join is pending.
        if len(self._pending) >= _MAX_DECIDED:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._admit_changes(changes)
        written: list[asyncio.Future[None]] = []
        for part in self._pending.parts(changes):
            part.done = asyncio.get_running_loop().create_future()
            written.append(part.done)
            self._pending.add(part)
        if not written:
            self._host.schedule(self)  # The group may have been created for this request.
            return
        self.account()
        self._wake()
        try:
            for done in written:
                await done
        finally:
            del written, done, part  # As in `ask`.

    def _admit_changes(self, changes: Changes) -> None:
        """Refuse changes above the limits of a page or of the agent.  A replaced offset frees its
        memory only while no write is pending."""
        budget = self._host.budget
        growth = self.offsets.growth_bytes(changes) if self._pending.idle else size_of(changes)
        try:
            if self._pending.texts.are_too_large(changes, self._host.page_text_bytes):
                budget.full(self.group_id, OFFSET_METADATA)
                raise RefusedError(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            budget.refuse_scarce(self.group_id, growth)
            budget.refuse_bytes(self.group_id, growth + self._pending.new_keys_bytes(changes))
        except RefusedError:
            self._host.schedule(self)  # The group may have been created for this request.
            raise

    async def delete(self) -> ErrorCode:
        """Delete the group and its offsets if it is empty; return when the deletion is stored.

        Raises:
            RefusedError: the deletion failed, or its outcome is unknown.
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
        """Delete expired offsets, and the group if it is empty and has no offsets left.

        Returns the number of expired offsets.

        Raises:
            RefusedError: the deletion failed, or its outcome is unknown.
        """
        with self._contained():
            return await self._expire(retention_ms, name_of)
        return 0

    async def _expire(self, retention_ms: int, name_of: Callable[[UUID], str]) -> int:
        since_ms: Callable[[Committed], int]
        expiry, empty_since_ms = OffsetExpiry.FROM_COMMIT, None
        before = self.machine, self.generation
        subscribed = await self.subscribed([name_of(id_) for id_ in self.offsets.topic_ids])
        if before != (self.machine, self.generation):
            return 0  # Members may subscribe to others by now: the next check is soon enough.
        if isinstance(self.machine, ClassicGroup):
            expiry = self.machine.offsets_expire(subscribed)
            empty_since_ms = self.machine.empty_since_ms
        if expiry is OffsetExpiry.FROM_EMPTY and empty_since_ms is not None:
            since_ms = lambda _: empty_since_ms  # noqa: E731
        elif expiry is OffsetExpiry.FROM_COMMIT:
            since_ms = lambda committed: committed.commit_ms  # noqa: E731
        else:
            return 0
        expired = self.offsets.expire(
            self._host.now_ms(),
            retention_ms,
            since_ms,
            lambda topic_id: self.is_used(name_of(topic_id), subscribed),
        )
        if expired:
            await self.store(expired)
        if not self.offsets and self._pending.idle:
            await self.delete()
        return len(expired)

    def drop(self, code: ErrorCode, *, session_over: bool = False) -> None:
        """Answer waiting requests with *code*, and refuse later ones.

        Args:
            session_over: fail the write in flight, too: its outcome will not be known.
        """
        if self.dropped is None:
            self.dropped = code
            with self._contained():
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
            self._settle()
            self.account()
        if session_over:
            self._pending.fail(code, in_flight=True)

    # ── Effects ──

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Drop the group, and not the agent, when an error escapes from its code: see the module.

        A group is a machine that clients drive, and the tasks that run it serve all groups.
        """
        try:
            yield
        except RefusedError:
            raise
        except Exception:  # noqa: BLE001  # see above
            self._host.failed(self)

    def _apply(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    self._answer(effect)
                case Persist(token, puts):
                    self._persist(token, puts)
                case Downgrade():
                    self._downgrade(effect)
                case DecideLong():
                    self._decision = asyncio.get_running_loop().create_future()
                    self._host.spawn(self._decide(effect, self._askers()))
                case ResolveRegexes():
                    self._host.resolve(self, effect, self._askers())
        if self._generation != self.generation:
            self._generation = self.generation
            self._host.counted["driftlog_group_rebalances"] += 1
        if self.consumer is None or not self.consumer.is_busy:
            self._expected_bytes = 0
        self.account()

    def _askers(self) -> Collection[Client]:
        """For whom long work is: one client of each address that waits for the group, so that no
        other address holds it up; those of the last such work if none waits."""
        if self._asking:
            addresses = {client.address: client for client in self._asking.values()}
            self._clients = list(islice(addresses.values(), _ASKERS))
        return self._clients

    async def _decide(self, effect: DecideLong, clients: Collection[Client]) -> None:
        with self._contained():
            decision = await self._host.turns.run_for(clients, 0, _decision_of, effect)
            if self.dropped is None and isinstance(self.machine, ConsumerGroup):
                self._settle()
                self._apply(self.machine.decided(decision, self._host.now_ms()))
        self._host.schedule(self)

    def _settle(self) -> None:
        if self._decision is not None:
            self._decision.set_result(None)
            self._decision = None

    def resolved(self, topics: Mapping[str, frozenset[str]] | None) -> None:
        """The matches for `ResolveRegexes`, by pattern; None: the matching failed."""
        if self.dropped is None and isinstance(self.machine, ConsumerGroup):
            with self._contained():
                self._apply(self.machine.regexes_resolved(topics, self._host.now_ms()))
            self._host.schedule(self)

    def _answer(self, answer: Answer) -> None:
        if getattr(answer.response, "error", None) is ErrorCode.GROUP_MAX_SIZE_REACHED:
            limit = "group.max.size" if self.kind == CLASSIC else "group.consumer.max.size"
            self._host.budget.full(self.group_id, limit)
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
            self._host.writes.wake(self)

    # ── Writer ──

    async def gather(self) -> GroupWrite | None:
        """See `write_batcher.Writer`."""
        with self._contained():
            try:
                while len(self._pending) and not self._pending.in_flight:
                    taken, write = self._pending.gather(self._value)
                    if write is not None:
                        return self._pending.encoded(await self._encoded(write))
                    self._end(taken)
            except Exception:
                self._pending.fail(ErrorCode.UNKNOWN_SERVER_ERROR, in_flight=True)
                raise
        return None

    async def _encoded(self, write: UnencodedWrite) -> GroupWrite:
        if not write.is_long:
            return write.encode()
        encoded: GroupWrite = await self._host.offload(write.encode)
        return encoded

    def stored(self, revision: int) -> None:
        """See `write_batcher.Writer`."""
        taken = self._pending.stored(revision)
        with self._contained():
            self._end(taken)
        self._go_on()

    def refused(self) -> None:
        """See `write_batcher.Writer`."""
        for decided in self._pending.refused():
            decided.fail(ErrorCode.NOT_COORDINATOR)
        self._host.lost(self)

    def too_large(self) -> None:
        """See `write_batcher.Writer`."""
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        taken = self._pending.refused()
        self._pending.count_texts()
        for decided in taken:
            decided.fail(code)
            if decided.of is self.machine and self.dropped is None:
                self._next = None
                with self._contained():
                    now_ms = self._host.now_ms()
                    self._apply(self.machine.not_persisted(decided.token, code, now_ms))
        self._host.schedule(self)
        self._go_on()

    def _end(self, taken: Iterable[Decided]) -> None:
        taken = list(taken)
        for decided in taken:
            decided.succeed()
        for decided in taken:
            if decided.of is self.machine and self.dropped is None:
                self._apply(self.machine.persisted(decided.token, self._host.now_ms()))
                if self._next is not None:
                    self._go_classic()
                self._host.schedule(self)
        if any(decided.delete for decided in taken):
            self._removed()

    def _go_on(self) -> None:
        self.account()
        if self.dropped is not None:
            self._host.removed(self)
        elif len(self._pending):
            self._wake()

    def _removed(self) -> None:
        if self.dropped is None:
            self._host.removed(self)
            self.drop(ErrorCode.NOT_COORDINATOR)  # Requests that arrived during the deletion.


def _decision_of(effect: DecideLong) -> object:
    return effect.decide()


def _nobody_waits(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(RefusedError(ErrorCode.NETWORK_EXCEPTION, "the client is gone"))
