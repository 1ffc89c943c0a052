"""Limits uploads: what PUTs may cost, and what a store that is slow or refuses can take.

    `TokenBucket`   flushes a second, on average (also connections a second)
    `HedgeBudget`   when a slow PUT is sent a second time, and how many are
    `Backoff`       how long to wait after a failure
    `Throttle`      how many PUTs at once, and from when on, while the store refuses some

Pure.
"""

from collections import deque
from random import Random
from typing import Final

_ENOUGH_LATENCIES: Final = 20
"""A 95th percentile of fewer PUTs says nothing."""

_MAX_HEDGE_CREDIT: Final = 5.0
"""Hedges that may follow each other after a long time without one."""


_LOST: Final = 4.0
"""Times the 95th percentile.  A store that is slow for all raises that, and gets no second PUT."""


class TokenBucket:
    """At most *rate* a second over time, *burst* at once."""

    __slots__ = ("_burst", "_rate_per_ms", "_tokens", "_updated_ms")

    def __init__(self, rate_per_second: float, burst: float) -> None:
        assert rate_per_second > 0
        assert burst >= 1
        self._rate_per_ms = rate_per_second / 1000
        self._burst = burst
        self._tokens = burst
        self._updated_ms = 0.0

    def ready_at_ms(self, now_ms: float) -> float:
        """When a token is available: now, or later."""
        self._refill(now_ms)
        # The margin keeps rounding from asking for a tick that then finds 0.9999 tokens.
        missing = 1.0 - self._tokens
        return now_ms if missing <= 1e-9 else now_ms + missing / self._rate_per_ms + 1e-6

    def take(self, now_ms: float) -> bool:
        """Take a token; False: there is none."""
        self._refill(now_ms)
        if self._tokens < 1.0 - 1e-9:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now_ms: float) -> None:
        elapsed = max(0.0, now_ms - self._updated_ms)
        self._tokens = min(self._burst, self._tokens + elapsed * self._rate_per_ms)
        self._updated_ms = max(now_ms, self._updated_ms)


class HedgeBudget:
    """Decides when a slow PUT is sent a second time: a hedge.

    A hedge is due at the 95th percentile of the last PUTs, for at most *share* of all PUTs.  Beyond
    that share it is due when the PUT takes so much longer that its answer counts as lost: all later
    commits wait for it.

    Args:
        min_ms: no hedge is due before.
        lost_ms: no answer counts as lost before, nor before four times the 95th percentile.
    """

    __slots__ = ("_after_ms", "_credit", "_latencies_ms", "_lost_ms", "_min_ms", "_share")

    def __init__(self, share: float, min_ms: float, lost_ms: float) -> None:
        self._share = share
        self._min_ms = min_ms
        self._lost_ms = lost_ms
        self._credit = 0.0
        self._latencies_ms: deque[float] = deque(maxlen=200)
        self._after_ms: float | None = None

    def put(self) -> None:
        """A PUT is sent; a hedge counts, too."""
        self._credit = min(_MAX_HEDGE_CREDIT, self._credit + self._share)

    def take(self) -> None:
        """A hedge is sent, as `due_ms` allowed."""
        self._credit = max(0.0, self._credit - 1.0)

    def due_ms(self, began_ms: float) -> float | None:
        """When to hedge a PUT that began at *began_ms*; None: not at all, at present."""
        if self._after_ms is None:
            return None
        if self._credit < 1.0:
            return began_ms + max(self._lost_ms, _LOST * self._after_ms)
        return began_ms + self._after_ms

    def succeeded(self, elapsed_ms: float) -> None:
        """A PUT took *elapsed_ms*."""
        self._latencies_ms.append(elapsed_ms)
        if len(self._latencies_ms) >= _ENOUGH_LATENCIES:
            ordered = sorted(self._latencies_ms)
            self._after_ms = max(ordered[int(len(ordered) * 0.95)], self._min_ms)


class Backoff:
    """Waits that double from *first_ms* to *longest_ms*, with jitter."""

    __slots__ = ("_first_ms", "_longest_ms", "_rng")

    def __init__(self, first_ms: float, longest_ms: float, rng: Random) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._rng = rng

    def wait_ms(self, failures: int) -> float:
        """How long to wait after a failure that *failures* others preceded."""
        longest = min(self._longest_ms, self._first_ms * 2.0 ** min(failures, 16))
        return longest * self._rng.uniform(0.5, 1.0)


class Throttle:
    """Limits all uploads together: a store that refuses one asks for less of all of them."""

    __slots__ = ("_backoff", "_limit", "_max_uploads", "_refusals", "resume_at_ms")

    def __init__(self, max_uploads: int, backoff: Backoff) -> None:
        self._max_uploads = float(max_uploads)
        self._backoff = backoff
        self._limit = self._max_uploads
        self._refusals = 0
        self.resume_at_ms = 0.0
        """No upload begins before this time: the store has just refused one."""

    @property
    def limit(self) -> int:
        """Most uploads at once."""
        return max(1, int(self._limit))

    def refused(self, now_ms: float) -> None:
        """The store refused an upload: allow half as many at once, and none for a while."""
        self._limit = max(1.0, self._limit / 2)
        if now_ms >= self.resume_at_ms:  # one counts of those that ran together
            self.resume_at_ms = now_ms + self._backoff.wait_ms(self._refusals)
            self._refusals += 1

    def succeeded(self) -> None:
        """The store took an upload: slowly return to the full number."""
        self._limit = min(self._max_uploads, self._limit + 0.5)
        self._refusals = 0
