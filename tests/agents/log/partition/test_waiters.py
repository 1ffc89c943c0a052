"""As many batches as a limit admits may be parked: each has its turn, and few in one iteration."""

import asyncio
from uuid import UUID

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import unpark


def make_log(partition: int) -> PartitionLog:
    return PartitionLog(topic="t", topic_id=UUID(int=1), partition=partition, leader_epoch=1)


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
