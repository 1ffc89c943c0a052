"""
If this fails, a group's session timeout comes late or never, or groups that are gone stay in
memory.
"""

import gc
from dataclasses import dataclass
from weakref import ref

from driftlog_agents.groups.coordinator.group_timers import GroupTimers


@dataclass(eq=False)
class Group:
    """A group with its current timer."""

    scheduled_ms: int | None = None
    is_dropped: bool = False


def test_the_earliest_timer_is_first() -> None:
    """
    Only a timer before all others wakes the task that waits.
    """
    timers = GroupTimers[Group]()
    late, early, last = Group(), Group(), Group()

    woken = [timers.schedule(g, ms, 3) for g, ms in ((late, 50), (early, 20), (last, 90))]

    assert [True, True, False] == woken
    assert 15 == timers.wait_ms(5)
    assert [early, late, last] == [timers.take() for _ in range(3)]
    assert timers.wait_ms(5) is None


def test_an_earlier_deadline_replaces_the_timer_and_a_later_one_does_not() -> None:
    """
    A heartbeat moves the deadline back each time: the timer that is due finds the new one.
    """
    timers = GroupTimers[Group]()
    group = Group()
    timers.schedule(group, 50, 1)

    assert not timers.schedule(group, 70, 1)
    assert timers.schedule(group, 20, 1)
    assert [group, None] == [timers.take() for _ in range(2)]
    assert group.scheduled_ms is None


def test_a_dropped_group_has_no_timer() -> None:
    """
    Another agent coordinates it.
    """
    timers = GroupTimers[Group]()
    group = Group()
    timers.schedule(group, 50, 1)
    group.is_dropped = True

    assert timers.take() is None


def test_a_timer_does_not_keep_its_group() -> None:
    """
    A group of some MB would stay for its session timeout of half an hour.
    """
    timers = GroupTimers[Group]()
    group = Group()
    timers.schedule(group, 50, 1)
    gone = ref(group)

    del group
    gc.collect()

    assert gone() is None
    assert timers.take() is None


def test_timers_that_count_for_nothing_are_removed() -> None:
    """
    Ten thousand groups come and go before the first of their timers is due.
    """
    timers = GroupTimers[Group]()
    stays = Group()
    timers.schedule(stays, 10**6, 1)
    for number in range(1_000):
        timers.schedule(Group(), 10**6 + number, 1)

    assert len(timers) < 100
    assert stays is timers.take()
