"""Batches that wait for admission: for the thread that rewrites them, or for their partition.

    Produce ──▶ may a batch have to wait? ──no──▶ admitted
                         │
                         └─yes─▶ full? ──no──▶ counted ──▶ rewritten, or loaded ──▶ admitted
                                   └─yes─▶ its connection waits for room

The room is full for an address whose batches hold as much as is free.  So one address leaves half
of it to the others, two leave a third; and who waits, waits for its own batches, in turn.

Nobody waits for long: the batches of one client may take hours of a thread, and the end of a client
that has left is behind all that it sent.  When a connection's turn comes after `LONGEST_MS` it is
closed, and a batch with acks=0 is refused; other clients have given their requests up by then.

The agent reads no more of a connection while 1 MiB of its batches waits.

So a slow topic delays no other topic, and slows down its own producers.
Source: dynamic thresholds (Choudhury, Hahne: IEEE/ACM ToN 1998).

Shell.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.handlers.produce.waiters import ProduceWaiter
from driftlog_agents.network.client_connection import ClientConnection

_MOST: Final = "driftlog.max.waiting.batch.bytes"

LONGEST_MS: Final = 30_000
"""How long a connection waits for room, and then a batch with acks=0 for its turn: as long as the
clients' default ``request.timeout.ms``."""

_BESIDE_BYTES: Final = 1_024
"""Memory of a waiting batch besides its bytes."""

_LITTLE_BYTES: Final = 256 * 1024
"""A smaller batch is copied: otherwise it would keep its frame in memory."""


def own_memory(records: memoryview) -> memoryview:
    """The same bytes, in memory of at most about twice their size."""
    if len(records) < _LITTLE_BYTES or len(records.obj) > 2 * len(records):  # type: ignore[arg-type]
        return memoryview(bytearray(records))
    return records


_Waiting = tuple[float, Callable[[], None]]
"""Since when (ms), and what continues."""


class WaitingBatches:
    """Counts the waiting batches of one agent; without room for them, connections wait."""

    def __init__(self, limits: Limits, refusals: Refusals, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._most_bytes = limits.driftlog_max_waiting_batch_bytes
        self._refusals = refusals
        self.held_bytes = 0
        self.scarce = False
        """Whether it may be full for an address: for one that holds everything."""
        self._held_by: dict[str, int] = {}
        """Bytes of each address that has batches here."""
        self._connections = defaultdict[str, dict[ClientConnection, _Waiting]](dict)
        """The connections that wait for room, by address."""
        self._looks = False
        """Whether `_next` is to be called."""

    def full(self, connection: ClientConnection) -> bool:
        """Whether *connection* waits for room if its next batch may have to wait."""
        return self._is_full(connection.client.address)

    def _is_full(self, address: str) -> bool:
        return self._held_by.get(address, 0) + self.held_bytes >= self._most_bytes

    def add(self, size_bytes: int, waiter: ProduceWaiter, connection: ClientConnection) -> None:
        """Count a batch that starts to wait."""
        held_bytes = size_bytes + _BESIDE_BYTES + waiter.waits()
        self._count(connection.client.address, held_bytes)
        connection.batches_wait(held_bytes)

    def remove(self, size_bytes: int, waiter: ProduceWaiter, connection: ClientConnection) -> None:
        """Count off a batch that waits no longer."""
        held_bytes = size_bytes + _BESIDE_BYTES + waiter.waits_no_longer()
        self._count(connection.client.address, -held_bytes)
        connection.on_loop(partial(connection.batches_wait, -held_bytes))
        if self._connections and not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._next)

    def _count(self, address: str, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self.scarce = 2 * self.held_bytes >= self._most_bytes
        held_by = self._held_by.pop(address, 0) + more_bytes
        if held_by:
            self._held_by[address] = held_by

    def wait(self, connection: ClientConnection) -> None:
        """There is no room: *connection* continues when there is."""
        self._wait(connection, connection.take_rest)

    def _wait(self, connection: ClientConnection, go_on: Callable[[], None]) -> None:
        waiting = self._connections[connection.client.address]
        if connection not in waiting:
            self._refusals.count(_MOST)
            waiting[connection] = self._now_ms(), go_on

    def leave(self, connection: ClientConnection) -> None:
        """*connection* no longer waits for room."""
        address = connection.client.address
        if waiting := self._connections.get(address):
            waiting.pop(connection, None)
            if not waiting:
                del self._connections[address]

    async def room(self, connection: ClientConnection) -> None:
        """Wait until there is room, or *connection* is closed; for a request in slices."""
        while self.full(connection) and not connection.closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            go_on = partial(_go_on, turn)
            self._wait(connection, go_on)
            connection.on_close.add(go_on)
            try:
                await turn
            finally:
                connection.on_close.discard(go_on)
                self.leave(connection)

    def _next(self) -> None:
        self._looks = False
        for address in list(self._connections):
            while address in self._connections and not self._is_full(address):
                connection, (since_ms, go_on) = next(iter(self._connections[address].items()))
                self.leave(connection)
                if self._now_ms() - since_ms > LONGEST_MS:
                    connection.hang_up(
                        "produce_refused",
                        f"it has waited {LONGEST_MS // 1000} s for room for batches that wait",
                    )
                else:
                    connection.on_loop(go_on)


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
