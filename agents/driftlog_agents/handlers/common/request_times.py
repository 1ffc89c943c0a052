"""How long requests take, from their frame to their answer, by API.

    a Produce          ten a second are timed, and each counts for all since the last timed one
    another request    is timed with its wait for its turn; a Fetch with its wait for records

Timing each Produce would take some percent of its CPU.  A request whose connection closes first
does not count.

Pure.
"""

from collections.abc import Callable

from driftlog_agents.foundation.histogram import Histogram
from driftlog_agents.protocol.api import ApiKey


class RequestTimer:
    """One request that is timed."""

    __slots__ = ("_began_ms", "_count", "_durations", "_now_ms")

    def __init__(
        self, durations: Histogram, now_ms: Callable[[], float], began_ms: float, count: int = 1
    ) -> None:
        self._durations = durations
        self._now_ms = now_ms
        self._count = count
        self._began_ms = began_ms

    def answered(self) -> None:
        """The answer is made."""
        self._durations.add((self._now_ms() - self._began_ms) / 1000, self._count)


class RequestTimes:
    """See the module."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.now_ms = now_ms
        self.durations: dict[ApiKey, Histogram] = {ApiKey.PRODUCE: Histogram()}
        self._last_produce = 0
        """The number of the last timed Produce request."""

    def produce(self, number: int) -> RequestTimer:
        """Time the Produce request with this *number*."""
        counted, self._last_produce = number - self._last_produce, number
        return RequestTimer(self.durations[ApiKey.PRODUCE], self.now_ms, self.now_ms(), counted)

    def other(self, key: ApiKey, received_ms: float) -> RequestTimer:
        """Time a request that is no Produce, and was received at *received_ms*."""
        durations = self.durations.get(key)
        if durations is None:
            durations = self.durations[key] = Histogram()
        return RequestTimer(durations, self.now_ms, received_ms)
