"""Latencies that say something else than what clients see would hide a slow agent."""

from driftlog_agents.handlers.common.request_times import RequestTimes
from driftlog_agents.protocol.api import ApiKey


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def test_a_timed_produce_request_counts_for_those_before_it() -> None:
    """
    The histogram counts as many as were received up to the last timed one.
    """
    clock = Clock()
    times = RequestTimes(clock)
    for number, wait_ms in ((1, 3), (40, 30), (41, 3)):
        timer = times.produce(number)
        clock.now_ms += wait_ms
        timer.answered()

    counts = dict(times.durations[ApiKey.PRODUCE].buckets())
    assert [0, 2, 2, 41] == [counts[bound] for bound in ("0.002", "0.005", "0.02", "0.05")]
    assert 41 == counts["+Inf"]


def test_each_other_request_is_timed() -> None:
    """
    By its API.
    """
    clock = Clock()
    times = RequestTimes(clock)
    for wait_ms in (1, 600):
        timer = times.other(ApiKey.FETCH, clock.now_ms)
        clock.now_ms += wait_ms
        timer.answered()

    counts = dict(times.durations[ApiKey.FETCH].buckets())
    assert (1, 1, 2) == (counts["0.001"], counts["0.5"], counts["1.0"])
    assert 0 == dict(times.durations[ApiKey.PRODUCE].buckets())["+Inf"]
