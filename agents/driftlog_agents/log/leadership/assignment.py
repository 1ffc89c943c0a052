"""The leadership state of each partition at one session: placement, claim, lead, release.

                       a leader that lives, or the view is older than our release: wait
    placed here            ┌──┐
    ─────────────▶ UNCLAIMED ─┴──free──▶ CLAIMING ──stored, read──▶ LEADING ──pause──▶ PAUSED
                    ▲      ▲                │                        ▲   │                │ │
                    │      │ due, or its    │ refused, unreadable,   └───┼──not flushed───┘ │
                    │      │ key changed    │ or damaged                 │ flushed          │
                    │      └── PUT_OFF ◀────┘                            ▼                  │
                    └───────── RELEASED ◀──release answered──────── RETIRING ◀──flushed─────┘
                    the view shows it; placed
                    elsewhere: UNASSIGNED

A new plan that places a partition elsewhere makes UNCLAIMED and PUT_OFF UNASSIGNED; a LEADING
partition is moved (`handover_policy`).  An unreadable partition whose claim the session *retains*,
because buffered batches of it are on this disk, stays PUT_OFF here wherever it is placed.  The
deletion of a topic removes its partitions from every state.  `hold` prevents claims of a partition,
in any state, while an operator's command works on it under a claim of its own.  When the session
ends, no claim is due after `close`, and every led partition is retired.

1. A LEADING, PAUSED or RETIRING partition has a log with a stored claim of this session; a
   partition in any other state has no log.
2. One attempt at a time claims a partition, and none while the partition is led or held.  So if an
   attempt reads a leader key that names this session, that key is a retained claim, which the next
   claim replaces, or a claim without an answer, which the attempt releases first (`claims`).
3. A partition is retired once.  Its release is sent when no batch of it is in flight, and is
   repeated until it is answered; then only a new claim leads the partition again.
4. After its release a partition is claimed only when the view is no older than the release.
5. Each partition of an attempt ends in LEADING, PUT_OFF or UNASSIGNED.

`partition_claims` and `handover` perform the effects: an attempt for what `claims_due` returns, a
transaction for what `releases` returns.

Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from driftlog_agents.cluster.placement import Plan
from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.log.leadership.handover_policy import is_flushed
from driftlog_agents.log.objects.availability import Availability
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.transactions.session_transactions import Release

_LONGEST_KEY_MS: Final = 5_000.0
"""Longest time between two claim attempts for a partition that lacks a key.  Longer: it is led
later when the key is back; shorter: more reads of a key that is gone for good."""


class LeadershipState(Enum):
    """The state of one partition; see the module."""

    UNASSIGNED = "unassigned"
    UNCLAIMED = "unclaimed"
    CLAIMING = "claiming"
    PUT_OFF = "put off"
    LEADING = "leading"
    PAUSED = "paused"
    RETIRING = "retiring"
    RELEASED = "released"


LED: Final = frozenset((LeadershipState.LEADING, LeadershipState.PAUSED, LeadershipState.RETIRING))
"""The states in which a partition has a log."""


class Obstacle(Enum):
    """Why the last attempt did not lead the partition."""

    REFUSED = "refused"
    """Another session leads the partition, or its topic is gone."""
    UNREADABLE = "unreadable"
    """The bucket does not return an object that the partition needs: its claim was released, or is
    retained."""
    DAMAGED = "damaged"
    """One of the partition's keys is missing or unreadable: the partition was not claimed."""


@dataclass(slots=True)
class _Partition:
    state: LeadershipState = LeadershipState.UNASSIGNED
    log: PartitionLog | None = None
    obstacle: Obstacle | None = None
    """The obstacle of the last attempt; it stays while the next attempt runs."""
    why: str = ""
    """The explanation for the operator."""
    due_ms: float = 0.0
    """PUT_OFF: the time of the next claim attempt."""
    key_revision: int = 0
    """Revision of the leader key in the view when the last attempt began; 0: no key."""
    released_revision: int = 0
    """RELEASED: a view with a smaller revision of the leader key is older than the release."""
    is_held: bool = False
    retained: Release | None = None
    """The release of the claim that is retained although the partition is not led."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How an attempt ended for each of its partitions; a partition in no field was refused."""

    logs: Mapping[TopicPartition, PartitionLog]
    """Partitions that are claimed, read and served."""
    unreadable: Mapping[TopicPartition, str]
    damaged: Mapping[TopicPartition, str]
    retained: Mapping[TopicPartition, Release] = field(default_factory=dict)
    """Those of the unreadable ones whose claims are retained, and their releases."""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """The outcomes of an attempt that are logged."""

    unreadable: Mapping[str, int]
    """Number of partitions by reason; each partition at most once a minute."""
    readable_again: int


