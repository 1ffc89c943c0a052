"""A request that waits for long keeps no answered ones in memory, and each is timed out in time."""

from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.produce.timeouts import ProduceTimeouts
from driftlog_agents.network.slots import Slot

FOREVER_MS = 2**31 - 1


def few() -> ProduceTimeouts:
    """Answered requests are dropped sooner."""
    return ProduceTimeouts(cast(Broker, None), answered=1_000)


class Request:
    """A Produce request; *told* has those that timed out."""

    def __init__(self, told: list[Any], number: int = 0, *, done: bool = False) -> None:
        self.told = told
        self.number = number
        self.done = done

    def time_out(self) -> None:
        self.done = True
        self.told.append(self.number)


def slot(heard_ms: float) -> Slot:
    """The turn of a request that arrived then."""
    source = SimpleNamespace(heard_ms=heard_ms)
    return cast(Slot, SimpleNamespace(connection=SimpleNamespace(source=source)))


@pytest.mark.parametrize("per_read", [1, 100])
def test_answered_requests_behind_one_that_waits_are_not_kept(per_read: int) -> None:
    """
    It waits for weeks, and every other client is answered at once.  Requests of one read of a
    socket, one of which waits, count as well.
    """
    timed, alive = few(), WeakSet[Request]()
    first = Request([])
    timed.expect(slot(0), first, FOREVER_MS)
    waiting: list[Request] = []
    for read in range(10_000 // per_read):
        for number in range(per_read):
            request = Request([], done=number > 0 or read % 10 > 0)
            alive.add(request)
            if not request.done:
                waiting.append(request)
            timed.expect(slot(read), request, FOREVER_MS)
        if read % 5 == 0:
            timed.sweep(read)
    timed.sweep(10_000)

    assert len(alive) < 5_000
    assert set(waiting) <= set(alive)


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_a_request_without_time_gets_a_second(timeout_ms: int) -> None:
    """
    Kafka with one replica answers it with success; it was timed out by the next sweep.
    """
    timed, told = few(), list[int]()
    timed.expect(slot(0), Request(told, 7), timeout_ms)
    timed.sweep(999)
    early = list(told)
    timed.sweep(1_000)

    assert ([], [7]) == (early, told)


def test_a_request_is_timed_out_after_answered_ones_were_dropped() -> None:
    """
    Each once, in the order of their times, and none before its time.
    """
    timed, told = few(), list[int]()
    for number in range(5_000):
        waits = number % 1_000 == 0
        timed.expect(slot(number), Request(told, number, done=not waits), 1_000)
        if number % 100 == 0:
            timed.sweep(0)
    timed.sweep(2_999)
    early = list(told)
    timed.sweep(5_001)

    assert [0, 1_000] == early
    assert [0, 1_000, 2_000, 3_000, 4_000] == told
