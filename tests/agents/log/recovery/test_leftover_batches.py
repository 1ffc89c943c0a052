"""In which order buffered batches are appended, passed over or noted, under any schedule of starts.

If it failed: an acks=1 record would be neither in the log nor set aside, or one would be set aside
although no other session has led since.
"""

from typing import Final
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.local.leftovers import Leftovers, PartitionLeftovers
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.recovery.leftover_batches import (
    LED_ELSEWHERE,
    REPAIR,
    Directory,
    LeftoverBatches,
    forget_idle,
)
from driftlog_agents.log.recovery.verdict import BufferedBatch
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.transactions.session_transactions import Release

TP: Final = TopicPartition(UUID(int=1), 0)
BATCH: Final = BufferedBatch(2, 5, True)
"""At the end of `log_of`, in its newest epoch."""


def log_of(*, end: int = 5, state: State = State.ONLINE) -> PartitionLog:
    """A log whose leader epoch 2 began at 3."""
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=3)
    log.epochs = [(0, 0), (2, 3)]
    log.log_end = log.high_watermark = end
    log.sessions = ("dead",)
    log.state = state
    return log


def taken_of(log: PartitionLog | None, *, continued: bool = True, retained: bool = False) -> Taken:
    """As a takeover ends."""
    taken = Taken(logs={} if log is None else {TP: log})
    if continued:
        taken.continued.add(TP)
    if retained:
        taken.retained[TP] = Release(TP, 3, 7)
    return taken


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (taken_of(log_of()), "append"),
        (taken_of(log_of(end=6)), "nothing"),
        (taken_of(log_of(end=4)), "earlier records are not on this disk"),
        (taken_of(log_of(), continued=False), LED_ELSEWHERE),
        (taken_of(None, continued=False), LED_ELSEWHERE),
        (taken_of(None, retained=True), "passed over"),
        (taken_of(None), "stays"),
        (taken_of(log_of(state=State.OFFLINE)), "stays"),
        (taken_of(log_of(state=State.OFFLINE), continued=False), LED_ELSEWHERE),
    ],
    ids=[
        "follows",
        "in the log",
        "behind a gap",
        "another led",
        "led elsewhere",
        "its claim is retained",
        "its claim is unknown",
        "offline",
        "offline, another led",
    ],
)
def test_a_batch_is_appended_noted_passed_over_or_left(taken: Taken, expected: str) -> None:
    """
    Each in one way, and its directory is needed as long as the batch may be nowhere else.
    """
    directory = Directory(Leftovers("dead"))

    log = LeftoverBatches().decide(taken, directory, 1, TP, BATCH)

    found = "append" if log is not None else "nothing"
    if directory.passed_over:
        found = "passed over"
        assert ({1: {TP}}, {TP}) == (directory.passed_over, directory.promised)
    if directory.stays:
        found = "stays"
    if directory.changed:
        found = directory.note.partitions[TP].reason
        assert {1: {TP}} == directory.files
    assert found.startswith(expected)
    assert directory.is_needed == (expected != "nothing")


@pytest.mark.parametrize("retained", [False, True])
def test_a_noted_batch_gets_no_place_at_a_later_start(retained: bool) -> None:
    """
    The session before has given its offset to another record, whether or not it committed it.
    """
    note = Leftovers("dead", None, {TP: PartitionLeftovers("why", None, {2: 5})})
    directory = Directory(note)

    log = LeftoverBatches().decide(
        taken_of(None if retained else log_of(), retained=retained), directory, 1, TP, BATCH
    )

    assert log is None
    assert ({1: {TP}}, {}) == (directory.files, directory.passed_over)


def test_a_batch_below_log_start_leaves_no_hole_before_the_later_ones() -> None:
    """
    The directory begins with copies of a directory before it, which a user has deleted since.
    """
    log = log_of()
    log.epochs, log.log_start = [(2, 4)], 4
    directory, leftovers = Directory(Leftovers("dead")), LeftoverBatches()
    deleted = [BufferedBatch(0, 1, False), BufferedBatch(0, 2, True)]

    of_deleted = [leftovers.decide(taken_of(log), directory, 1, TP, batch) for batch in deleted]
    appended_to = leftovers.decide(taken_of(log), directory, 2, TP, BATCH)

    assert ([None, None], log) == (of_deleted, appended_to)
    assert {1: {TP}} == directory.files, "the acks=1 record is counted as deleted"


def test_the_manifest_is_asked_for_only_if_it_can_have_a_later_epoch_and_once() -> None:
    """
    A start after a crash does not depend on the manifest.
    """
    leftovers = LeftoverBatches()
    log = log_of()
    log.epochs = [(2, 3)]
    log.manifest_version = 1
    taken = taken_of(log)

    asked = [leftovers.needs_epochs(taken, TP, epoch) for epoch in (2, 1, 1)]

    assert [None, log, None] == asked


