"""Bugs of clusters to be planted, one at a time: each is a clause of design.md left out.

What one agent can do wrong is in `planted`.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from driftlog_agents.cluster.placement import Plan, plan_after
from driftlog_agents.groups.consumer import membership as consumer_membership
from driftlog_agents.groups.consumer.events import ConsumerEffect
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.reconciliation import reconciled
from driftlog_agents.groups.consumer.state import ConsumerGroupMember
from driftlog_agents.groups.coordinator import write_batcher as writes
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.health.write_health import HealthStep, WriteHealth
from driftlog_agents.health.write_health_monitor import WriteHealthMonitor
from driftlog_agents.log import leave
from driftlog_agents.log.consolidation import managed_records
from driftlog_agents.log.consolidation.managed_records import ManagedFlushRecords
from driftlog_agents.log.leadership import claim_transactions
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.claim_transactions import ClaimTransactions
from driftlog_agents.log.leadership.handover import Handover
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.led_partitions import LedPartitions
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.lease import SessionLease
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import SESSIONS_PREFIX
from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Compare, CreateRevisionIs, ModRevisionIs
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import Claim, Release, StateWrite, Txn

Plant = Callable[[pytest.MonkeyPatch], None]


def _tp(log: PartitionLog) -> TopicPartition:
    return TopicPartition(log.topic_id, log.partition)


def _without(build: Callable[..., Txn], dropped: Callable[[Compare], bool]) -> Callable[..., Txn]:
    def built(*args: Any, **more: Any) -> Txn:
        txn = build(*args, **more)
        return replace(txn, compares=tuple(c for c in txn.compares if not dropped(c)))

    return built


async def _release_all(self: Handover, logs: Iterable[PartitionLog]) -> None:
    """As `Handover.release`, whatever is on its way."""
    logs = list(logs)
    await claim_transactions.release(self._session, self._assignments.releases(logs, lost=True))
    for log in logs:
        if self._assignments.released(log):
            self._partitions.gone(log)
    self._cluster.wake()


def released_with_flushes_on_their_way(patch: pytest.MonkeyPatch) -> None:
    """A hand-over does not wait for the flushes that hold the partition."""

    async def stop(self: Handover, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        self.retire_all(logs)
        await _release_all(self, logs)
        return list(logs)

    async def flush(_: Handover, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        return list(logs)

    patch.setattr(Handover, "_stop", stop)
    patch.setattr(Handover, "_flush", flush)


def left_with_flushes_on_their_way(patch: pytest.MonkeyPatch) -> None:
    """Who leaves does not flush first."""

    async def drained(*_: object) -> bool:
        return True

    patch.setattr(leave, "drained", drained)
    patch.setattr(Handover, "release", _release_all)


def admission_goes_on_while_it_is_released(patch: pytest.MonkeyPatch) -> None:
    """A hand-over flushes and releases, and admits until it is answered."""
    original = Handover._retire

    async def retire(self: Handover, logs: Iterable[PartitionLog]) -> None:
        with pytest.MonkeyPatch.context() as admitting:
            admitting.setattr(LedPartitions, "retire", LedPartitions.resume)
            await original(self, logs)

    patch.setattr(Handover, "_retire", retire)
    patch.setattr(Handover, "release", _release_all)


def claimed_beside_a_live_session(patch: pytest.MonkeyPatch) -> None:
    """Whether a leader's session is gone is asked of the view alone, and not compared."""

    async def live(self: ClaimTransactions) -> set[str]:
        return {self._session.session_id}

    patch.setattr(ClaimTransactions, "live", live)
    gone = _without(
        transactions.claim,
        lambda c: (
            isinstance(c, CreateRevisionIs) and c.key.startswith(SESSIONS_PREFIX) and not c.revision
        ),
    )
    patch.setattr(transactions, "claim", gone)


def claimed_without_comparing_the_keys(patch: pytest.MonkeyPatch) -> None:
    """A claim does not compare the revisions that it read."""
    blind = _without(transactions.claim, lambda c: isinstance(c, ModRevisionIs))
    patch.setattr(transactions, "claim", blind)


def records_of_the_warm_up(patch: pytest.MonkeyPatch) -> None:
    """A takeover goes by the flush records that were there when it read ahead."""
    footers_of = Takeover._footers_of
    before: WeakKeyDictionary[Takeover, dict[str, Any]] = WeakKeyDictionary()

    async def warm_up(self: Takeover, session_ids: Iterable[str]) -> None:
        for one in session_ids:
            kvs = before.setdefault(self, {})[one] = await self._records.records(one)
            await footers_of(self, one, kvs)

    async def known(self: Takeover, session_ids: Iterable[str]) -> Any:
        there = before.get(self, {})
        return {s: there[s] if s in there else await self._records.records(s) for s in session_ids}

    patch.setattr(Takeover, "warm_up", warm_up)
    patch.setattr(Takeover, "_list", known)


