"""The oracle notices what it is there for: one planted breach at a time."""

import random

import pytest

from tests.chaos.oracle import Fault, Oracle, Promise, Verdict
from tests.chaos.records import Origin, TopicPartition, make_value, origin_of

AT = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
COUNT = 20

Log = list[tuple[int, bytes | None]]


class Story:
    """A producer that sent records 0 to 19 to one partition and was told offsets 0 to 19."""

    def __init__(self, promise: Promise) -> None:
        self.oracle = Oracle([AT, OTHER])
        self.oracle.producer("p", promise)
        self.oracle.starts("c", AT, 0)
        self.log: Log = []
        for n in range(COUNT):
            origin = self.oracle.sent(AT, "p", n)
            self.oracle.acknowledged(AT, origin, n, n + 0.5)
            self.log.append((n, make_value(origin, random.Random(n))))

    def judge(self) -> Verdict:
        return self.oracle.judge({AT: self.log, OTHER: []})

    def faults(self) -> set[Fault]:
        return {violation.fault for violation in self.judge().violations}

    def put(self, offset: int, n: int) -> None:
        """The log has record *n* at *offset*."""
        self.log[offset] = (offset, make_value(Origin("p", n), random.Random(n)))


@pytest.mark.parametrize("promise", Promise)
def test_a_log_that_keeps_all_promises_is_called_so(promise: Promise) -> None:
    """
    Everything at its offset, once, in order, and shown to a consumer twice.
    """
    story = Story(promise)
    for consumer in ("c", "d"):
        story.oracle.starts(consumer, AT, 0)
        for offset, value in story.log:
            story.oracle.shown(consumer, AT, offset, value)

    verdict = story.judge()

    assert [] == verdict.violations
    assert COUNT == verdict.acknowledged[promise] == verdict.records
    assert COUNT * 2 == verdict.shown


@pytest.mark.parametrize("promise", [Promise.IDEMPOTENT, Promise.ALL_IN_ORDER, Promise.ALL])
def test_a_record_that_is_gone_is_lost(promise: Promise) -> None:
    """
    At the end of the log, where it leaves no gap.
    """
    story = Story(promise)
    del story.log[-1]

    (violation,) = story.judge().violations

    assert Fault.LOST is violation.fault
    assert "p #19, told offset 19 at 19.500 s" in violation.what


def test_a_record_at_another_offset_than_was_told_is_lost() -> None:
    """
    Two records have changed places; who asked for no order was told offsets all the same.
    """
    story = Story(Promise.ALL)
    story.put(3, 4)
    story.put(4, 3)

    assert {Fault.LOST} == story.faults()


def test_a_partition_that_is_empty_has_lost_everything() -> None:
    """
    As one that cannot be read.
    """
    story = Story(Promise.IDEMPOTENT)
    story.log.clear()

    assert COUNT == story.judge().count(Fault.LOST)


def test_a_second_copy_of_an_idempotent_record_is_a_duplicate() -> None:
    """
    Also where everything that was acknowledged is where it should be.
    """
    story = Story(Promise.IDEMPOTENT)
    story.log.append((COUNT, story.log[-1][1]))

    assert {Fault.DUPLICATED} == story.faults()


def test_a_second_copy_of_another_record_is_counted_and_no_breach() -> None:
    """
    Its client may have sent it twice.
    """
    story = Story(Promise.ALL)
    story.log.append((COUNT, story.log[3][1]))

    verdict = story.judge()

    assert [] == verdict.violations
    assert 1 == verdict.repeated


def test_idempotent_records_in_another_order_are_noticed() -> None:
    """
    Of two that failed for their user, and are there nevertheless.
    """
    story = Story(Promise.IDEMPOTENT)
    for _ in range(2):
        story.oracle.failed(AT, story.oracle.sent(AT, "p", 30), "timed out")
    for offset, n in ((COUNT, COUNT + 1), (COUNT + 1, COUNT)):
        story.log.append((offset, make_value(Origin("p", n), random.Random(n))))

    assert {Fault.OUT_OF_ORDER} == story.faults()


def test_one_request_at_a_time_that_was_overtaken_is_counted_and_no_breach() -> None:
    """
    The later one was told the earlier offset, and that is where it is: the leader had changed.
    """
    story = Story(Promise.ALL_IN_ORDER)
    first, second = story.oracle.sent(AT, "p", 30), story.oracle.sent(AT, "p", 31)
    story.oracle.acknowledged(AT, second, COUNT, 32)
    story.oracle.acknowledged(AT, first, COUNT + 1, 33)
    story.log += [(COUNT, b""), (COUNT + 1, b"")]
    story.put(COUNT, second.n)
    story.put(COUNT + 1, first.n)

    verdict = story.judge()

    assert [] == verdict.violations
    assert 1 == verdict.reordered


def test_a_read_that_changes_between_two_consumers_is_noticed() -> None:
    """
    One of them saw another record at that offset than the log has at the end.
    """
    story = Story(Promise.ALL)
    story.oracle.starts("d", AT, 0)
    story.oracle.shown("c", AT, 0, story.log[5][1])
    story.oracle.shown("d", AT, 0, story.log[0][1])

    changed = [v for v in story.judge().violations if v.fault is Fault.CHANGED]

    assert 2 == len(changed)  # against the other one's, and against the end