class AnySchedule(RuleBasedStateMachine):
    """One partition: sessions of this disk and of another one lead, commit some and die; a start
    may be unable to read the partition, and die as well."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, int]] = []
        """(Leader epoch, offset) of what is committed."""
        self.epoch = -1
        self.on_disk: list[tuple[Leftovers, list[BufferedBatch]]] = []
        """The directories, oldest first, with their stored notes."""
        self.is_ours = True
        """Whether a session of this disk led last."""
        self.others_led = False
        self.starting: tuple[LeftoverBatches, list[Directory], Taken] | None = None
        """A start whose partition cannot be read so far."""
        self.set_aside: set[BufferedBatch] = set()

    @precondition(lambda self: self.starting is None and not self.on_disk)
    @rule(acks=st.lists(st.booleans(), max_size=4), committed=st.integers(0, 4))
    def leads_here(self, acks: list[bool], committed: int) -> None:
        self.epoch += 1
        base = len(self.log)
        batches = [BufferedBatch(self.epoch, base + n, one) for n, one in enumerate(acks)]
        self.log += [(self.epoch, one.base_offset) for one in batches[:committed]]
        self.on_disk.append((Leftovers(f"{self.epoch}"), batches))
        self.is_ours = True

    @precondition(lambda self: self.starting is None)
    @rule(committed=st.integers(0, 2))
    def another_leads(self, committed: int) -> None:
        self.epoch += 1
        base = len(self.log)
        self.log += [(self.epoch, base + n) for n in range(committed)]
        self.is_ours, self.others_led = False, True

    @precondition(lambda self: self.starting is None)
    @rule(readable=st.booleans())
    def starts(self, readable: bool) -> None:
        leftovers, directories = LeftoverBatches(), [Directory(note) for note, _ in self.on_disk]
        taken = self._taken() if readable or not self.is_ours else taken_of(None, retained=True)
        if not self.is_ours:
            taken.continued.clear()
        self._pass(leftovers, directories, taken, only=False)
        self.starting = leftovers, directories, taken
        if taken.logs:
            self._finished(directories)

    @precondition(lambda self: self.starting is not None)
    @rule()
    def dies(self) -> None:
        self.starting = None

    @precondition(lambda self: self.starting is not None)
    @rule()
    def is_readable_again(self) -> None:
        assert self.starting is not None
        leftovers, directories, _ = self.starting
        self._pass(leftovers, directories, self._taken(), only=True)
        self._finished(directories)

    @precondition(lambda self: self.starting is not None)
    @rule()
    def is_given_up(self) -> None:
        """An operator accepts a loss: the claim is given back."""
        assert self.starting is not None
        leftovers, directories, _ = self.starting
        self._pass(leftovers, directories, Taken(), only=True)
        self.others_led = True
        self._finished(directories)

    def _taken(self) -> Taken:
        self.epoch += 1
        log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=self.epoch)
        starts: dict[int, int] = {}
        for epoch, offset in self.log:
            starts.setdefault(epoch, offset)
        log.epochs = list(starts.items())
        log.log_end = log.high_watermark = len(self.log)
        return taken_of(log)

    def _pass(
        self, leftovers: LeftoverBatches, directories: list[Directory], taken: Taken, *, only: bool
    ) -> None:
        for directory, (_, batches) in zip(directories, self.on_disk, strict=True):
            leftovers.begin()
            for batch in batches:
                if only and TP not in directory.waiting:
                    continue
                log = leftovers.decide(taken, directory, 1, TP, batch)
                if log is not None:
                    log.start_epoch(batch.leader_epoch, batch.base_offset)
                    log.log_end += 1
                    self.log.append((batch.leader_epoch, batch.base_offset))
            if only:
                directory.decided({TP})

    def _finished(self, directories: list[Directory]) -> None:
        """What `displaced_records` decides: each batch that was promised has a place."""
        self.starting = None
        there = set(self.log)
        for directory, (_, batches) in zip(directories, self.on_disk, strict=True):
            for batch in batches:
                if batch.acks_one and (batch.leader_epoch, batch.base_offset) not in there:
                    assert directory.has_noted(TP, batch), "forgotten"
                    assert TP in directory.undecided, "forgotten"
                    self.set_aside.add(batch)
        self.on_disk.clear()
        self.is_ours = True

    @invariant()
    def the_log_has_each_offset_once_and_its_epochs_ascend(self) -> None:
        assert list(range(len(self.log))) == [offset for _, offset in self.log]
        assert sorted(self.log) == self.log

    @invariant()
    def a_record_is_set_aside_only_if_another_session_has_led(self) -> None:
        assert self.others_led or not self.set_aside


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_claim_is_retained_only_for_acknowledged_batches() -> None:
    """
    Batches of acks=all are sent again by their producers: they hold no claim.
    """
    other = TopicPartition(TP.topic_id, 1)
    directory = Directory(Leftovers("dead"))
    directory.pass_over(1, TP, BATCH)
    directory.pass_over(1, other, BufferedBatch(2, 5, False))
    directory.pass_over(2, other, BufferedBatch(2, 7, False))

    idle = forget_idle([directory], [TP, other])

    assert ({other}, {TP}) == (idle, directory.waiting)


def test_only_the_files_with_batches_of_a_partition_are_read_again() -> None:
    """
    In their order: its batches are appended in the order of their offsets.
    """
    other = TopicPartition(TP.topic_id, 1)
    directory = Directory(Leftovers("dead"))
    for number, tp in ((9, TP), (2, TP), (5, other)):
        directory.pass_over(number, tp, BATCH)

    assert [2, 9] == directory.files_of([TP])


def test_an_unreadable_directory_takes_the_partitions_offline_that_continue_from_it() -> None:
    """
    Acknowledged batches may be only there; a partition that is offline already keeps its reason.
    """
    leftovers = LeftoverBatches()
    continuing, ended = log_of(), log_of(state=State.OFFLINE)
    ended.offline_reason = "a gap"

    for log in (continuing, ended):
        assert [log] == leftovers.take_offline(taken_of(log), "dead", "EIO")
    assert [] == leftovers.take_offline(taken_of(log_of(), continued=False), "dead", "EIO")

    assert (State.OFFLINE, f"EIO; {REPAIR}") == (continuing.state, continuing.offline_reason)
    assert "a gap" == ended.offline_reason
