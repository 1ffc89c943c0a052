"""For how long an agent may believe that the bucket is its cluster's.

    a look at the newest cluster file is sent ──its own id──▶ commits and edits for 60 s from then
                                              ╳ another id──▶ none, ever again

`driftlog restore` gives the bucket to a new cluster: it creates the next cluster file, waits for
longer than an agent may believe an older look, and then reads what the bucket has.

1. The time counts from when the look was sent: a file that was created meanwhile is not in its
   answer.
2. The clock counts the time during which the machine was suspended, as a lease's does.
3. A look that found another cluster is final.
4. An agent looks while it flushes: the look is sent beside a PUT, and the commit finds its answer.

Pure.
"""

import math
from typing import Final

VALID_MS: Final = 60_000.0
"""Longer: a restore waits longer.  Shorter: commits wait sooner for a bucket that is slow."""

_DUE_MS: Final = VALID_MS / 2
"""Age of a look from which the next one is sent.  Longer: a slow answer delays a commit; shorter:
more requests."""


class BucketOwnership:
    """See the module; for one process."""

    __slots__ = ("_looked_ms", "other")

    def __init__(self) -> None:
        self._looked_ms = -math.inf
        """When the newest look that found the own cluster was sent."""
        self.other = ""
        """What a look found of another cluster; empty: none did."""

    def found_own(self, sent_ms: float) -> None:
        """A look that was sent at *sent_ms* found the own cluster."""
        self._looked_ms = max(self._looked_ms, sent_ms)

    def found_other(self, what: str) -> None:
        """A look found another cluster."""
        self.other = self.other or what

    def holds(self, now_ms: float) -> bool:
        """Whether the agent may commit and edit."""
        return not self.other and now_ms < self._looked_ms + VALID_MS

    def is_due(self, now_ms: float) -> bool:
        """Whether an agent that flushes looks again."""
        return not self.other and now_ms >= self._looked_ms + _DUE_MS
