"""One commit may concern a hundred thousand fetches: each is told, and few in one iteration."""

from collections import Counter, deque
from collections.abc import Callable
from uuid import UUID

import pytest

from driftlog_agents.log.ingest.fetch_news import FetchNews
from driftlog_agents.log.partition.partition import PartitionLog


class Loop:
    """Steps that the next iterations call."""

    def __init__(self) -> None:
        self.steps: deque[Callable[[], None]] = deque()

    def later(self, step: Callable[[], None]) -> None:
        self.steps.append(step)

    def iterations(self) -> int:
        """Run until nothing is left to do."""
        count = 0
        while self.steps:
            self.steps.popleft()()
            count += 1
        return count


class Fetch:
    """A fetch that waits for *logs* until it is told of one of them, as sessions do."""

    def __init__(self, told: Counter["Fetch"], *logs: PartitionLog) -> None:
        self.told = told
        self.logs = logs
        for log in logs:
            log.waiting_fetches[self] = None

    def committed(self, log: PartitionLog) -> None:
        self.told[self] += 1
        for each in self.logs:
            each.waiting_fetches.pop(self, None)

    synced = unsynced = lost = committed


def make_log(partition: int) -> PartitionLog:
    return PartitionLog(topic="t", topic_id=UUID(int=1), partition=partition, leader_epoch=1)


@pytest.mark.parametrize("partitions", [1, 50])
def test_few_of_many_fetches_are_told_in_one_iteration(partitions: int) -> None:
    """
    Whether they wait for one partition or for many; each of them is told.
    """
    loop, told = Loop(), Counter[Fetch]()
    news, logs = FetchNews(loop.later), [make_log(n) for n in range(partitions)]
    fetches = [Fetch(told, log) for log in logs for _ in range(10_000 // partitions)]
    news.moved(logs)
    at_once = told.total()
    iterations = loop.iterations()

    assert 0 < at_once <= 1_000
    assert iterations >= 9
    assert dict.fromkeys(fetches, 1) == told


def test_what_moves_while_fetches_are_told_is_told_once_and_of_no_answered_fetch() -> None:
    """
    Further commits add no more calls to an iteration.
    """
    loop, told = Loop(), Counter[Fetch]()
    news, logs = FetchNews(loop.later), [make_log(n) for n in range(3)]
    fetches = [Fetch(told, *logs) for _ in range(5_000)]
    for _ in range(4):
        news.moved(logs)
    fetches += [Fetch(told, logs[2])]
    at_once, steps = told.total(), len(loop.steps)
    loop.iterations()

    assert (1_000, 1) == (at_once, steps)
    assert dict.fromkeys(fetches, 1) == told


def test_a_few_fetches_are_told_before_the_commit_returns() -> None:
    """
    A fetch waits for no further iteration; later commits are told as well.
    """
    loop, told = Loop(), Counter[Fetch]()
    news, log = FetchNews(loop.later), make_log(0)
    for _ in range(2):
        Fetch(told, log)
        news.moved([log])

    assert 2 == told.total()
    assert not loop.steps
