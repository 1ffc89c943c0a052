"""Latencies that say something else than what clients see would hide a slow agent."""

import itertools

from driftlog_agents.handlers.common.request_times import RequestTimes
from driftlog_agents.protocol.api import ApiKey


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def test_the_timed_produce_requests_count_for_all() -> None:
    """
    Few are timed, and the histogram counts as many as were received up to the last timed one.
    """
    clock = Clock()
    times = RequestTimes(clock)
    timed: list[int] = []
    for number in range(1, 10_001):
        if number >= times.next_produce:
            timer = times.produce(number)
            clock.now_ms += 3
            timer.answered()
            timed.append(number)

    counts = dict(times.durations[ApiKey.PRODUCE].buckets())
    assert 500 < len(timed) < 750
    assert timed[-1] == counts["+Inf"] == counts["0.005"]
    assert counts["0.002"] == 0
    assert len({later - earlier for earlier, later in itertools.pairwise(timed)}) > 10


def test_a_request_that_is_skipped_stops_no_later_one() -> None:
    """
    The next one is timed in its place: the timed request may have been one without an answer.
    """
    times = RequestTimes(Clock())

    times.produce(40).answered()

    assert 40 < times.next_produce <= 70
    assert 40 == dict(times.durations[ApiKey.PRODUCE].buckets())["+Inf"]


def test_each_other_request_is_timed() -> None:
    """
    By its API.
    """
    clock = Clock()
    times = RequestTimes(clock)
    for wait_ms in (1, 600):
        timer = times.other(ApiKey.FETCH)
        clock.now_ms += wait_ms
        timer.answered()

    counts = dict(times.durations[ApiKey.FETCH].buckets())
    assert (1, 1, 2) == (counts["0.001"], counts["0.5"], counts["1.0"])
    assert 0 == dict(times.durations[ApiKey.PRODUCE].buckets())["+Inf"]