class PartitionAssignments:
    """See the module.

    Args:
        deleted: topics whose deletion has begun or is finished.
        jitter: a random number in [0, 1).
        retry_ms: time between two attempts to claim a refused partition.
    """

    def __init__(
        self,
        *,
        node_id: int,
        session_id: str,
        deleted: DeletedTopics,
        jitter: Callable[[], float],
        retry_ms: float,
    ) -> None:
        self._node_id = node_id
        self._session_id = session_id
        self._deleted = deleted
        self._retry_ms = retry_ms
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._not_led: dict[TopicPartition, _Partition] = {}
        """The partitions without a log: usually few of very many."""
        self._misplaced: dict[TopicPartition, _Partition] = {}
        """The partitions with a log that are placed elsewhere."""
        self._unreadable = Availability[TopicPartition](jitter)
        self._damaged = Availability[TopicPartition](jitter, longest_ms=_LONGEST_KEY_MS)
        """When partitions with these obstacles are tried again."""
        self._is_closed = False
        self._is_planned = False
        """Before the first plan no partition is known to be placed elsewhere."""
        self.plan: Mapping[TopicPartition, int] = {}
        """Node id by partition."""
        self.planned_ms = 0.0
        """Since when the plan uses the present set of agents."""
        self.version = 0
        """Counts plans and attempts: each may add partitions to hand over."""

    # ── Queries ──

    def state(self, tp: TopicPartition) -> LeadershipState:
        """The state of *tp*."""
        partition = self._partitions.get(tp)
        return LeadershipState.UNASSIGNED if partition is None else partition.state

    def is_placed_here(self, tp: TopicPartition) -> bool:
        """Whether the plan places *tp* on this session."""
        return self.plan.get(tp) == self._node_id

    def is_tried_here(self, tp: TopicPartition) -> bool:
        """Whether this session is to lead *tp*: it is placed here, or its claim is retained."""
        return self.is_placed_here(tp) or self.retains_claim(tp)

    def retains_claim(self, tp: TopicPartition) -> bool:
        """Whether this session has a claim of *tp* without leading it."""
        partition = self._partitions.get(tp)
        return partition is not None and partition.retained is not None

    def retained_claims(self) -> set[TopicPartition]:
        """The partitions with `retains_claim`."""
        return {tp for tp, partition in self._not_led.items() if partition.retained is not None}

    def is_leading(self, log: PartitionLog) -> bool:
        """Whether *log* is served and admits batches at once."""
        return self._of(log).state is LeadershipState.LEADING

    def is_led(self, log: PartitionLog) -> bool:
        """Whether *log* has not been released."""
        return self._of(log).log is log

    def none_is_stopping(self, logs: Collection[PartitionLog]) -> Callable[[], bool]:
        """A predicate: none of *logs* is PAUSED or RETIRING."""
        stopping = (LeadershipState.PAUSED, LeadershipState.RETIRING)
        return lambda: all(self._of(log).state not in stopping for log in logs)

    def is_replanned(self) -> Callable[[], bool]:
        """A predicate: the plan is no longer the present one."""
        plan = self.plan
        return lambda: self.plan is not plan

    def is_newer_than(self, version: int) -> Callable[[], bool]:
        """A predicate: `version` is no longer *version*."""
        return lambda: self.version != version

    @property
    def not_led(self) -> int:
        """Number of partitions that are placed here and not led."""
        return sum(self.is_placed_here(tp) for tp in self._not_led)

    @property
    def unreadable(self) -> dict[TopicPartition, str]:
        """Partitions that need an object that the bucket does not return, and why."""
        return self._with(Obstacle.UNREADABLE)

    @property
    def damaged(self) -> dict[TopicPartition, str]:
        """Partitions of which a key is missing or unreadable, and why."""
        return self._with(Obstacle.DAMAGED)

    def _with(self, obstacle: Obstacle) -> dict[TopicPartition, str]:
        found = self._not_led.items()
        return {tp: partition.why for tp, partition in found if partition.obstacle is obstacle}

    def to_move(self) -> Iterator[tuple[PartitionLog, int]]:
        """The partitions that are led here and placed elsewhere, with the node id of that agent."""
        for tp, partition in self._misplaced.items():
            if partition.state is LeadershipState.LEADING:
                assert partition.log is not None
                yield partition.log, self.plan[tp]

    def led(self) -> list[PartitionLog]:
        """The partitions that are led here."""
        return [found.log for found in self._partitions.values() if found.log is not None]

    def shows_release(self, view: ClusterView, tp: TopicPartition) -> bool:
        """Whether *view* is no older than this session's release of *tp*."""
        partition = self._partitions.get(tp)
        if partition is None or partition.state is not LeadershipState.RELEASED:
            return True
        return view.leader_revision(tp) >= partition.released_revision

    # ── Placement ──

    def placed(self, plan: Plan, since_ms: float) -> None:
        """Adopts *plan*, which replaces `plan`; its set of agents is in use since *since_ms*."""
        self.plan, self.planned_ms, self._is_planned = plan.nodes, since_ms, True
        for tp in plan.changed:
            if self.is_placed_here(tp) and self._entry(tp).state is LeadershipState.UNASSIGNED:
                self._unclaim(tp)
            self._note_place(tp)
        for tp, partition in list(self._not_led.items()):
            # No view will show the release of a partition whose topic is gone.
            if partition.state is not LeadershipState.CLAIMING and (
                partition.state is not LeadershipState.RELEASED or tp not in self.plan
            ):
                self._unassign_unless_placed(tp)
        self.version += 1

    def topic_deleted(self, tps: Iterable[TopicPartition]) -> None:
        """Removes *tps*, whose topic is deleted and whose logs are closed."""
        for tp in tps:
            partition = self._partitions.pop(tp, None)
            self._not_led.pop(tp, None)
            self._misplaced.pop(tp, None)
            self._forget_obstacle(tp)
            if partition is not None and partition.is_held:
                self._entry(tp).is_held = True

    def close(self) -> None:
        """Ends all claiming: the session ends."""
        self._is_closed = True

    # ── Claims ──

    def claims_due(self, view: ClusterView, now_ms: float) -> list[TopicPartition]:
        """The partitions to claim now; each of them becomes CLAIMING."""
        if self._is_closed:
            return []
        due: list[TopicPartition] = []
        for tp, partition in list(self._not_led.items()):
            if partition.state is LeadershipState.RELEASED and self.shows_release(view, tp):
                self._unassign_unless_placed(tp)
            if partition.is_held or not self._is_due(partition, view.leader_revision(tp), now_ms):
                continue
            if self._is_free(view, tp):
                due.append(tp)
            elif partition.state is not LeadershipState.UNCLAIMED:
                self._unclaim(tp)
        self._begin(due, view)
        return due

    def claims_own(self, tps: Collection[TopicPartition], view: ClusterView) -> None:
        """Begins an attempt for partitions of this disk's dead sessions, wherever placed."""
        for tp in tps:
            self._entry(tp)
        self._begin(tps, view)

    def _begin(self, tps: Iterable[TopicPartition], view: ClusterView) -> None:
        for tp in tps:
            partition = self._not_led[tp]
            assert partition.log is None
            assert not partition.is_held
            assert partition.state is not LeadershipState.CLAIMING
            partition.state = LeadershipState.CLAIMING
            partition.key_revision = view.leader_revision(tp)

    @staticmethod
    def _is_due(partition: _Partition, key_revision: int, now_ms: float) -> bool:
        if partition.state is LeadershipState.PUT_OFF:
            # The released claim of an unreadable partition has itself changed the leader key.
            is_new = key_revision != partition.key_revision
            return now_ms >= partition.due_ms or (
                is_new and partition.obstacle is not Obstacle.UNREADABLE
            )
        return partition.state is LeadershipState.UNCLAIMED

    def _is_free(self, view: ClusterView, tp: TopicPartition) -> bool:
        if tp.topic_id in self._deleted or tp.topic_id not in view.topics:
            return False
        entry = view.leaders.get(tp)
        leader = None if entry is None else entry.leader.session_id
        return leader is None or leader not in view.sessions or leader == self._session_id

    def attempt_ended(
        self, tps: Iterable[TopicPartition], result: AttemptResult, now_ms: float
    ) -> AttemptReport:
        """Ends the attempt for *tps* with *result*; each of its requests has an answer."""
        readable_again = 0
        unreadable: list[TopicPartition] = []
        damaged: list[TopicPartition] = []
        for tp in tps:
            partition = self._partitions.get(tp)
            if partition is None or partition.state is not LeadershipState.CLAIMING:
                continue  # its topic was deleted meanwhile
            if tp in result.logs or tp in result.unreadable:
                partition.retained = result.retained.get(tp)
            if (log := result.logs.get(tp)) is not None:
                readable_again += self._forget_obstacle(tp)
                self._lead(tp, log)
            elif tp in result.unreadable:
                unreadable.append(tp)
            elif tp in result.damaged:
                damaged.append(tp)
            else:
                self._put_off(tp, Obstacle.REFUSED, "", now_ms + self._retry_ms)
        said = self._unreadable.failed_all(unreadable, now_ms) if unreadable else []
        for tp in unreadable:
            due_ms = self._unreadable.due_ms(tp)
            self._put_off(tp, Obstacle.UNREADABLE, result.unreadable[tp], due_ms)
        if damaged:
            self._damaged.failed_all(damaged, now_ms)
        for tp in damaged:
            due_ms = self._damaged.due_ms(tp)
            self._put_off(tp, Obstacle.DAMAGED, result.damaged[tp], due_ms)
        self.version += 1
        reasons = [result.unreadable[tp] for tp in unreadable]
        told = sorted({result.unreadable[tp] for tp in said})
        return AttemptReport({why: reasons.count(why) for why in told}, readable_again)

    def _lead(self, tp: TopicPartition, log: PartitionLog) -> None:
        assert _tp(log) == tp
        assert log.leader_revision > 0, "led without a stored claim"
        partition = self._not_led.pop(tp)
        assert partition.state is LeadershipState.CLAIMING
        partition.state = LeadershipState.LEADING
        partition.log = log
        self._note_place(tp)

    def _put_off(self, tp: TopicPartition, obstacle: Obstacle, why: str, due_ms: float) -> None:
        partition = self._not_led[tp]
        assert partition.state is LeadershipState.CLAIMING
        if obstacle is not Obstacle.UNREADABLE:
            self._unreadable.found(tp)
        if obstacle is not Obstacle.DAMAGED:
            self._damaged.found(tp)
        partition.state = LeadershipState.PUT_OFF
        partition.obstacle, partition.why, partition.due_ms = obstacle, why, due_ms
        if self._is_planned:
            self._unassign_unless_placed(tp)

    @property
    def deadline_ms(self) -> float | None:
        """When to call `claims_due` next; None: when the view has changed."""
        due = [
            partition.due_ms
            for partition in self._not_led.values()
            if partition.state is LeadershipState.PUT_OFF and not partition.is_held
        ]
        return min(due, default=None) if not self._is_closed else None

    # ── Holds for an operator's command ──

    def hold(self, tp: TopicPartition) -> bool:
        """Prevents claims of *tp* until `let`; False: it is being claimed, or is held already."""
        partition = self._entry(tp)
        if partition.is_held or partition.state is LeadershipState.CLAIMING:
            return False
        partition.is_held = True
        return True

    def let(self, tp: TopicPartition) -> None:
        """Allows claims of *tp* again, at once."""
        partition = self._entry(tp)
        assert partition.is_held
        partition.is_held = False
        if partition.state in (LeadershipState.PUT_OFF, LeadershipState.UNASSIGNED):
            self._unclaim(tp)
            self._unassign_unless_placed(tp)

    def give_back(self, tp: TopicPartition) -> Release | None:
        """The release of the retained claim of *tp*, which is held; None: no claim is retained."""
        partition = self._entry(tp)
        assert partition.is_held
        retained, partition.retained = partition.retained, None
        return retained

    # ── Release ──

    def pause(self, log: PartitionLog) -> bool:
        """Makes *log* PAUSED: its batches wait for its last flush; False: it is not LEADING."""
        return self._change(log, LeadershipState.PAUSED, LeadershipState.LEADING)

    def resume(self, log: PartitionLog) -> bool:
        """Makes *log* LEADING again: its last flush takes too long; False: it is not PAUSED."""
        return self._change(log, LeadershipState.LEADING, LeadershipState.PAUSED)

    def retire(self, log: PartitionLog) -> bool:
        """Makes *log* RETIRING: it admits no batch; False: it was retired before, or is not led."""
        before = (LeadershipState.LEADING, LeadershipState.PAUSED)
        return self._change(log, LeadershipState.RETIRING, *before)

    def _change(self, log: PartitionLog, to: LeadershipState, *before: LeadershipState) -> bool:
        partition = self._of(log)
        if partition.state not in before:
            return False
        partition.state = to
        return True

    def releases(self, logs: Iterable[PartitionLog], *, lost: bool = False) -> list[Release]:
        """The releases of retired *logs*; *lost*: no flush in flight will be committed."""
        found: list[Release] = []
        for log in logs:
            assert self._of(log).state is LeadershipState.RETIRING, f"{log!r} is not retired"
            assert lost or is_flushed(log), f"{log!r} is not flushed"
            found.append(Release(_tp(log), log.leader_epoch, log.leader_revision))
        return found

    def released(self, log: PartitionLog) -> bool:
        """Makes *log* RELEASED: its release is answered; False: its topic was deleted meanwhile."""
        partition = self._of(log)
        if partition.log is not log:
            return False
        assert partition.state is LeadershipState.RETIRING
        partition.log = None
        partition.state = LeadershipState.RELEASED
        partition.released_revision = log.leader_revision + 1
        self._not_led[_tp(log)] = partition
        self._misplaced.pop(_tp(log), None)
        return True

    # ── Entries ──

    def _entry(self, tp: TopicPartition) -> _Partition:
        partition = self._partitions.get(tp)
        if partition is None:
            partition = self._partitions[tp] = self._not_led[tp] = _Partition()
        return partition

    def _note_place(self, tp: TopicPartition) -> None:
        """The place of *tp* in the plan, or what leads it, has changed."""
        partition = self._partitions.get(tp)
        is_elsewhere = self.plan.get(tp, self._node_id) != self._node_id
        if partition is not None and partition.log is not None and is_elsewhere:
            self._misplaced[tp] = partition
        else:
            self._misplaced.pop(tp, None)

    def _of(self, log: PartitionLog) -> _Partition:
        """The partition if *log* is its log; otherwise an empty UNASSIGNED one."""
        partition = self._partitions.get(_tp(log))
        return partition if partition is not None and partition.log is log else _Partition()

    def _forget_obstacle(self, tp: TopicPartition) -> bool:
        """Clears the obstacle of *tp*; True: an object of it was unreadable."""
        partition = self._partitions.get(tp)
        if partition is not None:
            partition.obstacle, partition.why = None, ""
        self._damaged.found(tp)
        return self._unreadable.found(tp)

    def _unclaim(self, tp: TopicPartition) -> None:
        self._forget_obstacle(tp)
        self._not_led[tp].state = LeadershipState.UNCLAIMED

    def _unassign_unless_placed(self, tp: TopicPartition) -> None:
        """Makes *tp* UNASSIGNED if it is not to be led here; else RELEASED becomes UNCLAIMED."""
        partition = self._not_led[tp]
        if self.is_tried_here(tp):
            if partition.state is LeadershipState.RELEASED:
                self._unclaim(tp)
            return
        self._forget_obstacle(tp)
        partition.state = LeadershipState.UNASSIGNED
        if not partition.is_held:
            del self._partitions[tp], self._not_led[tp]

    def check(self) -> None:
        """Asserts the invariants that hold between any two events."""
        for tp, partition in self._partitions.items():
            log = partition.log
            assert (log is not None) == (partition.state in LED)
            assert (log is None) == (tp in self._not_led)
            assert log is None or (_tp(log) == tp and log.leader_revision > 0)
            assert not (partition.is_held and partition.state is LeadershipState.CLAIMING)
            assert partition.state is not LeadershipState.UNASSIGNED or partition.is_held
            assert (partition.obstacle is not None) <= (
                partition.state in (LeadershipState.PUT_OFF, LeadershipState.CLAIMING)
            )
            assert partition.state is not LeadershipState.PUT_OFF or partition.obstacle is not None
            assert partition.retained is None or partition.state not in LED
            assert (tp in self._unreadable) == (partition.obstacle is Obstacle.UNREADABLE)
            assert (tp in self._damaged) == (partition.obstacle is Obstacle.DAMAGED)
            is_misplaced = log is not None and self.plan.get(tp, self._node_id) != self._node_id
            assert is_misplaced == (tp in self._misplaced)
        assert self._not_led.keys() <= self._partitions.keys()
        assert self._misplaced.keys() <= self._partitions.keys()


def _tp(log: PartitionLog) -> TopicPartition:
    return TopicPartition(log.topic_id, log.partition)
