"""Requests other than Produce, from frame to answer: the memory they hold, and when they begin.

    frame ──▶ its turn? ──▶ room to decode it? ──▶ begun ──▶ answered: it holds nothing
                 │                  │
                 └── waits raw      └── waits raw

* A frame waits raw for its turn, and is decoded then.  As with Kafka, a connection has at most one
  request that has begun.
* A request's bytes count from the frame until the answer (`queued.max.request.bytes`).  Its decoded
  size counts from its beginning; large requests wait for that room, in order.  A Fetch that waits
  for records counts as what it keeps; where such requests keep half of the budget, a further
  one is answered without a wait.
* Requests count while they wait for their turn (`queued.max.requests`), as Kafka's queue counts
  requests that no handler has taken; a Fetch that waits for records does not count.  While more
  wait, or while the bytes are too many, a connection is read only when it has no unanswered
  request: clients that send one request at a time are not affected, clients that pipeline wait.
* Produce does not count here: the log limits what its frames hold, and a Produce that waits for
  a flush must not wait for a Fetch.
* Unanswered requests of all kinds count (`driftlog.max.unanswered.requests`): while there are too
  many, a connection is read only when it has few.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import work_for
from driftlog_agents.network.client_connection import ClientConnection
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.network.slots import Slot
from driftlog_tiering.foundation.types import Buffer

REQUEST_BYTES: Final = 1_024
"""Bytes that a request holds beside its frame."""

_SMALL_BYTES: Final = 32 * 1024
"""The largest decoded request that never waits for room."""

_KEPT_SHARE: Final = 2
"""One part in so many of the budget is for requests that wait for records."""

_COPIED_BYTES: Final = 32 * 1024
"""Frames up to here share the memory of one read of the socket; a frame that waits is copied."""

Begin = Callable[["QueuedRequest", memoryview], None]
"""Decodes a frame and runs it."""


class RequestQueue:
    """The requests of all connections.

    Args:
        max_requests: while more wait for their turn, each connection may have one.
        max_unanswered: while more are unanswered, each connection may have few.
        budget: for the bytes of the requests.
    """

    def __init__(self, max_requests: int, max_unanswered: int, budget: MemoryBudget) -> None:
        self._max_requests = max_requests
        self._max_unanswered = max_unanswered
        self.budget = budget
        self.waiting = 0
        """Requests that wait for their turn."""
        self.kept_bytes = 0
        """Bytes of decoded requests that wait for records."""
        self.unanswered = 0
        """Unanswered requests of all kinds."""
        self.held_up: dict[ClientConnection, None] = {}
        """Connections that are not read because of a shared limit."""
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
        """The config whose limit makes it `full`."""
        if self.waiting > self._max_requests:
            return "queued.max.requests"
        return self.budget.limited_by("queued.max.request.bytes")

    def answered(self, count: int) -> None:
        """Uncount *count* requests, which are answered or dropped."""
        self.unanswered -= count
        self.look()

    def look(self) -> None:
        """Something was freed: read held-up connections again, one each iteration of the loop."""
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
    """A request other than Produce; also the `Holder` of its memory."""

    __slots__ = (
        "_begin",
        "_cost",
        "_frame",
        "_kept_bytes",
        "_on_answer",
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
        on_answer: Callable[[], None] | None = None,
    ) -> None:
        self.connection = connection
        self.begin = self.answer = None
        self._queue = queue
        self._frame: memoryview | None = frame
        self._weight = weight
        self._begin = begin
        self._cost = 0
        self._waits = False
        self._kept_bytes = 0
        self.runs = 0
        """Tasks that use it.  They continue, and its memory counts, after the connection closes."""
        self.trusted = False
        self.held_bytes = 0
        self._on_answer = on_answer
        """Called when the answer is made."""

    def respond(self, answer: Sequence[Buffer]) -> None:
        """See `Slot`."""
        if self._on_answer is not None:
            self._on_answer()
        super().respond(answer)

    def hold(self, size_bytes: int) -> None:
        """Count *size_bytes* that the request holds (negative: no longer)."""
        self.held_bytes += size_bytes
        self._queue.budget.note(size_bytes)

    def take_over(self, size_bytes: int) -> None:
        """Add *size_bytes* that the budget counts already."""
        self.held_bytes += size_bytes

    def keep(self, size_bytes: int) -> str | None:
        """The request is decoded, is about to wait for records, and holds *size_bytes* until its
        answer.  Not None: waiting requests hold too much by this config, so it must be answered
        now."""
        queue = self._queue
        most = queue.budget.limit_bytes // _KEPT_SHARE
        if size_bytes > _SMALL_BYTES and queue.kept_bytes + size_bytes > most:
            return queue.budget.limited_by("queued.max.request.bytes")
        queue.kept_bytes += size_bytes
        self._kept_bytes = size_bytes
        self.hold(size_bytes - self.held_bytes)
        queue.budget.done(self, 0)
        queue.look()
        return None

    def wait(self, more_bytes: int) -> None:
        """Wait for the turn on the connection, and hold *more_bytes* meanwhile."""
        assert self._frame is not None
        self.hold(more_bytes)
        self._queue.waiting += 1
        self._waits = True
        if len(self._frame) <= _COPIED_BYTES:
            self._frame = memoryview(bytes(self._frame))
        self.begin = partial(self.connection.share.wait, self)

    @property
    def client(self) -> Client:
        """The client that sent it."""
        return self.connection.client

    def take_turn(self) -> None:
        """Begin: the request has waited, and its turn has come."""
        self.connection.on_loop(self._begin_now)

    def _begin_now(self) -> None:
        if self._waits:
            self._waits = False
            self._queue.waiting -= 1
            self.start()
            self._queue.look()

    def start(self, more_bytes: int = 0) -> None:
        """Hold *more_bytes*, and begin now, or when there is room for the decoded request."""
        assert self._frame is not None
        size = len(self._frame)
        cost = size * self._weight
        if cost > _SMALL_BYTES:
            self.hold(more_bytes)
            self.trusted = self.connection.frames_trusted
            self._cost = cost
            if not self._queue.budget.take(self, cost):
                if size <= _COPIED_BYTES:
                    self._frame = memoryview(bytes(self._frame))
                return
            self.held_bytes += cost
        else:
            self.hold(more_bytes + cost)
        self._run()

    def go_on(self) -> None:
        """Called by the budget, which now counts the bytes that this waited for."""
        self.held_bytes += self._cost
        self.connection.soon(self._run)

    def _run(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None and not self.connection.closed:
            self._begin(self, frame)

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await *work*; the memory is counted until it ends, also when the connection closes."""
        if self.connection.closed:
            return
        self.runs += 1
        work_for(self.connection.client)
        begun = work()
        del work  # it references the frame, which decoding releases
        try:
            await begun
        finally:
            self.runs -= 1
            if self.connection.closed and not self.runs:
                self.release()
                self._queue.look()

    def release(self) -> None:
        """Release all that the request holds; the caller lets the queue `look`."""
        if self._waits:
            self._waits = False
            self._queue.waiting -= 1
            self.connection.share.leave(self)
        self._frame = self.begin = None
        self._queue.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
        held, self.held_bytes = self.held_bytes, 0
        self._queue.budget.release(self, held)
