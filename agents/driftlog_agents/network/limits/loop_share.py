"""How much of several batches is admitted in one iteration of the event loop, of all connections.

    several batches ──▶ used up? ──no──▶ admitted, and counted
                           │
                           └─yes─▶ the connection waits: in the next iterations, one after the other

Other requests do not wait: a socket brings no more of one batch at once than is quickly done.

Shell.
"""

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from driftlog_agents.network.connection import Connection

MOST: Final = 2_000
"""Topics and batches of one iteration, or of one request: some 7 ms."""


class LoopShare:
    """Counts batches; of one event loop."""

    __slots__ = ("_batches", "_loop", "_waiting", "used_up")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._batches = 0
        self._waiting: dict[Connection, None] = {}
        self.used_up = False
        """Nothing more is admitted in this iteration."""

    def use(self, batches: int) -> None:
        """So many, at least one, are admitted now."""
        if not self._batches:
            self._loop.call_soon(self._next)
        self._batches += batches
        self.used_up = self._batches >= MOST

    def wait(self, connection: "Connection") -> None:
        """It is used up: *connection* goes on in one of the next iterations."""
        self._waiting[connection] = None

    def leave(self, connection: "Connection") -> None:
        """*connection* is gone."""
        self._waiting.pop(connection, None)

    def _next(self) -> None:
        self._batches = 0
        self.used_up = False
        while self._waiting and not self.used_up:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            connection.on_loop(connection.take_rest)
