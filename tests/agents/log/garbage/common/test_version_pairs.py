"""Which pair of versions is due, and which partitions: too early takes files from readers."""

from uuid import UUID

from driftlog_agents.log.garbage.common.version_pairs import (
    NamedPartition,
    Pair,
    Version,
    Wait,
    Walk,
    Walked,
    WalkSchedule,
    next_pair,
    overdue,
)
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import TopicPartition

GRACE = Grace(12_000)
A, B, C = Version(4, 1_000, 1), Version(5, 20_000, 1), Version(6, 90_000, 1)
ONE, TWO = (NamedPartition("t", TopicPartition(UUID(int=1), n)) for n in range(2))


def test_grace_runs_from_the_put_of_the_later_version() -> None:
    """
    The older one may be old: what counts is since when it is superseded.
    """
    assert Wait(1) == next_pair((A, B, C), 31_999, GRACE)
    assert Pair(A, B) == next_pair((A, B, C), 32_000, GRACE)


def test_the_newest_version_is_never_superseded() -> None:
    """
    However old it is: an idle partition keeps it.
    """
    assert next_pair((C,), 10**12, GRACE) is None
    assert next_pair((), 10**12, GRACE) is None


def test_a_partition_is_due_a_grace_after_an_edit_and_an_idle_one_never() -> None:
    """
    A later edit does not put the first one off, and a walk takes the partition off the schedule.
    """
    schedule = WalkSchedule(GRACE)
    schedule.edited(ONE, 0)
    schedule.edited(ONE, 9_000)

    assert schedule.take_due(11_999) is None
    assert Walk(ONE, 9_000) == schedule.take_due(12_000)
    assert schedule.take_due(10**9) is None
    assert 0 == len(schedule)


def test_what_a_listing_hands_over_is_walked_at_once_and_the_rest_together() -> None:
    """
    Edits of every second are walked once in grace / 12, not each with a LIST of its own.
    """
    schedule = WalkSchedule(GRACE)
    schedule.edited(TWO, 0)
    schedule.superseded(ONE, 50)

    assert Walk(ONE) == schedule.take_due(50)
    schedule.again(Walk(ONE, 0), 50, 3.0)
    assert schedule.take_due(1_049) is None
    assert Walk(ONE, 0) == schedule.take_due(1_050)


def test_another_agents_edits_are_left_to_it_for_some_time() -> None:
    """
    A partition that another agent edits is not walked by both for ever.
    """
    schedule = WalkSchedule(GRACE)
    before = Walk(ONE, 0)

    assert before.is_own(14_000, GRACE)
    assert not before.is_own(14_001, GRACE)
    assert not Walk(ONE).is_own(0, GRACE)
    schedule.again(before, 20_000, 5_000)
    assert schedule.take_due(26_999) is None
    assert before == schedule.take_due(27_000)
    assert not overdue(1_000, 15_000, GRACE)
    assert overdue(1_000, 15_001, GRACE)


def test_a_walk_that_left_something_is_made_again() -> None:
    """
    Where nothing was found and another agent edits the partition, that agent walks it.
    """
    other, own = Walk(ONE), Walk(TWO, 0)
    schedule = WalkSchedule(GRACE)

    schedule.walked(own, Walked(None, pairs=1), 0)
    schedule.walked(other, Walked(Wait(5)), 0)
    nothing = len(schedule)
    schedule.walked(own, Walked(Wait(5)), 0)
    schedule.walked(other, Walked(Wait(0), interrupted=True), 0)

    assert (0, 2) == (nothing, len(schedule))
