"""Limits connections: by their number, by address, and by their rate.

    accepted ──▶ refused? ──▶ too many: closed
                    │
                    └──▶ waits ──rate, addresses in turn──▶ served

Connections over the rate wait (Kafka's ``max.connection.creation.rate`` delays them, too), and the
addresses take turns: an address that opens thousands does not delay the others.

Pure.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from driftlog_agents.foundation.rate_limit import TokenBucket

_BURST_S: Final = 5
"""Connections of so many seconds may arrive at once after a quiet time: a fleet that restarts."""

C = TypeVar("C")


class ConnectionLimits(Generic[C]):
    """Counts connections, and keeps those that wait.

    Args:
        most: limit of all addresses together.
        per_address: limit of each address that has no override.
        rate: connections a second.
    """

    def __init__(
        self, *, most: int, per_address: int, overrides: Mapping[str, int], rate: float
    ) -> None:
        self.change(most=most, per_address=per_address, overrides=overrides, rate=rate)
        self._open: Counter[str] = Counter()
        self.total = 0
        self._waiting: dict[str, deque[C]] = {}
        """By address, in the order in which addresses have their turn."""

    def change(
        self, *, most: int, per_address: int, overrides: Mapping[str, int], rate: float
    ) -> None:
        """Take other limits; connections that are open stay open."""
        self._most = most
        self._per_address = per_address
        self._overrides = overrides
        self._bucket = TokenBucket(rate, max(1.0, rate * _BURST_S))

    def refused_by(self, address: str) -> str | None:
        """The config that refuses one more connection of *address*; None: it is counted."""
        if self.total >= self._most:
            return "max.connections"
        override = self._overrides.get(address)
        if override is not None:
            if self._open[address] >= override:
                return "max.connections.per.ip.overrides"
        elif self._open[address] >= self._per_address:
            return "max.connections.per.ip"
        self._open[address] += 1
        self.total += 1
        return None

    def left(self, address: str) -> None:
        """Uncount a connection of *address*, which is closed."""
        self.total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def wait(self, address: str, connection: C) -> None:
        """Queue *connection* until `next` returns it."""
        self._waiting.setdefault(address, deque()).append(connection)

    def next(self, now_ms: float, is_gone: Callable[[C], bool]) -> C | None:
        """The connection whose turn it is; None: none waits, or all wait until `ready_at_ms`.

        A connection that its client closes while it waits takes no turn: *is_gone* closes it here.
        """
        while self._waiting:
            address = next(iter(self._waiting))
            queue = self._waiting[address]
            if is_gone(queue[0]):
                queue.popleft()
                self.left(address)
                if not queue:
                    del self._waiting[address]
                continue
            if not self._bucket.take(now_ms):
                return None
            connection = queue.popleft()
            del self._waiting[address]
            if queue:
                self._waiting[address] = queue
            return connection
        return None

    def ready_at_ms(self, now_ms: float) -> float | None:
        """When `next` returns one; None: none waits."""
        return self._bucket.ready_at_ms(now_ms) if self._waiting else None

    def drain(self) -> list[C]:
        """Remove and return the connections that wait."""
        waiting = [connection for queue in self._waiting.values() for connection in queue]
        self._waiting.clear()
        return waiting
