"""Measures stalls of the event loop: every client waits for as long.

A task wakes up fifty times a second; its delay is the stall.  The longest stall is kept for one to
two minutes, so a scrape once a minute misses none.  A machine without a free core for the agent
causes stalls, too.

Shell.
"""

import asyncio
import time
from typing import Final

from driftlog_agents.foundation.histogram import Histogram

_EVERY_S: Final = 0.02
"""Shorter: stalls are measured more exactly, and an idle agent uses more CPU (this is 0.1 %)."""

_REMEMBERED_S: Final = 60.0


class EventLoopMonitor:
    """Measures the loop that `run` runs in."""

    def __init__(self) -> None:
        self._longest_s = self._longest_before_s = 0.0
        self._since_s = 0.0
        self.delays = Histogram()
        """Every delay."""

    @property
    def longest_stall_s(self) -> float:
        """The longest stall of the last one to two minutes, in seconds."""
        return max(self._longest_s, self._longest_before_s)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            now = time.monotonic()
            self.woke(now - due, now)

    def woke(self, late_s: float, now_s: float) -> None:
        """Record a delay of *late_s* at *now_s*."""
        if now_s - self._since_s >= _REMEMBERED_S:
            self._longest_before_s, self._longest_s = self._longest_s, 0.0
            self._since_s = now_s
        self._longest_s = max(self._longest_s, late_s)
        self.delays.add(max(late_s, 0.0))
