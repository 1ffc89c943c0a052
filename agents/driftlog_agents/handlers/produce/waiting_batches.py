"""Batches that wait for admission: for the thread that rewrites them, or for their partition.

    Produce ──▶ may a batch have to wait? ──no──▶ admitted
                         │
                         └─yes─▶ full? ──no──▶ counted ──▶ rewritten, or loaded ──▶ admitted
                                   └─yes─▶ its connection waits for room, in turn

The agent reads no more of a connection while 1 MiB of its batches waits.

So a slow topic delays no other topic, and slows down its own producers.

Shell.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.handlers.produce.waiters import ProduceWaiter
from driftlog_agents.network.client_connection import ClientConnection

_MOST: Final = "driftlog.max.waiting.batch.bytes"

_BESIDE_BYTES: Final = 1_024
"""Memory of a waiting batch besides its bytes."""

_LITTLE_BYTES: Final = 256 * 1024
"""A smaller batch is copied: otherwise it would keep its frame in memory."""


def own_memory(records: memoryview) -> memoryview:
    """The same bytes, in memory of at most about twice their size."""
    if len(records) < _LITTLE_BYTES or len(records.obj) > 2 * len(records):  # type: ignore[arg-type]
        return memoryview(bytearray(records))
    return records


class WaitingBatches:
    """Counts the waiting batches of one agent; at the limit, connections wait for room."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self._most_bytes = limits.driftlog_max_waiting_batch_bytes
        self._refusals = refusals
        self.held_bytes = 0
        self.full = False
        """The limit is reached: a connection whose next batch may have to wait waits for room."""
        self._connections: dict[ClientConnection, None] = {}
        self._requests: deque[asyncio.Future[None]] = deque()

    def add(self, size_bytes: int, waiter: ProduceWaiter, connection: ClientConnection) -> None:
        """Count a batch that starts to wait."""
        held_bytes = size_bytes + _BESIDE_BYTES + waiter.waits()
        self.held_bytes += held_bytes
        self.full = self.held_bytes >= self._most_bytes
        connection.batches_wait(held_bytes)

    def remove(self, size_bytes: int, waiter: ProduceWaiter, connection: ClientConnection) -> None:
        """Count off a batch that waits no longer."""
        held_bytes = size_bytes + _BESIDE_BYTES + waiter.waits_no_longer()
        self.held_bytes -= held_bytes
        connection.on_loop(partial(connection.batches_wait, -held_bytes))
        if self.full and self.held_bytes < self._most_bytes:
            self.full = False
            asyncio.get_running_loop().call_soon(self._next)

    def wait(self, connection: ClientConnection) -> None:
        """The limit is reached: *connection* continues when there is room."""
        if connection not in self._connections:
            self._refusals.count(_MOST)
            self._connections[connection] = None

    def leave(self, connection: ClientConnection) -> None:
        """*connection* no longer waits for room."""
        self._connections.pop(connection, None)

    async def room(self) -> None:
        """Wait until there is room; for a request that is admitted in slices."""
        while self.full:
            self._refusals.count(_MOST)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._requests.append(turn)
            await turn

    def _next(self) -> None:
        while self._requests and not self.full:
            turn = self._requests.popleft()
            if not turn.done():
                turn.set_result(None)
        while self._connections and not self.full:
            connection = next(iter(self._connections))
            del self._connections[connection]
            connection.on_loop(connection.take_rest)
