"""Limits how often a topic is sealed on request: each seal creates an object, however small.

Pure.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

SEALS: Final = "driftlog.max.topic.seals.per.minute"

_MINUTE_MS: Final = 60_000.0


class SealQuota:
    """The seals of the last minute, by topic.

    Args:
        most: seals of one topic per minute.
        now_ms: a monotonic clock.
    """

    def __init__(self, most: int, now_ms: Callable[[], float]) -> None:
        self.most = most
        self._now_ms = now_ms
        self._seals: dict[str, deque[float]] = {}

    @property
    def topics(self) -> int:
        """The number of topics with a seal in the last minute."""
        return len(self._seals)

    def wait_s(self, topic: str) -> int:
        """0: count a seal of *topic*; else the seconds until one is allowed."""
        now_ms = self._now_ms()
        self._forget(now_ms)
        times = self._seals.pop(topic, deque())
        if len(times) >= self.most:
            wait_ms = times[-self.most] + _MINUTE_MS - now_ms
            self._seals[topic] = times
            return max(1, math.ceil(wait_ms / 1000))
        times.append(now_ms)
        self._seals[topic] = times
        return 0

    def _forget(self, now_ms: float) -> None:
        for topic, times in list(self._seals.items()):
            while times and times[0] <= now_ms - _MINUTE_MS:
                times.popleft()
            if not times:
                del self._seals[topic]
