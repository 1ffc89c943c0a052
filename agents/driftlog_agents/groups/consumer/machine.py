"""A consumer group of KIP-848: decide, persist, answer.

    heartbeat ─┐                              ┌──▶ Answer, if nothing has changed
    describe  ─┼─▶ decide, one after another ─┤
    tick      ─┘              ▲               └──▶ Persist ──stored──▶ Answer
                              │                       │
                              └──── events queued meanwhile, all in the next Persist

A decision that takes long (many partitions, names or queued events) is an effect, `DecideLong`: a
thread computes it, and `decided` goes on with it.  Events are queued meanwhile, too.

One write of a group is in flight at a time.  Its answers are decided before the write, and sent
after it.  If it fails, its changes are undone, and the waiting requests get the reason.  So every
answer to a member is in the metadata store, and `restore` finds it there.

consumer/test_machine_schedules.py checks these invariants under every order of events:

1. Every request is answered once.
2. No partition is in the assignments of two members, nor in their answers.
3. Members that heartbeat finally have every partition of the topics that they subscribe to.
4. Epochs never decrease; a restart at any moment loses nothing that was answered.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager (4.3), KIP-848.
Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Self
from uuid import UUID

from driftlog_agents.configs.group_settings import ConsumerSettings
from driftlog_agents.groups.classic.facts import ClassicFacts
from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    SyncRequest,
)
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.classic.subscription import named_topics
from driftlog_agents.groups.consumer.classic_members import ClassicSide
from driftlog_agents.groups.consumer.events import ConsumerEffect, TakenEvent
from driftlog_agents.groups.consumer.membership import Membership
from driftlog_agents.groups.consumer.messages import (
    ConsumerHeartbeat,
    DecideLong,
    Downgrade,
)
from driftlog_agents.groups.consumer.migration import downgraded, upgrade
from driftlog_agents.groups.consumer.state import PARTITION_BYTES, ConsumerGroupMember, page_of
from driftlog_agents.groups.consumer.stored_value import (
    HEAD,
    GroupEncoder,
    decode_head,
    decode_page,
    encode_head,
)
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.stores.errors import CorruptError

_OFFSET_COMMIT_OF_EPOCHS: Final = 9
"""From this version, OffsetCommit carries a member epoch (KIP-848)."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """What was decided: answers with their events, other effects, and what to store; nothing to
    store if both are None.  ``rest``: events that the classic group is to be asked again."""

    held: list[tuple[Answer, TakenEvent]]
    effects: list[ConsumerEffect]
    puts: dict[str, bytes | None] | None
    classic: ClassicValue | None
    rest: list[TakenEvent]


class ConsumerGroup:
    """See the module.

    Args:
        topics: the cluster's topics; see the property.
        new_member_id: returns an unused member id from a prefix that names the client, for members
            of the classic protocol; members of KIP-848 choose their own.
    """

    long_partitions: ClassVar[int] = 1_000
    """A decision of a group with more partitions is a `DecideLong`: each takes some 10 to 25 µs.
    More: larger groups are spared the way to the thread; the event loop stands still for longer."""

    long_events: ClassVar[int] = 100
    """The same of more events: each takes some 50 µs."""

    long_members: ClassVar[int] = 200
    """The same of more members that events describe or remove: each takes some 10 µs."""

    long_names: ClassVar[int] = 20_000
    """The same if members subscribe to more names, of topics that exist or not, times events: one
    that changes the group reads all of them, some 0.5 µs each."""

    def __init__(
        self,
        group_id: str,
        settings: ConsumerSettings,
        topics: ClusterTopics,
        new_member_id: Callable[[str], str],
    ) -> None:
        self._group = Membership(group_id, settings, topics)
        self._classic = ClassicSide(self._group, new_member_id)
        self._token = 0
        self._held: list[tuple[Answer, TakenEvent]] = []
        """Answers of the write in flight, sent when it is stored."""
        self._topics = topics
        self._settings = settings
        self._persisting = False
        self._deciding: Sequence[TakenEvent] | None = None
        """Events of the long decision that is being made."""
        self._is_stored = False
        """Whether the store has the group; the first write puts its own key and all members."""
        self._queue: list[TakenEvent] = []
        """Events that arrived while a write is in flight."""
        self._encoder = GroupEncoder()
        self._gone: ErrorCode | None = None
        """The error of every later request: the group was resigned or is being deleted."""

    @classmethod
    def restore(
        cls,
        group_id: str,
        stored: Mapping[str, bytes],
        settings: ConsumerSettings,
        topics: ClusterTopics,
        new_member_id: Callable[[str], str],
        now_ms: int,
    ) -> Self:
        """Restore a group from its stored values, by the names of `Persist`.

        Raises:
            UnsupportedFormatError: a value has a newer format.
            CorruptError: the values are not a group of KIP-848.
        """
        group = cls(group_id, settings, topics, new_member_id)
        state = group._group.state
        state.head = decode_head(stored[HEAD])
        for name in sorted(stored.keys() - {HEAD}):
            for member in decode_page(stored[name]):
                if any(state.owner_of(p) is not None for p in (*member.assigned, *member.pending)):
                    raise CorruptError(f"two members have one partition: {member!r:.200}")
                state.put(member)
        state.forget()
        group._is_stored = True
        group._group.rearm(now_ms)
        return group

    @classmethod
    def upgraded(
        cls,
        classic: ClassicFacts,
        settings: ConsumerSettings,
        topics: ClusterTopics,
        new_member_id: Callable[[str], str],
        now_ms: int,
    ) -> Self:
        """The group of KIP-848 that a classic group becomes when a KIP-848 member joins it; the
        write of that join stores it.

        Raises:
            RefusedError: GROUP_ID_NOT_FOUND with the reason: it cannot be converted.
        """
        group = cls(classic.group_id, settings, topics, new_member_id)
        upgrade(classic, group._group)
        group._group.state.forget()
        group._group.rearm(now_ms)
        return group

    def reconfigure(self, settings: ConsumerSettings) -> None:
        """Take other settings; a member's timers take them with its next heartbeat."""
        self._settings = settings

    # ── Queries ──

    @property
    def group_id(self) -> str:
        return self._group.group_id

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and no long decision may bring one."""
        return not self.is_deciding and not self._group.state.members

    @property
    def state(self) -> str:
        """``Empty``, ``Assigning``, ``Reconciling``, ``Stable`` or ``Dead``."""
        if self._gone is not None:
            return "Dead"
        return "Assigning" if self.is_deciding else self._group.state.name

    @property
    def topics(self) -> ClusterTopics:
        """Topics of the cluster; the next decisions use a new value."""
        return self._topics

    @topics.setter
    def topics(self, topics: ClusterTopics) -> None:
        self._topics = topics

    @property
    def assignment_epoch(self) -> int:
        """Increases with every new target assignment."""
        return self._group.state.head.assignment_epoch

    @property
    def size_bytes(self) -> int:
        """Memory that the group keeps from its members, with the topics that patterns match."""
        return self._group.size_bytes

    @property
    def assigned_bytes(self) -> int:
        """Memory of its assignments."""
        return PARTITION_BYTES * self._group.assigned

    def assigned_growth_bytes(self, names: Iterable[str], regex: str | None) -> int:
        """At most so much memory more once the topics of *names* and *regex* are assigned."""
        return 2 * PARTITION_BYTES * self._group.new_partitions(names, regex, self._topics)

    @property
    def is_deciding(self) -> bool:
        """Whether a thread decides: what `is_subscribed_to`, `validate_commit` and `validate_fetch`
        would return may be half of a decision."""
        return self._deciding is not None

    @property
    def is_busy(self) -> bool:
        """Whether a decision is not made or not stored yet; other events wait for it."""
        return self._persisting or self.is_deciding

    def said_bytes(self, member_id: str) -> int:
        """Memory that the group keeps from a member; 0: not a member."""
        member = self._group.state.members.get(member_id)
        return 0 if member is None else member.said_bytes

    @property
    def members(self) -> Mapping[str, ConsumerGroupMember]:
        return self._group.state.members

    def is_subscribed_to(self, topic_name: str) -> bool:
        """Whether a member subscribes to the topic; its offsets do not expire then."""
        return self._group.state.is_subscribed_to(topic_name)

    def validate_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: Iterable[tuple[UUID, int]],
        *,
        version: int,
        transactional: bool = False,
    ) -> ErrorCode:
        """NONE if a member, or a client outside the group, may commit offsets of *partitions*.

        An older epoch is valid for partitions that the member has had since that epoch or before
        (KIP-1251).

        Args:
            version: version of OffsetCommit; ignored for TxnOffsetCommit.
        """
        members = self._group.state.members
        if epoch < 0 and not members:
            return ErrorCode.NONE
        if transactional and epoch == -1 and member_id == "" and instance_id is None:
            return ErrorCode.NONE
        member = members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_old = member.classic is None and version < _OFFSET_COMMIT_OF_EPOCHS
        if is_old and not transactional:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch:
            return ErrorCode.NONE
        had = {**member.pending, **member.assigned}
        since = [had.get(partition) for partition in partitions]
        if epoch < member.epoch and all(e is not None and e <= epoch for e in since):
            return ErrorCode.NONE
        return _stale(member)

    def validate_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """NONE if a member, or a client outside the group, may read committed offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self._group.state.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else _stale(member)

    # ── Events ──

    @property
    def deadline_ms(self) -> int | None:
        """When to `tick` next; None: no timer is pending, or the group is busy."""
        return None if self.is_busy or self._gone is not None else self._group.timers.next_ms

    def heartbeat(
        self, request_id: int, request: ConsumerHeartbeat | HeartbeatRequest, now_ms: int
    ) -> list[ConsumerEffect]:
        """ConsumerGroupHeartbeat (join, heartbeat or leave), or Heartbeat of a classic member."""
        match request:
            case ConsumerHeartbeat():
                return self._take(TakenEvent.of(request_id, self._group.heartbeat, request), now_ms)
            case HeartbeatRequest():
                alive = self._classic.heartbeat
                return self._take(TakenEvent.of(request_id, alive, request), now_ms)

    def join(self, request_id: int, request: JoinRequest, now_ms: int) -> list[ConsumerEffect]:
        """JoinGroup of a member of the classic protocol."""
        return self._take(TakenEvent.of(request_id, self._classic.join, request), now_ms)

    def sync(self, request_id: int, request: SyncRequest, now_ms: int) -> list[ConsumerEffect]:
        """SyncGroup of a member of the classic protocol."""
        return self._take(TakenEvent.of(request_id, self._classic.sync, request), now_ms)

    def leave(self, request_id: int, request: LeaveRequest, now_ms: int) -> list[ConsumerEffect]:
        """LeaveGroup for members of either protocol."""
        return self._take(TakenEvent.of(request_id, self._classic.leave, request), now_ms)

    def describe(self, request_id: int, now_ms: int) -> list[ConsumerEffect]:
        """ConsumerGroupDescribe: members, with the current and the target assignment of each."""
        return self._take(TakenEvent.describe(request_id, self._group.describe), now_ms)

    def regexes_resolved(
        self, resolved: Mapping[str, frozenset[str]] | None, now_ms: int
    ) -> list[ConsumerEffect]:
        """The result of `ResolveRegexes`: topic names by pattern; None: the matching failed."""

        def event(_: int) -> list[ConsumerEffect]:
            self._group.regexes_resolved(resolved)
            return []

        return self._take(TakenEvent(event), now_ms)

    def tick(self, now_ms: int) -> list[ConsumerEffect]:
        """Run timers that are due at *now_ms*.  Safe at any time."""
        if self.is_busy or self._gone is not None:
            return []
        return self._run([], now_ms)

    def decided(self, decision: object, now_ms: int) -> list[ConsumerEffect]:
        """The long decision is made; *decision*: what `DecideLong.decide` returned."""
        assert isinstance(decision, _Decision)
        self._deciding = None
        return [] if self._gone is not None else self._take_effect(decision, now_ms)

    def persisted(self, token: int, now_ms: int) -> list[ConsumerEffect]:
        """The write with *token* is stored."""
        assert self._persisting
        assert token == self._token
        answers = [answer for answer, _ in self._held]
        self._held = []
        self._persisting = False
        self._is_stored = True
        self._group.state.forget()
        if self._group.downgrading is not None:  # Clients retry, and reach the classic group.
            return [*answers, *self.resign(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        return [*answers, *self._run_queue(now_ms)]

    def not_persisted(self, token: int, error: ErrorCode, now_ms: int) -> list[ConsumerEffect]:
        """The write with *token* is not stored and never will be: undo it; its requests get
        *error*."""
        assert self._persisting
        assert token == self._token
        refused = self._refuse_held(error)
        self._persisting = False
        self._group.state.undo_to(0)
        self._group.downgrading = None
        self._group.rearm(now_ms)
        return [*refused, *self._run_queue(now_ms)]

    def resign(self, error: ErrorCode) -> list[ConsumerEffect]:
        """Stop serving the group: every waiting and every later request gets *error*."""
        self._gone = error
        queue, self._queue = [*(self._deciding or ()), *self._queue], []
        return [*self._refuse_held(error), *(a for taken in queue for a in taken.refused(error))]

    def begin_delete(self) -> ErrorCode:
        """NONE: later requests get COORDINATOR_NOT_AVAILABLE; NON_EMPTY_GROUP: the group has
        members, or is busy."""
        if self.is_busy or not self.is_empty:
            return ErrorCode.NON_EMPTY_GROUP
        self._gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    # ── One write at a time ──

    def _take(self, taken: TakenEvent, now_ms: int) -> list[ConsumerEffect]:
        if self._gone is not None:
            return list(taken.refused(self._gone))
        if self.is_busy:
            self._queue.append(taken)
            return []
        return self._run([taken], now_ms)

    def _run_queue(self, now_ms: int) -> list[ConsumerEffect]:
        queue, self._queue = self._queue, []
        return [] if self._gone is not None else self._run(queue, now_ms)

    def _run(self, queue: Sequence[TakenEvent], now_ms: int) -> list[ConsumerEffect]:
        """Decide *queue*, then due timers; return the write of the changes, or the answers."""
        assert not self.is_busy
        self._group.topics, self._group.settings = self._topics, self._settings
        decide = partial(self._decided, queue, now_ms)
        if not self._takes_long(queue, now_ms):
            return self._take_effect(decide(), now_ms)
        self._deciding = queue
        return [DecideLong(decide)]

    def _takes_long(self, queue: Sequence[TakenEvent], now_ms: int) -> bool:
        if len(queue) > self.long_events:
            return True
        members = sum(map(self._touched_members, queue))
        due_ms = self._group.timers.next_ms
        if due_ms is not None and due_ms <= now_ms:
            members += len(self._group.state.members)  # The sessions of all may end together.
        if members > self.long_members:
            return True
        brought = sum(_brought_names(taken.request) for taken in queue)
        if (self._group.state.named + brought) * len(queue) > self.long_names:
            return True
        assigned = self._group.assigned // 2  # The target, and what members have.
        if max(self._topics.partitions, assigned) <= self.long_partitions:
            return False  # Most clusters.
        partitions = max(assigned, self._group.subscribed)
        for taken in queue:
            match taken.request:
                case ConsumerHeartbeat() as request:
                    names, regex = request.topic_names or (), request.topic_regex
                    partitions += self._group.new_partitions(names, regex, self._topics)
                case JoinRequest():
                    partitions += self._topics.partitions  # Its topics are not read yet.
                case _:
                    pass
        return partitions > self.long_partitions

    def _touched_members(self, taken: TakenEvent) -> int:
        """Members that the event describes or removes, at most."""
        if taken.describes:
            return len(self._group.state.members)
        return len(taken.request.members) if isinstance(taken.request, LeaveRequest) else 0

    def _decided(self, queue: Sequence[TakenEvent], now_ms: int) -> _Decision:
        """Decide; this changes the members and their state, and nothing else of the group."""
        group = self._group
        group.begin_epochs_again_if_used_up()
        rest: list[TakenEvent] = []
        held: list[tuple[Answer, TakenEvent]] = []
        effects: list[ConsumerEffect] = []
        for i, taken in enumerate(queue):
            for effect in self._decide(taken, now_ms):
                if isinstance(effect, Answer):
                    held.append((effect, taken))
                else:
                    effects.append(effect)
            if group.downgrading is not None:
                rest = list(queue[i + 1 :])
                break
        due = group.timers.take_due(now_ms)
        if group.downgrading is None:  # Else the classic group starts new sessions.
            group.ring(due)
        if group.downgrading is None:
            return _Decision(held, effects, self._puts() or None, None, rest)
        members = group.state.members.values()
        value = downgraded(group.state, group.topics, members, now_ms)
        return _Decision(held, effects, None, value, rest)

    def _take_effect(self, decision: _Decision, now_ms: int) -> list[ConsumerEffect]:
        group = self._group
        self._queue[:0] = decision.rest
        write: Persist | Downgrade
        if decision.puts is not None:
            write = Persist(self._token + 1, decision.puts)
        elif decision.classic is not None:
            assert group.downgrading is not None
            write = Downgrade(self._token + 1, decision.classic, group.downgrading)
        else:
            group.state.forget()
            answers = [answer for answer, _ in decision.held]
            later = self._run_queue(now_ms) if self._queue else []
            return [*answers, *decision.effects, *later]
        self._token += 1
        self._held = decision.held
        self._persisting = True
        return [write, *decision.effects]

    def _decide(self, taken: TakenEvent, now_ms: int) -> Iterable[ConsumerEffect]:
        state = self._group.state
        mark = state.mark
        try:
            return taken.event(now_ms)
        except RefusedError as error:
            if state.mark > mark:
                state.undo_to(mark)
                self._group.rearm(now_ms)
            return taken.refused(error.code, error.message)

    def _puts(self) -> dict[str, bytes | None]:
        state = self._group.state
        head_changed, changed = state.changes_since(0)
        if not head_changed and not changed:
            return {}
        if not self._is_stored:
            changed = set(state.members)
        for member_id in changed - state.members.keys():
            self._encoder.forget(member_id)
        puts: dict[str, bytes | None] = {}
        for name in sorted({page_of(member_id) for member_id in changed}):
            members = state.page(name)
            puts[name] = self._encoder.page(members) if members else None
        if head_changed or not self._is_stored:
            puts[HEAD] = encode_head(state.head, self._encoder.target(state.head.target))
        return puts

    def _refuse_held(self, error: ErrorCode) -> list[ConsumerEffect]:
        held, self._held = self._held, []
        return [refused for _, taken in held for refused in taken.refused(error)]


def _brought_names(request: object) -> int:
    """Names of topics that *request* subscribes to, at most."""
    match request:
        case ConsumerHeartbeat():
            return len(request.topic_names or ())
        case JoinRequest():
            return sum(named_topics(protocol.metadata) for protocol in request.protocols[:1])
        case _:
            return 0


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH
