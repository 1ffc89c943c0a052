"""What is handed over next: if it failed, a join would stop too much at once, or never end."""

from uuid import UUID

import pytest

from driftlog_agents.log.leadership.handover_policy import (
    FlushDeadline,
    LeadershipSettings,
    may_pause,
    next_to_move,
)
from driftlog_agents.log.partition.partition import PartitionLog, State

SETTINGS = LeadershipSettings(group=2, idle_group=3)


def log_of(number: int, *, busy: bool = False, state: State = State.ONLINE) -> PartitionLog:
    """A partition; *busy*: it was written to under its leader."""
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=number, leader_epoch=0)
    log.start_epoch(0, 0)
    log.log_end = log.high_watermark = int(busy)
    log.state = state
    return log


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("iiiii", [0, 1, 2]),
        ("bbbbb", [0, 1]),
        ("bbbi", [0, 1, 3]),
        ("ibbb", [0, 1, 2]),
        ("iiib", [0, 1, 2]),
    ],
)
def test_a_receiver_gets_a_group_of_busy_ones_or_more_of_idle_ones(
    kinds: str, expected: list[int]
) -> None:
    """
    *i*: idle, *b*: busy; two busy ones, and three in all.
    """
    logs = [log_of(n, busy=kind == "b") for n, kind in enumerate(kinds)]

    found = next_to_move([(log, 2) for log in logs], {2}, SETTINGS)

    assert expected == [log.partition for log in found]


def test_each_receiver_has_its_own_group_and_one_that_is_gone_gets_nothing() -> None:
    """
    Where an agent has just ended, the plan may still name it.
    """
    logs = [log_of(n, busy=True) for n in range(9)]

    found = next_to_move([(log, 2 + n % 3) for n, log in enumerate(logs)], {2, 3}, SETTINGS)

    assert [0, 1, 3, 4] == [log.partition for log in found]


@pytest.mark.parametrize(
    ("state", "is_moved"),
    [(State.ONLINE, True), (State.LOADING, True), (State.OFFLINE, False), (State.CLOSED, False)],
)
def test_what_is_offline_stays_where_its_buffer_files_are(state: State, is_moved: bool) -> None:
    """
    What is closed is on its way already.
    """
    found = next_to_move([(log_of(0, state=state), 2)], {2}, SETTINGS)

    assert is_moved is bool(found)


@pytest.mark.parametrize(
    ("state", "damage", "may"),
    [
        (State.ONLINE, "", True),
        (State.LOADING, "", False),
        (State.LOADING, "manifest m", True),
        (State.OFFLINE, "", False),
    ],
)
def test_batches_wait_for_a_flush_or_for_producers_and_not_for_both(
    state: State, damage: str, may: bool
) -> None:
    """
    Or an outage of the bucket would keep them for as long as it lasts.
    """
    log = log_of(0, state=state)
    log.damage = damage

    assert may is may_pause(log)


def test_a_flush_that_is_late_may_take_twice_as_long_next_time_up_to_ten_seconds() -> None:
    """
    It is said once that it is so long, and again when it became so anew.
    """
    deadline = FlushDeadline(1_000)
    found = [(deadline.missed(), deadline.ms) for _ in range(6)]
    deadline.met()
    first = deadline.ms
    again = [deadline.missed() for _ in range(5)]

    assert [2_000, 4_000, 8_000, 10_000, 10_000, 10_000] == [ms for _, ms in found]
    assert [False, False, False, True, False, False] == [said for said, _ in found]
    assert 1_000 == first
    assert [False, False, False, True, False] == again
