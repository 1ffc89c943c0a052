"""Since when a store has not taken what we bring, and when to say so.

    failed ──▶ out ──▶ failed: said at once, then every ten seconds
                │
                └────▶ ended: something was taken

Pure.
"""

from typing import Final

_PACE_MS: Final = 10_000.0
"""Between two lines about one outage.  Less: the log of an hour holds little else."""

_RECENT_MS: Final = 120_000.0
"""Longer than any attempt takes until it is given up and made again."""


class FailureTracker:
    """What is known of the one that there is, or is not."""

    __slots__ = ("_ended_ms", "_failed_ms", "_told", "_told_ms", "error", "failures", "since_ms")

    def __init__(self) -> None:
        self.since_ms: float | None = None
        """When the first request that failed was sent; None: the last one was taken."""
        self.error = ""
        """What the store said last."""
        self.failures = 0
        """Requests that failed since."""
        self._failed_ms = 0.0
        self._ended_ms = 0.0
        self._told_ms: float | None = None
        self._told = False
        """Something was said of this one."""

    def lasted_ms(self, now_ms: float) -> float:
        """How long nothing has been taken; 0: it is."""
        return 0.0 if self.since_ms is None else now_ms - self.since_ms

    def goes_on(self, now_ms: float) -> bool:
        """Whether something has failed of late: what nobody tries any more may be taken again."""
        return self.since_ms is not None and now_ms - self._failed_ms < _RECENT_MS

    def failed(self, error: str, sent_ms: float, now_ms: float) -> bool:
        """A request that was sent then has failed; True: say so."""
        if self.since_ms is None:
            # What was taken while this one waited was taken.
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
        """A request was taken; True: that ends an outage of which something was said."""
        told = self.since_ms is not None and self._told
        self.since_ms = None
        self._ended_ms = now_ms
        return told
