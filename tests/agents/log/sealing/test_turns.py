"""Each topic has its share of the sealer."""

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.turns import SealTurns
from tests.agents.log.sealing.test_policy import make_log


def look(turns: SealTurns, *logs: PartitionLog) -> None:
    """One that finds that these are due."""
    turns.begin_look()
    turns.end_look({log: [None] for log in logs})


def attempt(turns: SealTurns, took_ms: float = 0) -> PartitionLog:
    """The next one."""
    log, _ = turns.take()
    turns.ended(log, took_ms)
    return log


def test_the_topic_that_has_had_least_time_is_next() -> None:
    """
    However many partitions of another topic waited first.
    """
    turns = SealTurns()
    slow = [make_log(9, topic="slow") for _ in range(3)]
    quick = [make_log(1, topic="quick") for _ in range(3)]
    look(turns, *slow, *quick)

    order = [attempt(turns, 5_000 if turns.waiting == 6 else 100) for _ in range(6)]

    assert [slow[0], *quick, *slow[1:]] == order


def test_of_a_topic_that_falls_due_one_is_next_after_the_attempts_that_run() -> None:
    """
    It has no credit of the past, and needs none: those that run are charged when they end.
    """
    turns = SealTurns()
    slow = [make_log(9, topic="slow") for _ in range(9)]
    look(turns, *slow)
    running = [turns.take()[0] for _ in range(3)]
    late = make_log(1, topic="late")
    look(turns, *slow, late)

    turns.ended(running[0], 60_000)

    assert late is turns.take()[0]


def test_of_a_topic_the_partition_that_has_had_least_is_next_then_the_most_urgent() -> None:
    """
    A look names the most urgent first.
    """
    turns = SealTurns()
    slow, urgent, other = make_log(1), make_log(9), make_log(2)
    look(turns, slow, urgent, other)
    turns.ended(turns.take()[0], 5_000)

    look(turns, slow, urgent, other)

    assert [urgent, other, slow] == [attempt(turns) for _ in range(3)]


def test_near_the_bounds_the_most_urgent_is_next_whatever_its_topic_has_had() -> None:
    """
    One at each look: a thousand topics that are due every second would have producers wait.
    """
    turns = SealTurns()
    full = [make_log(9, topic="full"), make_log(8, topic="full")]
    small = [make_log(1, topic=f"small-{n}") for n in range(3)]
    look(turns, *full, *small)
    assert full[0] is attempt(turns, 60_000)

    turns.begin_look()
    turns.end_look({log: [None] for log in (*full, *small)}, near=True)

    assert [full[0], *small, full[1]] == [attempt(turns, 100) for _ in range(5)]


def test_what_is_attempted_or_not_due_any_more_does_not_wait() -> None:
    """
    Nor what was attempted since the look began: what the look saw is sealed perhaps.
    """
    turns = SealTurns()
    first, second, gone = make_log(3), make_log(2), make_log(1)
    look(turns, first, second, gone)
    attempted, _ = turns.take()
    turns.begin_look()
    quick = attempt(turns)

    turns.end_look({first: [None], second: [None]})

    assert [first, second, 0] == [attempted, quick, turns.waiting]
    turns.ended(first, 0)
    look(turns, first, second)
    assert 2 == turns.waiting
