"""Writes the answers of one connection, in the order of its requests.

    queue ──▶ slots ──▶ answered ──▶ once an iteration of the loop: those in turn ──▶ transport
                                                                      │
                                              the next request begins ┘

Large answers are written when the connection's turn on the loop comes: the kernel takes 2 ms and
more to copy one, and many may be ready at once.  They are written to the socket itself
(`socket_writes`), because the transport keeps the interpreter's lock meanwhile; it gets what the
socket does not take.  While the transport holds bytes that the client does not take, no request
begins.

Shell.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.network.answers import SMALL_BYTES, Answers
from driftlog_agents.network.queued_requests import QueuedRequest, RequestQueue
from driftlog_agents.network.slots import Slot
from driftlog_agents.network.socket_writes import write_to_socket
from driftlog_tiering.foundation.types import Buffer

_JOIN_BYTES: Final = 16 * 1024
"""Buffers up to this size are joined into one write: cheaper than an iovec each."""


class WrittenConnection(Protocol):
    """The connection whose answers are written."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed: nothing more is written."""
        ...

    def on_loop(self, step: Callable[[], None], /) -> None:
        """Run *step*; an error in it closes only this connection."""
        ...

    def in_turn(self, step: Callable[[], None], /) -> None:
        """Run *step* as `on_loop`, when the connection's turn on the event loop comes."""
        ...

    def written(self) -> None:
        """Called after answers are written: there may be room for more requests."""
        ...


class AnswerWriter:
    """See the module."""

    __slots__ = (
        "_connection",
        "_file",
        "_flush_scheduled",
        "_handed_bytes",
        "_largest_bytes",
        "_loop",
        "_requests",
        "_source",
        "_transport",
        "answers",
        "paused",
        "queued",
        "slots",
    )

    def __init__(
        self,
        connection: WrittenConnection,
        requests: RequestQueue,
        answers: Answers,
        source: ConnectionActivity,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._source = source
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._file = -1
        self.answers = answers
        self.slots: deque[Slot] = deque()
        """Requests without an answer, or whose answers wait for their turn."""
        self.queued = 0
        """Slots of requests other than Produce."""
        self.paused = False
        """Whether the transport holds unsent bytes."""
        self._flush_scheduled = False
        self._handed_bytes = self._largest_bytes = 0
        """Bytes of the buffers that the transport may hold: the sum, and the largest buffer."""

    def connected(self, transport: asyncio.Transport, file: int) -> None:
        """Write to *transport*, whose socket is the file descriptor *file*."""
        transport.set_write_buffer_limits(high=0)  # it pauses while it holds anything
        self._transport = transport
        self._file = file

    def queue(self, slot: Slot) -> None:
        """Put *slot* last in the order of answers."""
        self.slots.append(slot)
        self._requests.unanswered += 1
        self._source.requests += 1

    def may_begin(self, slot: Slot) -> bool:
        """Whether the request of *slot* may begin: it is first, and the transport holds nothing."""
        return self.slots[0] is slot and not self.paused

    def answered(self) -> None:
        """A slot has its answer: schedule `flush`, once in this iteration of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._connection.on_loop, self._flush_soon)

    def _flush_soon(self) -> None:
        """`flush` now, or when the connection's turn comes, where the kernel copies much."""
        if self.answers.unwritten_bytes > SMALL_BYTES:
            self._connection.in_turn(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Write the answers whose turn it is, and begin the request after them."""
        self._flush_scheduled = False
        if self._transport is None or self._connection.closed:
            return
        slots = self.slots
        before = len(slots)
        ready: list[Buffer] = []
        small: list[Buffer] = []
        large = self.answers.unwritten_bytes > SMALL_BYTES
        while slots and slots[0].answer is not None:
            slot = slots.popleft()
            answer, slot.answer = slot.answer, ()  # a slot may be kept until a commit
            self._source.answers += 1
            assert answer is not None
            if slot.queued:
                assert isinstance(slot, QueuedRequest)
                self.queued -= 1
                slot.release()
            if self.answers.unwritten_bytes:
                self.answers.written(sum(map(len, answer)))
            for buffer in answer:
                if len(buffer) <= _JOIN_BYTES:
                    small.append(buffer)
                else:
                    if small:
                        ready.append(b"".join(small))
                        small = []
                    ready.append(buffer)
        if before := before - len(slots):
            self._requests.answered(before)
        if small:
            ready.append(b"".join(small))
        if large:
            ready = self._write_to_socket(self._transport, ready)
        elif len(ready) == 1:
            self._transport.write(ready[0])
        elif ready:
            self._transport.writelines(ready)
        if ready and self.paused:
            self._handed_bytes += sum(map(len, ready))
            self._largest_bytes = max(self._largest_bytes, *map(len, ready))
        if self.answers.held_bytes or self.paused:
            self.answers.settle(self.untaken_bytes)
        if slots and not self.paused and not self._connection.closed:
            begin, slots[0].begin = slots[0].begin, None
            if begin is not None:
                begin()
        self._connection.written()

    def _write_to_socket(self, transport: asyncio.Transport, buffers: list[Buffer]) -> list[Buffer]:
        """Write to the socket, and what it does not take to *transport*, which keeps the buffers
        that are returned."""
        if transport.is_closing() or transport.get_write_buffer_size():
            # The file descriptor of one that is closed may be another connection's by now; what the
            # transport holds comes first.
            transport.writelines(buffers)
            return buffers
        whole, sent_bytes = write_to_socket(self._file, buffers)
        rest = buffers[whole:]
        if rest:
            transport.writelines([memoryview(rest[0])[sent_bytes:], *rest[1:]])
        return rest

    def taken(self) -> None:
        """Called when the transport holds nothing any more."""
        self.paused = False
        self._handed_bytes = self._largest_bytes = 0
        self.answers.settle(0)
        self.answered()

    @property
    def untaken_bytes(self) -> int:
        """Memory of the answers that the client has not taken completely: the transport keeps the
        first buffer whole until its last byte is taken."""
        if not self.paused or self._transport is None:
            return 0
        most = self._transport.get_write_buffer_size() + self._largest_bytes
        return min(most, self._handed_bytes)

    @property
    def request_bytes(self) -> int:
        """Bytes that the requests hold."""
        slots = (slot for slot in self.slots if isinstance(slot, QueuedRequest))
        return sum(slot.held_bytes for slot in slots)

    def lost(self) -> None:
        """Called when the connection is closed: drop the requests that wait for an answer."""
        for slot in self.slots:
            if slot.answer is not None:
                slot.answer = ()
            if isinstance(slot, QueuedRequest) and not slot.runs:
                slot.release()
        self._requests.answered(len(self.slots))
        self.slots.clear()
