"""How long the event loop was busy with something else: the wait of every client.

A task that wakes up fifty times a second is late by as much.  The longest is remembered for one to
two minutes, so that a scrape once a minute misses none.  A machine that has no core for the
agent shows here, too.

Shell.
"""

import asyncio
import time
from typing import Final

_EVERY_S: Final = 0.02
"""Shorter: stalls are measured more exactly, and an idle agent uses more CPU (this is 0.1 %)."""

_REMEMBERED_S: Final = 60.0


class EventLoopMonitor:
    """Watches the loop that it runs in."""

    def __init__(self) -> None:
        self._longest_s = self._longest_before_s = 0.0
        self._since_s = 0.0

    @property
    def longest_stall_s(self) -> float:
        """Of the last minute, or of up to two."""
        return max(self._longest_s, self._longest_before_s)

    async def run(self) -> None:
        """For as long as the agent runs."""
        while True:
            due = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            now = time.monotonic()
            self.woke(now - due, now)

    def woke(self, late_s: float, now_s: float) -> None:
        """Late by *late_s*, at *now_s*."""
        if now_s - self._since_s >= _REMEMBERED_S:
            self._longest_before_s, self._longest_s = self._longest_s, 0.0
            self._since_s = now_s
        self._longest_s = max(self._longest_s, late_s)