def commits_without_a_session(patch: pytest.MonkeyPatch) -> None:
    """A commit does not compare the session's key."""
    unfenced = _without(transactions.commit, lambda c: c.key.startswith(SESSIONS_PREFIX))
    patch.setattr(transactions, "commit", unfenced)


def lease_counted_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A session is valid until a time to live after a keep-alive was answered, not sent."""
    original = Session._renew

    async def renew(self: Session, store: Any) -> None:
        await original(self, store)
        self._lease.renewed(self._now_ms())

    patch.setattr(Session, "_renew", renew)


def serves_until_somebody_says_so(patch: pytest.MonkeyPatch) -> None:
    """A session does not look at its own clock."""
    for_ever = property(lambda self: 0.0 if self.is_over else math.inf)
    patch.setattr(SessionLease, "valid_until_ms", for_ever)


def released_without_an_answer_and_gone_on(patch: pytest.MonkeyPatch) -> None:
    """A release that is not answered is taken for none: the partition is served on."""
    kept: set[PartitionLog] = set()
    to_move = PartitionAssignments.to_move

    async def release(self: Handover, logs: Iterable[PartitionLog]) -> None:
        for log in list(logs):
            txn = transactions.release([Release(_tp(log), log.leader_epoch, log.leader_revision)])
            try:
                async with asyncio.timeout(1):
                    await self._session._txn(txn)
            except (UnavailableError, OutcomeUnknownError, TimeoutError):
                log.state = State.ONLINE
                kept.add(log)
                continue
            if self._assignments.released(log):
                self._partitions.gone(log)
        self._cluster.wake()

    def others(self: PartitionAssignments) -> Iterator[tuple[PartitionLog, int]]:
        return ((log, node) for log, node in to_move(self) if log not in kept)

    patch.setattr(Handover, "release", release)
    patch.setattr(PartitionAssignments, "to_move", others)


def late_releases_count(patch: pytest.MonkeyPatch) -> None:
    """A release does not compare the leader key's revision: its late copy takes from the next."""
    blind = _without(transactions.release, lambda c: isinstance(c, ModRevisionIs))
    patch.setattr(transactions, "release", blind)


def served_on_after_a_hand_over(patch: pytest.MonkeyPatch) -> None:
    """Who has released a partition serves it until its view of the leaders says so."""
    retire, gone = LedPartitions.retire, LedPartitions.gone

    def gone_later(self: LedPartitions, log: PartitionLog) -> None:
        leader, _ = self._view.leader_of(_tp(log))
        if leader is None or leader.session_id != self._assignments._session_id:
            gone(self, log)
            return
        log.state = State.ONLINE

    patch.setattr(LedPartitions, "retire", retire)
    patch.setattr(LedPartitions, "gone", gone_later)


def epoch_kept_after_a_release(patch: pytest.MonkeyPatch) -> None:
    """Who claims what was released goes on in the old leader's epoch."""

    def epoch(self: Claim) -> int:
        if self.leader is None:
            return 0
        return self.leader.leader_epoch + (self.leader.session_id is not None)

    patch.setattr(Claim, "epoch", property(epoch))


def those_before_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A claim puts its session in the place of all that led since the sealed end."""

    def state_under(self: Claim, session_id: str) -> PartitionState:
        return replace(self.state, sessions=(session_id,))

    patch.setattr(Claim, "state_under", state_under)


def sealed_ends_of_old_leaders(patch: pytest.MonkeyPatch) -> None:
    """A partition's key is written without comparing anything."""

    def write_states(writes: Sequence[StateWrite]) -> Txn:
        return replace(original(writes), compares=())

    original = transactions.write_states
    patch.setattr(transactions, "write_states", write_states)


def moved_without_producers(patch: pytest.MonkeyPatch) -> None:
    """What was handed over in order is taken without what its producers wrote."""
    original = Takeover._restore

    async def restore(self: Takeover, log: PartitionLog, found: Any, now_ms: float) -> None:
        await original(self, log, found, now_ms)
        if log.epochs and log.epochs[-1][0] == log.leader_epoch - 1:
            log.producers = type(log.producers)()

    patch.setattr(Takeover, "_restore", restore)


def two_plans(patch: pytest.MonkeyPatch) -> None:
    """Each agent places partitions on itself first: what one hands over comes back."""
    original = PartitionAssignments.placed

    def placed(self: PartitionAssignments, plan: Plan, at: float) -> None:
        original(self, plan_after(self.plan, dict.fromkeys(plan.nodes, self._node_id)), at)

    patch.setattr(PartitionAssignments, "placed", placed)


