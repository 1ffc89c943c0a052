"""The assignment machine: each state's events as tables, and its invariants under any schedule.

If it failed: a partition would be served without a claim, released with flushes on their way, or
never claimed again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.cluster.placement import Plan, plan_after
from driftlog_agents.cluster.view import ClusterView, LeaderEntry, SessionEntry, TopicEntry
from driftlog_agents.log.leadership.assignment import (
    AttemptReport,
    AttemptResult,
    LeadershipState,
    PartitionAssignments,
)
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.keys import LEADERS_PREFIX, leader_key
from driftlog_metadata.schema.model import Leader, LiveSession, Topic, TopicPartition
from driftlog_metadata.stores.store import KeyValue, PutEvent
from driftlog_metadata.transactions.session_transactions import Release

TOPIC: Final = UUID(int=1)
TP: Final = TopicPartition(TOPIC, 0)
ME, OTHER = 1, 2
MINE, THEIRS, DEAD = "mine", "theirs", "dead"
RETRY_MS: Final = 300.0


def log_of(tp: TopicPartition, *, epoch: int = 0, revision: int = 10) -> PartitionLog:
    """As a takeover opens it."""
    log = PartitionLog(topic="t", topic_id=tp.topic_id, partition=tp.partition, leader_epoch=epoch)
    log.leader_revision = revision
    return log


class Case:
    """One partition, at a session that serves beside another one."""

    def __init__(self) -> None:
        self.deleted = DeletedTopics()
        self.view = ClusterView()
        topic = Topic(name="t", topic_id=TOPIC, partitions=1)
        self.view.topics[TOPIC] = TopicEntry(topic, 1, 1)
        for node, session in ((ME, MINE), (OTHER, THEIRS)):
            said = LiveSession(node_id=node)
            self.view.sessions[session] = SessionEntry(session, said, 1)
        self.machine = PartitionAssignments(
            node_id=ME,
            session_id=MINE,
            deleted=self.deleted,
            jitter=lambda: 1.0,
            retry_ms=RETRY_MS,
        )
        self.log = log_of(TP)

    def placed(self, node: int = ME) -> None:
        """The partition is placed on *node*."""
        self.machine.placed(plan_after(self.machine.plan, {TP: node}), 0.0)

    def shows(self, session: str | None, revision: int) -> None:
        """The view shows this leader key."""
        self.view.leaders[TP] = LeaderEntry(Leader(session, 0), revision)

    def due(self, now_ms: float = 0.0) -> bool:
        """Whether an attempt begins for it."""
        return self.machine.claims_due(self.view, now_ms) == [TP]

    def ended(self, how: str, now_ms: float = 0.0) -> AttemptReport:
        """The attempt has ended so."""
        result = AttemptResult(
            logs={TP: self.log} if how == "led" else {},
            unreadable={TP: "object o"} if how == "unreadable" else {},
            damaged={TP: "key k"} if how == "damaged" else {},
        )
        return self.machine.attempt_ended([TP], result, now_ms)

    def led(self) -> None:
        """It is placed here, claimed and led."""
        self.placed()
        assert self.due()
        self.ended("led")

    @property
    def state(self) -> LeadershipState:
        """Of the partition."""
        self.machine.check()
        return self.machine.state(TP)


# ── Plans ──


class CountedPlan(Mapping[TopicPartition, int]):
    """Node id by partition, and how often one was looked up; nothing may go through all."""

    def __init__(self, nodes: dict[TopicPartition, int]) -> None:
        self._nodes = nodes
        self.lookups = 0

    def __getitem__(self, tp: TopicPartition) -> int:
        self.lookups += 1
        return self._nodes[tp]

    def __iter__(self) -> Iterator[TopicPartition]:
        raise AssertionError("goes through all partitions")

    def __len__(self) -> int:
        raise AssertionError("goes through all partitions")


def test_a_new_topic_takes_work_for_its_own_partitions_only() -> None:
    """
    Else each topic that is created beside 40,000 partitions stops the event loop.
    """
    case = Case()
    many = [TopicPartition(TOPIC, number) for number in range(1_000)]
    here = dict.fromkeys(many, ME)
    case.machine.placed(plan_after({}, here), 0.0)
    case.machine.claims_due(case.view, 0.0)
    logs = {tp: log_of(tp) for tp in many}
    case.machine.attempt_ended(many, AttemptResult(logs=logs, unreadable={}, damaged={}), 0.0)
    new = [TopicPartition(UUID(int=2), number) for number in range(3)]
    plan = CountedPlan(here | {new[0]: ME, new[1]: OTHER, new[2]: ME})

    case.machine.placed(Plan(plan, new), 0.0)
    moved = list(case.machine.to_move())

    assert [LeadershipState.UNCLAIMED, LeadershipState.UNASSIGNED] == [
        case.machine.state(tp) for tp in new[:2]
    ]
    assert [] == moved
    assert plan.lookups < 20


def test_what_differs_between_two_plans_is_named() -> None:
    """
    A partition that is not named is neither claimed nor handed over.
    """
    tps = [TopicPartition(TOPIC, number) for number in range(4)]
    before = {tps[0]: ME, tps[1]: ME, tps[2]: OTHER}
    plan = plan_after(before, {tps[0]: ME, tps[1]: OTHER, tps[3]: ME})

    assert sorted(tps[1:]) == sorted(plan.changed)


# ── Claims ──


@pytest.mark.parametrize(
    ("leader", "is_due"),
    [
        (None, True),
        ((None, 5), True),
        ((DEAD, 5), True),
        ((MINE, 5), True),
        ((THEIRS, 5), False),
    ],
)
def test_what_no_live_session_leads_is_claimed_once(
    leader: tuple[str | None, int] | None, is_due: bool
) -> None:
    """
    Never led, released, its leader gone, or named without being led here; by one attempt at a time.
    """
    case = Case()
    if leader is not None:
        case.shows(*leader)
    case.placed()

    assert [is_due, False] == [case.due(), case.due()]
    assert case.state is (LeadershipState.CLAIMING if is_due else LeadershipState.UNCLAIMED)


@pytest.mark.parametrize(
    "change",
    [
        lambda case: case.placed(OTHER),
        lambda case: case.deleted.add(TOPIC),
        lambda case: case.view.topics.clear(),
        lambda case: case.machine.close(),
        lambda case: case.machine.hold(TP),
    ],
    ids=["placed elsewhere", "being deleted", "gone", "the session ends", "held"],
)
def test_what_is_not_to_be_led_is_not_claimed(change: Callable[[Case], object]) -> None:
    """
    And nothing waits for a moment at which it would be.
    """
    case = Case()
    case.placed()
    change(case)

    assert not case.due(1e9)
    assert case.machine.deadline_ms is None
    case.machine.check()


@pytest.mark.parametrize(
    ("how", "wait_ms", "a_new_key_counts"),
    [("refused", RETRY_MS, True), ("damaged", 1_000.0, True), ("unreadable", 1_000.0, False)],
)
def test_what_could_not_be_led_is_claimed_again_later(
    how: str, wait_ms: float, a_new_key_counts: bool
) -> None:
    """
    When it is due, or as soon as its leader key has changed: but for what was given back, which
    has changed the key by itself.
    """
    case = Case()
    case.shows(DEAD, 5)
    case.placed()
    assert case.due()
    case.ended(how)

    assert case.state is LeadershipState.PUT_OFF
    assert wait_ms == case.machine.deadline_ms
    assert not case.due(wait_ms - 1)
    case.shows(None, 6)
    assert case.due(wait_ms - 1) is a_new_key_counts
    assert case.due(wait_ms) is not a_new_key_counts


def test_what_is_put_off_again_waits_longer_and_says_so_once_a_minute() -> None:
    """
    Twice as long each time, up to a minute for an object and to five seconds for a key.
    """
    waits: dict[str, list[float]] = {}
    said: dict[str, int] = {}
    for how in ("unreadable", "damaged"):
        case, now_ms = Case(), 0.0
        case.placed()
        for _ in range(9):
            assert case.due(now_ms)
            said[how] = said.get(how, 0) + len(case.ended(how, now_ms).unreadable)
            deadline_ms = case.machine.deadline_ms
            assert deadline_ms is not None
            waits.setdefault(how, []).append((deadline_ms - now_ms) / 1000)
            now_ms = deadline_ms

    assert [1, 2, 4, 8, 16, 32, 60, 60, 60] == waits["unreadable"]
    assert [1, 2, 4, 5, 5, 5, 5, 5, 5] == waits["damaged"]
    assert {"unreadable": 4, "damaged": 0} == said


def test_an_operator_is_told_what_is_missing_until_an_attempt_ends_otherwise() -> None:
    """
    Also while the next attempt runs; and that it can be read again, once.
    """
    case = Case()
    case.placed()
    assert case.due()
    case.ended("unreadable")
    assert case.due(1_000)

    assert {TP: "object o"} == case.machine.unreadable
    assert 1 == case.ended("led").readable_again
    assert {} == case.machine.unreadable
    assert LeadershipState.LEADING is case.state


@pytest.mark.parametrize("node", [ME, OTHER])
def test_what_another_leads_meanwhile_is_no_operators_concern(node: int) -> None:
    """
    Damaged at the last look: now a live session leads it, or it is placed elsewhere.
    """
    case = Case()
    case.placed()
    assert case.due()
    case.ended("damaged")
    case.shows(THEIRS, 7)
    case.placed(node)

    assert not case.due(1e9)
    assert {} == case.machine.damaged
    assert case.machine.deadline_ms is None


def test_what_this_disk_led_is_led_before_there_is_a_plan() -> None:
    """
    And what of it cannot be read waits through the first plan.
    """
    case = Case()
    case.machine.claims_own([TP], case.view)
    case.ended("unreadable")
    case.placed()

    assert LeadershipState.PUT_OFF is case.state
    assert not case.due(999)
    assert case.due(1_000)


# ── Release ──


def test_a_release_says_what_was_claimed() -> None:
    """
    Its epoch, and the revision of the key that the claim wrote.
    """
    case = Case()
    case.log = log_of(TP, epoch=3, revision=42)
    case.led()
    case.machine.retire(case.log)

    assert [Release(TP, 3, 42)] == case.machine.releases([case.log])


def test_what_is_in_flight_is_not_released() -> None:
    """
    A released partition goes on elsewhere from what is committed; a lost session commits nothing.
    """
    case = Case()
    case.led()
    case.log.log_end += 1
    case.machine.retire(case.log)

    with pytest.raises(AssertionError, match="not flushed"):
        case.machine.releases([case.log])
    assert 1 == len(case.machine.releases([case.log], lost=True))


def test_what_is_not_retired_is_not_released() -> None:
    """
    It still admits batches.
    """
    case = Case()
    case.led()

    with pytest.raises(AssertionError, match="not retired"):
        case.machine.releases([case.log])


def test_one_task_pauses_and_one_retires() -> None:
    """
    Each is told whether it is the one; a pause ends in one of two ways.
    """
    case = Case()
    case.led()
    machine, log = case.machine, case.log

    assert [True, False] == [machine.pause(log), machine.pause(log)]
    assert [True, False] == [machine.resume(log), machine.resume(log)]
    assert [True, True, False] == [machine.pause(log), machine.retire(log), machine.retire(log)]
    assert not machine.resume(log)
    assert not machine.pause(log)


def test_a_released_partition_is_claimed_when_the_view_shows_the_release() -> None:
    """
    An older view shows its claim, or the leader before, as if it were free.
    """
    case = Case()
    case.shows(MINE, 10)
    case.led()
    case.machine.retire(case.log)
    assert case.machine.released(case.log)
    before = LeadershipState.RELEASED is case.state, case.due()
    case.shows(None, 11)

    assert (True, False) == before
    assert case.machine.shows_release(case.view, TP)
    assert case.due()


def test_a_released_partition_is_claimed_when_the_view_shows_an_unreadable_key() -> None:
    """
    Its key was damaged after the release: the attempt finds the damage, and tells an operator.
    """
    case = Case()
    case.led()
    case.machine.retire(case.log)
    assert case.machine.released(case.log)
    due = []
    for revision in (10, 12):
        kv = KeyValue(leader_key(TP), b"damaged", 1, revision)
        case.view.apply(LEADERS_PREFIX, [PutEvent(kv)])
        due.append(case.due())

    assert [False, True] == due
    case.ended("damaged")
    assert {TP: "key k"} == case.machine.damaged


def test_what_was_released_to_another_is_forgotten_when_the_view_shows_it() -> None:
    """
    Until then it is not known whether the receiver has it.
    """
    case = Case()
    case.shows(MINE, 10)
    case.led()
    case.placed(OTHER)
    assert [(case.log, OTHER)] == list(case.machine.to_move())
    case.machine.retire(case.log)
    case.machine.released(case.log)

    assert not case.machine.shows_release(case.view, TP)
    case.shows(THEIRS, 12)
    assert not case.due()
    assert LeadershipState.UNASSIGNED is case.state


@pytest.mark.parametrize("stage", ["claiming", "leading", "retiring"])
def test_a_deleted_topic_is_in_no_state_and_late_events_change_nothing(stage: str) -> None:
    """
    The attempt, the pause or the release that was on its way comes to an end later.
    """
    case = Case()
    case.placed()
    assert case.due()
    if stage != "claiming":
        case.ended("led")
    if stage == "retiring":
        case.machine.retire(case.log)
    case.deleted.add(TOPIC)
    case.machine.topic_deleted([TP])

    case.ended("led")
    assert not case.machine.released(case.log)
    assert not case.machine.resume(case.log)
    assert not case.machine.is_led(case.log)
    assert LeadershipState.UNASSIGNED is case.state
    assert not case.due(1e9)


def test_what_is_held_is_given_up_and_claimed_again_behind_it() -> None:
    """
    It is held while it is led, released under it, and not claimed before it is let go on.
    """
    case = Case()
    case.led()

    assert [True, False] == [case.machine.hold(TP), case.machine.hold(TP)]
    case.machine.retire(case.log)
    case.machine.released(case.log)
    case.shows(None, 11)
    assert not case.due(1e9)
    case.machine.let(TP)
    assert case.due()
    assert not case.machine.hold(TP)


# ── Any schedule ──


class AnySchedule(RuleBasedStateMachine):
    """Three partitions; other agents claim, release and end, and the view is behind the store."""

    TPS: Final = tuple(TopicPartition(TOPIC, n) for n in range(3))
    partitions = st.sampled_from(TPS)

    def __init__(self) -> None:
        super().__init__()
        self.case = Case()
        self.machine = self.case.machine
        self.now_ms = 0.0
        self.revision = 1
        self.keys: dict[TopicPartition, LeaderEntry] = {}
        """What the metadata store has."""
        self.attempts: dict[TopicPartition, None] = {}
        self.logs: dict[TopicPartition, PartitionLog] = {}
        """What is served."""
        self.retired: set[PartitionLog] = set()
        self.releasing: set[TopicPartition] = set()
        self.released: dict[TopicPartition, int] = {}
        """Revisions that our claims had."""
        self.held: set[TopicPartition] = set()
        self.retained: dict[TopicPartition, Release] = {}
        self.is_closed = False

    def _store(self, tp: TopicPartition, session: str | None) -> None:
        old = self.keys.get(tp)
        epoch = 0 if old is None else old.leader.leader_epoch + (session is not None)
        self.revision += 1
        self.keys[tp] = LeaderEntry(Leader(session, epoch), self.revision)

    @rule(nodes=st.lists(st.sampled_from((ME, OTHER)), min_size=3, max_size=3))
    def placed(self, nodes: list[int]) -> None:
        placed = dict(zip(self.TPS, nodes, strict=True))
        self.machine.placed(plan_after(self.machine.plan, placed), self.now_ms)

    @rule(tp=partitions)
    def seen(self, tp: TopicPartition) -> None:
        if tp in self.keys:
            self.case.view.leaders[tp] = self.keys[tp]

    @rule(tp=partitions, session=st.sampled_from((THEIRS, DEAD)))
    def claimed_by_another(self, tp: TopicPartition, session: str) -> None:
        if tp not in self.keys or self.keys[tp].leader.session_id in (None, DEAD):
            self._store(tp, session)

    @rule(ms=st.sampled_from((1.0, 300.0, 60_000.0)))
    def passes(self, ms: float) -> None:
        self.now_ms += ms

    @rule()
    def claims(self) -> None:
        due = self.machine.claims_due(self.case.view, self.now_ms)
        assert not self.is_closed or not due
        for tp in due:
            assert tp not in self.logs, "claimed while it is led"
            assert tp not in self.attempts, "claimed twice at once"
            assert tp not in self.held, "claimed while it is held"
            if tp in self.released:
                shown = self.case.view.leaders[tp].mod_revision
                assert shown > self.released[tp], "claimed by a view older than the release"
            self.attempts[tp] = None

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def attempt_ends(self, data: st.DataObject) -> None:
        tp = data.draw(st.sampled_from(sorted(self.attempts)))
        del self.attempts[tp]
        logs: dict[TopicPartition, PartitionLog] = {}
        how = data.draw(st.sampled_from(("led", "unreadable", "retained", "damaged", "refused")))
        leader = self.keys[tp].leader.session_id if tp in self.keys else None
        if leader == MINE and tp not in self.retained:  # a claim without an answer
            self._store(tp, None)
            how = "refused"
        elif leader == THEIRS:
            how = "refused"
        elif how in ("led", "unreadable", "retained"):
            self._store(tp, MINE)
            self.retained.pop(tp, None)
            kv = self.keys[tp]
            if how == "retained":
                self.retained[tp] = Release(tp, kv.leader.leader_epoch, kv.mod_revision)
            elif how == "led":
                log = log_of(tp, epoch=kv.leader.leader_epoch, revision=kv.mod_revision)
                logs[tp] = self.logs[tp] = log
            elif data.draw(st.booleans()):  # or it is cut off: found by the next attempt
                self._store(tp, None)
        result = AttemptResult(
            logs=logs,
            unreadable={tp: "o"} if how in ("unreadable", "retained") else {},
            damaged={tp: "k"} if how == "damaged" else {},
            retained={tp: self.retained[tp]} if how == "retained" else {},
        )
        self.machine.attempt_ended([tp], result, self.now_ms)
        assert (self.machine.state(tp) is LeadershipState.LEADING) == (how == "led")

    @rule(tp=partitions)
    def admits(self, tp: TopicPartition) -> None:
        if tp in self.logs and self.machine.is_leading(self.logs[tp]):
            self.logs[tp].log_end += 1

    @rule(tp=partitions)
    def commits(self, tp: TopicPartition) -> None:
        if tp in self.logs:
            self.logs[tp].high_watermark = self.logs[tp].log_end

    @rule(tp=partitions, resumes=st.booleans())
    def pauses(self, tp: TopicPartition, resumes: bool) -> None:
        if tp in self.logs:
            (self.machine.resume if resumes else self.machine.pause)(self.logs[tp])

    @rule(tp=partitions)
    def retires(self, tp: TopicPartition) -> None:
        if tp in self.logs and self.machine.retire(self.logs[tp]):
            assert self.logs[tp] not in self.retired, "retired twice"
            self.retired.add(self.logs[tp])

    @rule(tp=partitions)
    def sends_release(self, tp: TopicPartition) -> None:
        log = self.logs.get(tp)
        if log is None or self.machine.state(tp) is not LeadershipState.RETIRING:
            return
        if log.high_watermark < log.log_end:
            with pytest.raises(AssertionError, match="not flushed"):
                self.machine.releases([log])
            return
        (sent,) = self.machine.releases([log])
        if self.keys[tp].mod_revision == sent.leader_revision:
            self._store(tp, None)
        self.releasing.add(tp)

    @precondition(lambda self: self.releasing)
    @rule(data=st.data())
    def release_answered(self, data: st.DataObject) -> None:
        tp = data.draw(st.sampled_from(sorted(self.releasing)))
        self.releasing.remove(tp)
        log = self.logs.pop(tp)
        assert self.machine.released(log)
        self.released[tp] = log.leader_revision

    @rule(tp=partitions)
    def holds(self, tp: TopicPartition) -> None:
        if tp in self.held:
            self.machine.let(tp)
            self.held.remove(tp)
        elif self.machine.hold(tp):
            self.held.add(tp)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def gives_back(self, data: st.DataObject) -> None:
        tp = data.draw(st.sampled_from(sorted(self.held)))
        retained = self.machine.give_back(tp)
        assert self.retained.pop(tp, None) == retained
        if retained is not None:
            assert self.keys[tp].mod_revision == retained.leader_revision
            self._store(tp, None)

    @rule()
    def ends(self) -> None:
        self.machine.close()
        self.is_closed = True

    @invariant()
    def holds_together(self) -> None:
        self.machine.check()

    @invariant()
    def retains_what_it_claimed_and_does_not_lead(self) -> None:
        assert self.retained.keys() == self.machine.retained_claims()
        for tp in self.retained:
            assert self.keys[tp].leader.session_id == MINE
            assert self.machine.is_tried_here(tp)

    @invariant()
    def leads_what_the_store_says_that_it_leads(self) -> None:
        for tp, log in self.logs.items():
            assert self.machine.is_led(log)
            if tp not in self.releasing:
                expected = LeaderEntry(Leader(MINE, log.leader_epoch), log.leader_revision)
                assert expected == self.keys[tp]

    def teardown(self) -> None:
        """Nothing stays on its way: in a quiet cluster all that is placed here is led."""
        for tp in list(self.held):
            self.machine.let(tp)
        for tp, entry in self.keys.items():
            if entry.leader.session_id == THEIRS:
                self._store(tp, None)
        here = dict.fromkeys(self.TPS, ME)
        self.machine.placed(plan_after(self.machine.plan, here), self.now_ms)
        for log in self.logs.values():
            log.high_watermark = log.log_end
            self.machine.resume(log)
            if self.machine.state(_tp(log)) is LeadershipState.RETIRING:
                self.releasing.add(_tp(log))
        for tp in self.releasing:
            if self.keys[tp].leader.session_id == MINE:
                self._store(tp, None)
            self.machine.released(self.logs.pop(tp))
        for _ in range(3):
            self.case.view.leaders |= self.keys
            self.now_ms = max(self.now_ms, self.machine.deadline_ms or 0.0)
            self.attempts |= dict.fromkeys(self.machine.claims_due(self.case.view, self.now_ms))
            for tp in list(self.attempts):
                del self.attempts[tp]
                is_mine = tp in self.keys and self.keys[tp].leader.session_id == MINE
                stray = is_mine and not self.machine.retains_claim(tp)
                self._store(tp, None if stray else MINE)
                logs = {} if stray else {tp: log_of(tp, revision=self.revision)}
                self.logs |= logs
                result = AttemptResult(logs=logs, unreadable={}, damaged={})
                self.machine.attempt_ended([tp], result, self.now_ms)
        expected = set() if self.is_closed else set(self.TPS)
        assert expected <= self.logs.keys()
        assert self.is_closed or self.machine.deadline_ms is None


def _tp(log: PartitionLog) -> TopicPartition:
    return TopicPartition(log.topic_id, log.partition)


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
