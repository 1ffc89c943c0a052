"""When a partition whose rewrite failed, or that another rewrites, is tried again.

Pure.
"""

from collections.abc import Callable, Iterable
from typing import Final

from driftlog_agents.log.compaction.sealed_log import SealedLog

_SHORTEST_BACKOFF_MS: Final = 100.0
_LONGEST_WAIT_MS: Final = 3_600_000.0
"""A damaged or missing segment is read again after a time that doubles up to this."""


_BUSY_MS: Final = 300_000.0
"""Whether another still rewrites a partition is read again after this at the latest: it may end
early.  Longer: fewer requests."""


class RewriteAttempts:
    """See the module.

    Args:
        backoff_ms: the first wait; the longest one where a store gives no answer.  It may change.
    """

    def __init__(self, backoff_ms: Callable[[], float]) -> None:
        self._wanted_ms = backoff_ms
        self._waits: dict[SealedLog, tuple[float, float]] = {}
        """Until when a partition waits, and how long."""

    @property
    def backoff_ms(self) -> float:
        """The first wait now."""
        return max(self._wanted_ms(), _SHORTEST_BACKOFF_MS)

    def waits(self, log: SealedLog, now_ms: float) -> bool:
        """Whether *log* is not tried now."""
        return log in self._waits and self._waits[log][0] > now_ms

    def failed(self, log: SealedLog, now_ms: float, *, answered: bool = False) -> None:
        """A rewrite failed; *answered*: by damage, which lasts longer than the fault of a store."""
        longest_ms = max(_LONGEST_WAIT_MS if answered else 0.0, self.backoff_ms)
        _, before_ms = self._waits.get(log, (0.0, self.backoff_ms / 2))
        wait_ms = min(2 * before_ms, longest_ms)
        self._waits[log] = now_ms + wait_ms, wait_ms

    def busy(self, log: SealedLog, now_ms: float, left_ms: float) -> None:
        """Another rewrites *log* for *left_ms* at most."""
        self._waits[log] = now_ms + min(left_ms, _BUSY_MS), self.backoff_ms / 2

    def succeeded(self, log: SealedLog) -> None:
        """A rewrite was made."""
        self._waits.pop(log, None)

    def keep(self, logs: Iterable[SealedLog]) -> None:
        """Forget all partitions but *logs*."""
        self._waits = {log: self._waits[log] for log in logs if log in self._waits}
