"""Limits how often something that creates objects is asked for: seals of a topic, and imports.

Pure.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

SEALS: Final = "driftlog.max.topic.seals.per.minute"

_MINUTE_MS: Final = 60_000.0


class MinuteQuota:
    """What was asked for in the last minute, by name.

    Args:
        most: of one name per minute.
        now_ms: a monotonic clock.
    """

    def __init__(self, most: int, now_ms: Callable[[], float]) -> None:
        self.most = most
        self._now_ms = now_ms
        self._times: dict[str, deque[float]] = {}

    @property
    def names(self) -> int:
        """The number of names that were asked for in the last minute."""
        return len(self._times)

    def wait_s(self, name: str) -> int:
        """0: count a request for *name*; else the seconds until one is allowed."""
        now_ms = self._now_ms()
        self._forget(now_ms)
        times = self._times.pop(name, deque())
        if len(times) >= self.most:
            wait_ms = times[-self.most] + _MINUTE_MS - now_ms
            self._times[name] = times
            return max(1, math.ceil(wait_ms / 1000))
        times.append(now_ms)
        self._times[name] = times
        return 0

    def _forget(self, now_ms: float) -> None:
        for name, times in list(self._times.items()):
            while times and times[0] <= now_ms - _MINUTE_MS:
                times.popleft()
            if not times:
                del self._times[name]
