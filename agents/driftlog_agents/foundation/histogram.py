"""Durations, counted in the buckets of a Prometheus histogram.

Pure.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Upper bounds of the buckets, in seconds; one more bucket has none."""


class Histogram:
    """Counts durations."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def __add__(self, other: "Histogram") -> "Histogram":
        """The sum of both."""
        total = Histogram()
        total._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        total.sum_s = self.sum_s + other.sum_s
        return total

    def buckets(self) -> Iterator[tuple[str, float]]:
        """(upper bound, number of durations up to it), as Prometheus expects them."""
        total = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total
