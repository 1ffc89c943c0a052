"""Durations in buckets."""

from driftlog_agents.log.durations import BOUNDS_S, Durations


def test_each_duration_counts_in_its_bucket_and_in_all_above() -> None:
    """
    Bounds are upper ones and belong to their bucket, as in Prometheus; what is longer than all
    counts in the last.
    """
    durations = Durations()
    for seconds in (0.0, BOUNDS_S[0], 0.0011, BOUNDS_S[-1], 99.0):
        durations.add(seconds)
    counts = dict(durations.buckets())

    assert [2, 2, 3, 4, 5] == [counts[b] for b in ("0.0005", "0.001", "0.002", "2.0", "+Inf")]
    assert 0.0005 + 0.0011 + 2.0 + 99.0 == durations.sum_s
