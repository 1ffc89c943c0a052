"""A request whose connection is not read on until it is admitted: a large Produce.

    frame ──▶ room to decode it? ──▶ decoded ──▶ [its turn, and room for its answer?] ──▶ admitted
                                                                                            │
              what came behind it is taken from here on ◀───────────────────────────────────┘

It begins at once and not in its turn: producers pipeline.  It waits for its turn where its answer
is large, or where its client has answers to take.

Shell.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from driftlog_agents.network.answers import SMALL_BYTES
from driftlog_agents.network.queued_requests import QueuedRequest
from driftlog_agents.network.slots import Buffer

if TYPE_CHECKING:
    from driftlog_agents.network.connection import Connection
    from driftlog_agents.network.queued_requests import Begin, RequestQueue


class HoldingUp(QueuedRequest):
    """One of them.

    Args:
        cost_bytes: what it comes to when it is decoded, beside its frame.
    """

    __slots__ = ("_has_room",)

    def __init__(
        self,
        connection: "Connection",
        queue: "RequestQueue",
        frame: memoryview,
        cost_bytes: int,
        begin: "Begin",
    ) -> None:
        super().__init__(connection, queue, frame, cost_bytes // len(frame), begin)
        self._has_room = False

    async def room(self, least_bytes: int, most_bytes: int) -> None:
        """Return when its answer, which comes to so many bytes, may be made; or when nobody waits
        for it any more."""
        connection = self.connection
        if least_bytes <= SMALL_BYTES and not connection.answers.held_bytes:
            return
        woken = asyncio.Event()
        connection.on_close.add(woken.set)
        try:
            if not connection.is_turn_of(self):
                self.begin = woken.set
                await woken.wait()
                woken.clear()
            self._has_room = True
            if not connection.closed and not connection.answers.room(most_bytes, woken.set):
                await woken.wait()
        finally:
            connection.on_close.discard(woken.set)

    def keep(self, size_bytes: int) -> None:
        """It is admitted: its frame is the log's, and it holds *size_bytes* until it is
        answered."""
        less, self.held_bytes = self.held_bytes - size_bytes, size_bytes
        self._queue.budget.done(self, less)
        self._queue.look()

    def respond(self, answer: Sequence[Buffer]) -> None:
        assert self.answer is None, "answered twice"
        self.answer = answer
        self.connection.answers.made(sum(map(len, answer)), claimed=self._has_room)
        self.connection.answered()
