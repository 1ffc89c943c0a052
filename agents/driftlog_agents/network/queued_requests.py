"""Requests other than Produce, from the frame to the answer: what they hold, and when they begin.

    frame ──▶ its turn? ──▶ room to decode it? ──▶ begun ──▶ answered: it holds nothing
                 │                  │
                 └── as it came     └── as it came

* A frame is kept as it came until it is its turn, and decoded then.  Of one connection at most one
  request is begun, as with Kafka.
* Its bytes count from the frame until the answer (`queued.max.request.bytes`), and what it comes to
  when it is decoded from its beginning on; large ones wait for that room, in order.
* Requests count while they wait for their turn (`queued.max.requests`), as Kafka's queue counts
  those that no handler has taken: a consumer that waits for records is none of them.  While more
  wait, or while the bytes are too many, each connection is read only when it has no unanswered
  request: clients that ask one thing at a time notice nothing, those that pipeline wait.
* Produce is not counted here: the log bounds what its frames hold, and a Produce that waits for a
  flush must not wait for a Fetch.

Shell.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from driftlog_agents.network.memory_budget import MemoryBudget
from driftlog_agents.network.slots import Slot

if TYPE_CHECKING:
    from driftlog_agents.network.connection import Connection

REQUEST_BYTES: Final = 1_024
"""What a request holds beside its frame."""

_SMALL_BYTES: Final = 4 * 1024
"""Frames up to here never wait for room to be decoded."""

_COPIED_BYTES: Final = 32 * 1024
"""Frames up to here share what a socket brought at once: those that wait are copied out of it."""

Begin = Callable[["QueuedRequest", memoryview], None]
"""Decodes a frame and runs it."""


class RequestQueue:
    """The requests of all connections.

    Args:
        max_requests: more wait for their turn only where each connection has one.
        budget: of their bytes.
    """

    def __init__(self, max_requests: int, budget: MemoryBudget) -> None:
        self._max_requests = max_requests
        self.budget = budget
        self.waiting = 0
        """Requests that wait for their turn."""
        self.held_up: set[Connection] = set()
        """Connections that are not read because there is too much of all."""

    @property
    def full(self) -> bool:
        """Whether connections that have unanswered requests are not read."""
        return self.waiting > self._max_requests or self.budget.pressed

    def look(self) -> None:
        """Something went: read those again that may be."""
        if self.held_up and not self.full:
            held_up, self.held_up = self.held_up, set()
            for connection in held_up:
                connection.reconsider()


class QueuedRequest(Slot):
    """One of them; also the `Holder` of what it holds."""

    __slots__ = (
        "_begin",
        "_cost",
        "_frame",
        "_queue",
        "_weight",
        "begun",
        "held_bytes",
        "runs",
        "trusted",
    )

    queued = True

    def __init__(
        self,
        connection: "Connection",
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
        self.begun = False
        self.runs = False
        """A task has it, which goes on when the connection is gone: it says when it has ended."""
        self.trusted = False
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Count *size_bytes*, which are there."""
        self.held_bytes += size_bytes
        self._queue.budget.note(size_bytes)

    def take_over(self, size_bytes: int) -> None:
        """The same of what is counted."""
        self.held_bytes += size_bytes

    def wait(self) -> None:
        """It is not its turn."""
        assert self._frame is not None
        self._queue.waiting += 1
        if len(self._frame) <= _COPIED_BYTES:
            self._frame = memoryview(bytes(self._frame))
        self.begin = self._waited

    def _waited(self) -> None:
        self._queue.waiting -= 1
        self.start()
        self._queue.look()

    def start(self) -> None:
        """Its turn: begin, now or when there is room for what it is when it is decoded."""
        assert self._frame is not None
        self.begun = True
        size = len(self._frame)
        cost = size * self._weight
        if size > _SMALL_BYTES:
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

    def release(self) -> None:
        """It holds nothing any more."""
        if self._frame is not None and not self.begun and self.begin is not None:
            self._queue.waiting -= 1
        self._frame = self.begin = None
        held, self.held_bytes = self.held_bytes, 0
        self._queue.budget.release(self, held)
        self._queue.look()