def offsets_from_memory(patch: pytest.MonkeyPatch) -> None:
    """Committed offsets are told without asking whether another agent coordinates the group."""

    async def confirm(self: GroupCoordinator, group: ServedGroup) -> None:
        """Say nothing."""

    patch.setattr(GroupCoordinator, "confirm", confirm)


def groups_written_by_two(patch: pytest.MonkeyPatch) -> None:
    """A coordinator's writes compare its session only: one that was replaced goes on."""
    patch.setattr(writes, "_txn", _without(writes._txn, lambda c: isinstance(c, ModRevisionIs)))


def late_copies_of_commits_count(patch: pytest.MonkeyPatch) -> None:
    """A commit compares the group's key, not the offsets that it replaces."""
    patch.setattr(
        writes,
        "_txn",
        _without(writes._txn, lambda c: isinstance(c, ModRevisionIs) and "/offsets/" in c.key),
    )


def given_before_it_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """A member of KIP-848 gets what it is to have, whoever holds that."""

    def at_once(member: ConsumerGroupMember, **more: Any) -> ConsumerGroupMember:
        return reconciled(member, **{**more, "is_free": lambda _: True})

    patch.setattr(consumer_membership, "reconciled", at_once)


def told_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A group of KIP-848 answers while what it has decided is on its way."""
    run = ConsumerGroup._run

    def told(self: ConsumerGroup, queue: Any, now_ms: int) -> list[ConsumerEffect]:
        effects = run(self, queue, now_ms)
        if self._persisting:
            effects = [*(answer for answer, _ in self._held), *effects]
            self._held = []
        return effects

    patch.setattr(ConsumerGroup, "_run", told)


def sessions_read_while_they_change(patch: pytest.MonkeyPatch) -> None:
    """A rewrite's thread goes through the managed sessions while the event loop forgets one."""

    def sealed_end(self: ManagedFlushRecords, tp: TopicPartition) -> int:
        if tp.topic_id in self._gone:
            return managed_records.GONE
        return max(kept.index.sealed_end(tp) for kept in self._sessions.values())

    patch.setattr(ManagedFlushRecords, "sealed_end", sealed_end)


def never_steps_down(patch: pytest.MonkeyPatch) -> None:
    """Who cannot commit keeps its partitions."""
    patch.setattr(WriteHealth, "tick", lambda *_: HealthStep.NOTHING)


def nobody_says_that_it_could(patch: pytest.MonkeyPatch) -> None:
    """Only commits show that others can, and nobody writes to them."""
    patch.setattr(WriteHealthMonitor, "_is_asked", lambda _: False)


def others_are_better_always(patch: pytest.MonkeyPatch) -> None:
    """Who cannot commit steps down, whether others can or not."""
    looked = WriteHealth.looked

    def at_once(self: WriteHealth, done: Mapping[str, int] | None, now_ms: float) -> None:
        looked(self, done, now_ms)
        self._moved_ms = now_ms

    patch.setattr(WriteHealth, "looked", at_once)


def commits_prove_reads(patch: pytest.MonkeyPatch) -> None:
    """Who cannot read steps down because others write."""
    done = WriteHealthMonitor._done

    async def any_done(self: WriteHealthMonitor, **_: bool) -> dict[str, int] | None:
        return await done(self, commits=True)

    patch.setattr(WriteHealthMonitor, "_done", any_done)


def fit_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who has stepped down begins its next session without a probe."""

    async def until_fit(self: WriteHealthMonitor, _: asyncio.Event) -> None:
        if self.unfit:
            self._fitness.probed(self._now_ms(), succeeded=True)

    patch.setattr(WriteHealthMonitor, "until_fit", until_fit)


CLUSTER_BUGS: tuple[Plant, ...] = (
    released_with_flushes_on_their_way,
    left_with_flushes_on_their_way,
    admission_goes_on_while_it_is_released,
    claimed_beside_a_live_session,
    claimed_without_comparing_the_keys,
    records_of_the_warm_up,
    commits_without_a_session,
    lease_counted_from_the_answer,
    serves_until_somebody_says_so,
    released_without_an_answer_and_gone_on,
    late_releases_count,
    served_on_after_a_hand_over,
    epoch_kept_after_a_release,
    those_before_forgotten,
    sealed_ends_of_old_leaders,
    moved_without_producers,
    two_plans,
    sessions_read_while_they_change,
    never_steps_down,
    nobody_says_that_it_could,
    others_are_better_always,
    commits_prove_reads,
    fit_again_at_once,
)

GROUP_BUGS: tuple[Plant, ...] = (
    offsets_from_memory,
    groups_written_by_two,
    late_copies_of_commits_count,
    given_before_it_is_given_up,
    told_before_it_is_stored,
)
"""And the seeds that have what they need: a cluster with groups, or with one of KIP-848."""
