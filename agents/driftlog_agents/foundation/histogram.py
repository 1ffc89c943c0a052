"""Durations, counted in the buckets of a Prometheus histogram.

Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Upper bounds of the buckets, in seconds; one more bucket has none."""

LONG_BOUNDS_S: Final = (*BOUNDS_S[4:], 5.0, 10.0, 20.0, 60.0, 300.0, 1800.0)
"""The same, for work that may take minutes."""

OK: Final = "ok"
REFUSED: Final = "refused"
UNANSWERED: Final = "unanswered"
VOID: Final = "void"
FAILED: Final = "failed"
"""Outcomes; others have their own names.  UNANSWERED: it may have happened."""


class Histogram:
    """Counts durations.

    Args:
        bounds: the upper bounds of the buckets.
    """

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count one duration, or *count* of the same length."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self.sum_s += seconds * count

    def __add__(self, other: "Histogram") -> "Histogram":
        """The sum of both, which have the same bounds."""
        assert self._bounds == other._bounds
        total = Histogram(self._bounds)
        total._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        total.sum_s = self.sum_s + other.sum_s
        return total

    def buckets(self) -> Iterator[tuple[str, float]]:
        """(upper bound, number of durations up to it), as Prometheus expects them."""
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total


class OperationTimes:
    """Counts the attempts of one kind of work by their outcome, and how long they took.

    Args:
        outcomes: each has a count from the start.
    """

    def __init__(
        self, outcomes: Sequence[str] = (OK, FAILED), bounds: Sequence[float] = LONG_BOUNDS_S
    ) -> None:
        self.outcomes: Counter[str] = Counter(dict.fromkeys(outcomes, 0))
        self.durations = Histogram(bounds)

    def ended(self, outcome: str, took_ms: float) -> None:
        """Count one attempt."""
        self.outcomes[outcome] += 1
        self.durations.add(took_ms / 1000)

    @contextmanager
    def attempt(self, now_ms: Callable[[], float], *void: type[Exception]) -> Iterator[None]:
        """Count the work of a `with` statement: OK; VOID for the errors *void*; FAILED for others.
        A cancelled attempt does not count."""
        began_ms = now_ms()
        try:
            yield
        except void:
            self.ended(VOID, now_ms() - began_ms)
            raise
        except Exception:
            self.ended(FAILED, now_ms() - began_ms)
            raise
        self.ended(OK, now_ms() - began_ms)
