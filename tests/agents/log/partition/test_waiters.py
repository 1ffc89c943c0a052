"""One commit may concern a hundred thousand fetches, and as many batches may be parked: each has
its turn, and few in one iteration.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from uuid import UUID

import pytest

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import FetchNews, unpark


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


# ── Parked batches ──


async def test_few_of_many_parked_batches_are_resumed_in_one_iteration() -> None:
    """
    Of all partitions together; those of each in their order, with what parks meanwhile.
    """
    logs, resumed = [make_log(n) for n in range(2)], [list[int]() for _ in range(2)]

    def park(log: PartitionLog, number: int) -> None:
        log.parked.append(lambda: resumed[log.partition].append(number))

    for log in logs:
        for number in range(1_000):
            park(log, number)
    unpark(*logs)
    at_once = sum(map(len, resumed))
    for number in range(1_000, 1_010):
        park(logs[0], number)
    iterations = 0
    while any(log.parked for log in logs) and iterations < 100:
        iterations += 1
        await asyncio.sleep(0)

    assert 0 < at_once <= 250
    assert iterations >= 7
    assert [list(range(1_010)), list(range(1_000))] == resumed


async def test_a_pause_stops_parked_batches_and_its_end_resumes_them() -> None:
    """
    A hand-over waits for the flush of those that were admitted; the end of a partition lets all go.
    """
    log, resumed = make_log(0), list[int]()
    for number in range(1_000):
        log.parked.append(lambda number=number: resumed.append(number))  # type: ignore[misc]
    unpark(log)
    log.paused = True
    before = len(resumed)
    for _ in range(10):
        await asyncio.sleep(0)
    paused = len(resumed)
    log.close()
    unpark(log)
    for _ in range(10):
        await asyncio.sleep(0)

    assert 0 < before == paused < 1_000
    assert list(range(1_000)) == resumed
