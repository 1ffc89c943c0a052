"""As many batches as a limit admits may be parked: each has its turn, and few in one iteration."""

import asyncio
from uuid import UUID

from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import unpark


def make_log(partition: int) -> PartitionLog:
    return PartitionLog(topic="t", topic_id=UUID(int=1), partition=partition, leader_epoch=1)


class Work:
    """Batches that are resumed, each in a hundredth of a slice."""

    def __init__(self) -> None:
        self.resumed: dict[PartitionLog, list[int]] = {}
        self._now_s = 0.0
        measure_by(asyncio.get_running_loop(), lambda: self._now_s)

    def park(self, log: PartitionLog, number: int) -> None:
        """A batch waits."""
        log.parked.append(lambda: self._resume(log, number))

    def _resume(self, log: PartitionLog, number: int) -> None:
        self._now_s += SLICE_S / 100
        self.resumed.setdefault(log, []).append(number)

    @property
    def total(self) -> int:
        """Number of resumed batches."""
        return sum(map(len, self.resumed.values()))


async def test_few_of_many_parked_batches_are_resumed_in_one_iteration() -> None:
    """
    Of all partitions together; those of each in their order, with what parks meanwhile.
    """
    logs, work = [make_log(n) for n in range(2)], Work()
    for log in logs:
        for number in range(1_000):
            work.park(log, number)
    unpark(*logs)
    at_once = work.total
    for number in range(1_000, 1_010):
        work.park(logs[0], number)
    iterations = 0
    while any(log.parked for log in logs) and iterations < 100:
        iterations += 1
        await asyncio.sleep(0)

    assert 99 <= at_once <= 101
    assert iterations >= 19
    assert {logs[0]: list(range(1_010)), logs[1]: list(range(1_000))} == work.resumed


async def test_a_pause_stops_parked_batches_and_its_end_resumes_them() -> None:
    """
    A hand-over waits for the flush of those that were admitted; the end of a partition lets all go.
    """
    log, work = make_log(0), Work()
    for number in range(1_000):
        work.park(log, number)
    unpark(log)
    log.paused = True
    before = work.total
    for _ in range(10):
        await asyncio.sleep(0)
    paused = work.total
    log.close()
    unpark(log)
    for _ in range(20):
        await asyncio.sleep(0)

    assert 0 < before == paused < 1_000
    assert {log: list(range(1_000))} == work.resumed


async def test_a_partition_whose_producers_do_not_end_keeps_no_other_waiting() -> None:
    """
    A batch parks behind each that is resumed.
    """
    busy, log, work = make_log(0), make_log(1), Work()

    def come(number: int) -> None:
        work.park(busy, number)
        busy.parked.append(lambda: come(number + 1))

    come(0)
    work.park(log, 0)
    unpark(busy)
    unpark(log)
    for _ in range(10):
        await asyncio.sleep(0)
    busy.paused = True

    assert [0] == work.resumed[log]
    assert len(work.resumed[busy]) > 500