def test_what_a_consumer_saw_and_nobody_finds_any_more_is_noticed() -> None:
    """
    A record that failed was shown, and then its offset was gone.
    """
    story = Story(Promise.ALL)
    origin = story.oracle.sent(AT, "p", 30)
    story.oracle.failed(AT, origin, "timed out")
    story.oracle.starts("c", AT, COUNT)
    story.oracle.shown("c", AT, COUNT, make_value(origin, random.Random(1)))

    assert {Fault.CHANGED} == story.faults()


@pytest.mark.parametrize("next_offset", [0, 2], ids=["back", "skipping"])
def test_a_consumer_whose_offsets_do_not_ascend_by_one_is_noticed(next_offset: int) -> None:
    """
    Backwards, or past a record.
    """
    story = Story(Promise.ALL)
    story.oracle.shown("c", AT, 0, story.log[0][1])
    story.oracle.shown("c", AT, next_offset, story.log[next_offset][1])

    assert {Fault.NOT_ASCENDING} == story.faults()


def test_a_gap_in_the_log_is_noticed() -> None:
    """
    Of a record that nobody was told of.
    """
    story = Story(Promise.ALL)
    story.log.append((COUNT + 1, make_value(story.oracle.sent(AT, "p", 30), random.Random(1))))
    story.oracle.failed(AT, Origin("p", COUNT), "timed out")

    assert {Fault.GAP} == story.faults()


def test_a_record_that_nobody_sent_and_one_that_is_damaged_are_noticed() -> None:
    """
    Also where the acknowledged ones are all there.
    """
    story = Story(Promise.ALL)
    value = make_value(Origin("p", 3), random.Random(3))
    story.log.append((COUNT, make_value(Origin("p", COUNT), random.Random(1))))
    story.log.append((COUNT + 1, value[:-1] + bytes([value[-1] ^ 1])))

    assert 2 == story.judge().count(Fault.ALIEN)


def test_a_record_that_is_never_answered_is_noticed() -> None:
    """
    Neither acknowledged nor failed, when all is over.
    """
    story = Story(Promise.ALL)
    story.oracle.sent(AT, "p", 30)

    assert 1 == story.oracle.open_records
    assert {Fault.UNANSWERED} == story.faults()


def test_what_only_acks_1_promised_may_move() -> None:
    """
    It was appended again after another agent had led; at its old offset is another record.
    """
    story = Story(Promise.ONE)
    story.put(19, 18)
    story.put(18, 19)

    verdict = story.judge()

    assert [] == verdict.violations
    assert 2 == verdict.moved


@pytest.mark.parametrize(
    "led_by, emptied_s, excused",
    [
        pytest.param((1,), None, False, id="no disk was emptied"),
        pytest.param((1,), 25.0, True, id="the leader's was"),
        pytest.param((2,), 25.0, False, id="another one's was"),
        pytest.param((1,), 18.9, False, id="before the record was sent"),
        pytest.param((2, 1), 25.0, True, id="of one that led meanwhile"),
    ],
)
def test_what_only_acks_1_promised_may_go_with_its_leaders_disk_only(
    led_by: tuple[int, ...], emptied_s: float | None, excused: bool
) -> None:
    """
    The last record, sent at 19.0 s and acknowledged at 19.5 s, is gone.
    """
    story = Story(Promise.ONE)
    del story.log[-1]
    for place, node_id in enumerate(led_by):
        story.oracle.led(AT, node_id, 19.0 + place * 0.3)
    story.oracle.led(AT, 3, 22.0)
    if emptied_s is not None:
        story.oracle.emptied(1, emptied_s)

    verdict = story.judge()

    assert (not excused) == bool(verdict.count(Fault.LOST_ONE))
    assert excused == bool(verdict.excused)


def test_the_longest_gaps_are_between_acknowledgements_and_at_the_ends() -> None:
    """
    Overall from 3 to 9 s; of the partition that nobody acknowledged, all the time.
    """
    oracle = Oracle([AT, OTHER])
    oracle.producer("p", Promise.ALL)
    oracle.watch_gaps(1.0)
    for told_s in (2.0, 3.0, 9.0, 10.0):
        oracle.acknowledged(AT, oracle.sent(AT, "p", told_s), -1, told_s)
    oracle.end_gaps(12.0)

    verdict = oracle.judge({AT: [], OTHER: []})

    assert (6.0, 3.0) == (verdict.longest_gap_s, verdict.gap_from_s)
    assert (OTHER, 11.0) == (verdict.partition_of_gap, verdict.longest_partition_gap_s)


def test_a_value_names_its_origin_while_it_is_whole() -> None:
    """
    Any other byte, or none, and it names nobody.
    """
    value = make_value(Origin("p", 7), random.Random(1))

    assert Origin("p", 7) == origin_of(value)
    assert [None, None, None] == [origin_of(v) for v in (None, value[:-1], value + b"x")]
