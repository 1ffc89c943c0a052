"""A duration is counted in the bucket of its length, as Prometheus reads buckets."""

import asyncio
from contextlib import suppress

from driftlog_agents.foundation.histogram import (
    BOUNDS_S,
    FAILED,
    OK,
    VOID,
    Histogram,
    OperationTimes,
)


def test_each_duration_counts_in_its_bucket_and_in_all_above() -> None:
    """
    Bounds are upper ones and belong to their bucket, as in Prometheus; what is longer than all
    counts in the last.
    """
    durations = Histogram()
    for seconds in (0.0, BOUNDS_S[0], 0.0011, BOUNDS_S[-1], 99.0):
        durations.add(seconds)
    counts = dict(durations.buckets())

    assert [2, 2, 3, 4, 5] == [counts[b] for b in ("0.0005", "0.001", "0.002", "2.0", "+Inf")]
    assert 0.0005 + 0.0011 + 2.0 + 99.0 == durations.sum_s


def test_two_sessions_are_counted_together() -> None:
    """
    Neither changes by that.
    """
    one, other = Histogram(), Histogram()
    one.add(0.0005)
    other.add(0.3)
    both = dict((one + other).buckets())

    assert (1, 2) == (both["0.2"], both["0.5"])
    assert 0.3005 == (one + other).sum_s
    assert 1 == dict(one.buckets())["+Inf"]


def test_attempts_count_by_their_outcome() -> None:
    """
    An error that means another was faster is no failure; every error passes; a cancelled attempt
    does not count.
    """
    times, clock = OperationTimes((OK, VOID, FAILED)), iter(range(0, 100_000, 7_000))
    ends: list[type[BaseException] | None] = [None, KeyError, ValueError, asyncio.CancelledError]
    for error in ends:
        with suppress(*filter(None, ends)), times.attempt(lambda: next(clock), KeyError):
            if error is not None:
                raise error

    assert {OK: 1, VOID: 1, FAILED: 1} == times.outcomes
    assert (0, 3) == tuple(dict(times.durations.buckets())[bound] for bound in ("5.0", "10.0"))
