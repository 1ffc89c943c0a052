"""Tracks the outages of a store: since when it takes no requests, and when to log that.

    failed ──▶ out ──▶ failed: logged at once, then every ten seconds
                │
                └────▶ ended: the store took a request

Pure.
"""

from typing import Final

_PACE_MS: Final = 10_000.0
"""Between two lines about one outage.  Shorter: the log of an hour holds little else."""

_RECENT_MS: Final = 120_000.0
"""Longer than any attempt takes until the next attempt replaces it."""


class FailureTracker:
    """The outage of one store, if it has one."""

    __slots__ = ("_ended_ms", "_failed_ms", "_told", "_told_ms", "error", "failures", "since_ms")

    def __init__(self) -> None:
        self.since_ms: float | None = None
        """When the first failed request was sent; None: the last request was taken."""
        self.error = ""
        """The last error of the store."""
        self.failures = 0
        """Failed requests of this outage."""
        self._failed_ms = 0.0
        self._ended_ms = 0.0
        self._told_ms: float | None = None
        self._told = False
        """Whether this outage has been logged."""

    def lasted_ms(self, now_ms: float) -> float:
        """How long the outage has lasted; 0: there is none."""
        return 0.0 if self.since_ms is None else now_ms - self.since_ms

    def goes_on(self, now_ms: float) -> bool:
        """Whether a request failed recently: a store that gets no requests may have recovered."""
        return self.since_ms is not None and now_ms - self._failed_ms < _RECENT_MS

    def failed(self, error: str, sent_ms: float, now_ms: float) -> bool:
        """A request that was sent at *sent_ms* failed; True: log that."""
        if self.since_ms is None:
            # The outage begins after the last request that the store took.
            self.since_ms = max(sent_ms, self._ended_ms)
            self.failures = 0
            self._told = False
        self.failures += 1
        self.error = error
        self._failed_ms = now_ms
        if self._told_ms is not None and now_ms - self._told_ms < _PACE_MS:
            return False
        self._told_ms = now_ms
        self._told = True
        return True

    def ended(self, now_ms: float) -> bool:
        """The store took a request; True: log the end of an outage that was logged."""
        told = self.since_ms is not None and self._told
        self.since_ms = None
        self._ended_ms = now_ms
        return told
