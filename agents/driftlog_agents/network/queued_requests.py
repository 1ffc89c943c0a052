"""Requests other than Produce, from the frame to the answer: what they hold, and when they begin.

    frame ──▶ its turn? ──▶ room to decode it? ──▶ begun ──▶ answered: it holds nothing
                 │                  │
                 └── as it came     └── as it came

* A frame is kept as it came until it is its turn, and decoded then.  Of one connection at most one
  request is begun, as with Kafka.
* Its bytes count from the frame until the answer (`queued.max.request.bytes`), and what it comes to
  when it is decoded from its beginning on; large ones wait for that room, in order.  One that waits
  for news counts as what it keeps; where such requests keep half of all there is, it does not wait.
* Requests count while they wait for their turn (`queued.max.requests`), as Kafka's queue counts
  those that no handler has taken: a consumer that waits for records is none of them.  While more
  wait, or while the bytes are too many, each connection is read only when it has no unanswered
  request: clients that ask one thing at a time notice nothing, those that pipeline wait.
* Produce is not counted in these: the log bounds what its frames hold, and a Produce that waits for
  a flush must not wait for a Fetch.
* Unanswered requests of all kinds are counted (`driftlog.max.unanswered.requests`): while there are
  too many, each connection is read only when it has few.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import work_for
from driftlog_agents.network.client_connection import ClientConnection
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.network.slots import Slot

REQUEST_BYTES: Final = 1_024
"""What a request holds beside its frame."""

_SMALL_BYTES: Final = 32 * 1024
"""Requests that come to no more when they are decoded never wait for that room."""

_KEPT_SHARE: Final = 2
"""Of the bytes of all requests, one part in so many is for those that wait for news."""

_COPIED_BYTES: Final = 32 * 1024
"""Frames up to here share what a socket brought at once: those that wait are copied out of it."""

Begin = Callable[["QueuedRequest", memoryview], None]
"""Decodes a frame and runs it."""


class RequestQueue:
    """The requests of all connections.

    Args:
        max_requests: more wait for their turn only where each connection has one.
        max_unanswered: more wait to be answered only where each connection has few.
        budget: of their bytes.
    """

    def __init__(self, max_requests: int, max_unanswered: int, budget: MemoryBudget) -> None:
        self._max_requests = max_requests
        self._max_unanswered = max_unanswered
        self.budget = budget
        self.waiting = 0
        """Requests that wait for their turn."""
        self.kept_bytes = 0
        """Of requests that are decoded and wait for news."""
        self.unanswered = 0
        """Requests of all kinds."""
        self.held_up: dict[ClientConnection, None] = {}
        """Connections that are not read because there is too much of all."""
        self._loop = asyncio.get_running_loop()
        self._looking = False

    @property
    def too_many(self) -> bool:
        """Whether connections that have more than a few unanswered requests are not read."""
        return self.unanswered >= self._max_unanswered

    @property
    def full(self) -> bool:
        """Whether connections that have an unanswered request other than Produce are not read."""
        return self.waiting > self._max_requests or self.budget.pressed

    @property
    def full_by(self) -> str:
        """The config for which it is `full`."""
        many = self.waiting > self._max_requests
        return "queued.max.requests" if many else "queued.max.request.bytes"

    def answered(self, count: int) -> None:
        """So many are answered, or nobody's."""
        self.unanswered -= count
        self.look()

    def look(self) -> None:
        """Something went: read those again that may be, one each turn of the loop."""
        if self.held_up and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self.held_up and not self.full and not self.too_many:
            connection = next(iter(self.held_up))
            del self.held_up[connection]
            connection.reconsider()
            self.look()


class QueuedRequest(Slot):
    """One of them; also the `Holder` of what it holds."""

    __slots__ = (
        "_begin",
        "_cost",
        "_frame",
        "_kept_bytes",
        "_queue",
        "_waits",
        "_weight",
        "held_bytes",
        "runs",
        "trusted",
    )

    queued = claims = True

    def __init__(
        self,
        connection: ClientConnection,
        queue: RequestQueue,
        frame: memoryview,
        weight: int,
        begin: Begin,
    ) -> None:
        super().__init__(connection)
        self._queue = queue
        self._frame: memoryview | None = frame
        self._weight = weight
        self._begin = begin
        self._cost = 0
        self._waits = False
        self._kept_bytes = 0
        self.runs = 0
        """Tasks that have it: they go on when the connection is gone, and it holds what it held."""
        self.trusted = False
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Count *size_bytes*, which are there (negative: no longer)."""
        self.held_bytes += size_bytes
        self._queue.budget.note(size_bytes)

    def take_over(self, size_bytes: int) -> None:
        """The same of what is counted."""
        self.held_bytes += size_bytes

    def keep(self, size_bytes: int) -> bool:
        """It is decoded, and is to wait for news: *size_bytes* are what it holds until it is
        answered.  False: those that wait hold so much that it may not."""
        queue = self._queue
        most = queue.budget.limit_bytes // _KEPT_SHARE
        if size_bytes > _SMALL_BYTES and queue.kept_bytes + size_bytes > most:
            return False
        queue.kept_bytes += size_bytes
        self._kept_bytes = size_bytes
        self.hold(size_bytes - self.held_bytes)
        queue.budget.done(self, 0)
        queue.look()
        return True

    def wait(self) -> None:
        """It is not its turn."""
        assert self._frame is not None
        self._queue.waiting += 1
        self._waits = True
        if len(self._frame) <= _COPIED_BYTES:
            self._frame = memoryview(bytes(self._frame))
        self.begin = partial(self.connection.share.wait, self)

    @property
    def client(self) -> Client:
        """Whose it is."""
        return self.connection.client

    def take_turn(self) -> None:
        """It has waited, and its turn has come."""
        self.connection.on_loop(self._begin_now)

    def _begin_now(self) -> None:
        if self._waits:
            self._waits = False
            self._queue.waiting -= 1
            self.start()
            self._queue.look()

    def start(self) -> None:
        """Its turn: begin, now or when there is room for what it is when it is decoded."""
        assert self._frame is not None
        size = len(self._frame)
        cost = size * self._weight
        if cost > _SMALL_BYTES:
            self.trusted = self.connection.frames_trusted
            self._cost = cost
            if not self._queue.budget.take(self, cost):
                if size <= _COPIED_BYTES:
                    self._frame = memoryview(bytes(self._frame))
                return
            self.held_bytes += cost
        else:
            self.hold(cost)
        self._run()

    def go_on(self) -> None:
        """The budget has counted what it waited for."""
        self.held_bytes += self._cost
        self.connection.soon(self._run)

    def _run(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None and not self.connection.closed:
            self._begin(self, frame)

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do *work* in a task: what it holds is counted until that has ended, whoever leaves."""
        if self.connection.closed:
            return
        self.runs += 1
        work_for(self.connection.client)
        begun = work()
        del work  # it has the frame, which is given up when it is decoded
        try:
            await begun
        finally:
            self.runs -= 1
            if self.connection.closed and not self.runs:
                self.release()

    def release(self) -> None:
        """It holds nothing any more."""
        if self._waits:
            self._waits = False
            self._queue.waiting -= 1
            self.connection.share.leave(self)
        self._frame = self.begin = None
        self._queue.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
        held, self.held_bytes = self.held_bytes, 0
        self._queue.budget.release(self, held)
        self._queue.look()
