"""Framing: bytes as they come, requests as they are complete, without a copy too many.

    small frames   arrive in a buffer that all connections share; what was received is copied
                   once and cut into views
    large frames   (> 32 KiB, once part of one is there) get their exact bytearray, and the
                   socket reads straight into its tail: what is checked, patched, written to
                   disk and uploaded is the memory that the kernel filled
    huge frames    (> 2 MiB) get more as they come: who announces 100 MiB has not sent them

What incomplete frames hold is counted: where there is no room, a connection is not read until
there is.  Produce has a budget of its own, in which a large frame is counted until it is admitted,
for the log bounds what it holds later; one of another request is counted until it is answered.

Frames are cut one by one: who has enough of them stops, and goes on with the rest later.

A frame is ``int32 size`` and *size* bytes.  A size over the limit is refused before it is
buffered.

Pure.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from driftlog_agents.network.foreign_protocols import ForeignProtocolError, foreign_protocol
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.protocol.errors import (
    SOCKET_REQUEST_BYTES,
    CorruptFrameError,
    FrameTooLargeError,
)
from driftlog_tiering.stores.buffer_pool import BufferPool

LARGE_BYTES: Final = 32 * 1024
_MIN_BYTES: Final = 8
"""Key, version and correlation id: there is no shorter request."""
_SIZE: Final = Struct(">i")
_WITH_KEY_BYTES: Final = 6
"""Size and API key; Produce's is 0."""
_TRUSTED_BYTES: Final = 2 * 1024 * 1024
"""Memory for a frame that is only announced; clients' requests are 1 MiB unless they are tuned."""
_EARNED_BYTES: Final = 64 * 1024
"""The same for a stranger's huge frame where many ask for memory: from here on it is earned."""
_SOME_BYTES: Final = 32 * 1024
"""What is read at once from each socket while the event loop is busy."""

_LITTLE_BYTES: Final = 4 * 1024
"""Read at once from those who may have to wait with it."""
_GROWTH: Final = 4
"""A full buffer is exchanged for one this many times larger: a third of a copy for each byte."""


class FrameReader:
    """Frames of one connection.

    Args:
        socket_request_max_bytes: hang up on a larger request, before buffering it.
        shared: where small reads land; may be shared, for it is emptied at once.
        pool: memory of large frames.
        budget: what incomplete Produce frames of all connections may hold.
        requests: the same of other frames, which hold it until they are answered; None: they are
            treated as Produce is.
    """

    __slots__ = (
        "_at",
        "_budget",
        "_head",
        "_large",
        "_length",
        "_limit",
        "_little",
        "_pool",
        "_produce",
        "_requests",
        "_shared",
        "_size",
        "_some",
        "_tail",
        "completed",
        "kept_bytes",
        "on_memory",
        "trusted",
        "waiting",
    )

    def __init__(
        self,
        socket_request_max_bytes: int,
        shared: memoryview,
        pool: BufferPool,
        budget: MemoryBudget,
        requests: MemoryBudget | None = None,
    ) -> None:
        assert len(shared) > LARGE_BYTES
        self._pool = pool
        self._budget = self._produce = budget
        """Of the large frame that arrives now."""
        self._requests = budget if requests is None else requests
        self.kept_bytes = 0
        """Of a whole large frame that nobody has taken over yet."""
        self._limit = socket_request_max_bytes
        self._shared = shared
        self._little = shared[:_LITTLE_BYTES]
        self._some = shared[:_SOME_BYTES]
        self._head = b""
        """Of a frame that is not complete, with its size."""
        self._large: memoryview | None = None
        """Of a large frame: all of it, or as much as has been earned."""
        self._length = 0
        self._size = 0
        """What `_large` is to be next."""
        self._tail: memoryview | None = None
        self._at = 0
        self.waiting = False
        """There is no memory: nothing may be received until `on_memory`."""
        self.on_memory: Callable[[], None] | None = None
        self.trusted = False
        self.completed = 0
        """Frames."""

    @property
    def buffered_bytes(self) -> int:
        """Memory that a frame holds: an incomplete one, or a large one that waits to be taken."""
        incomplete = len(self._large) if self._large is not None else len(self._head)
        return incomplete + self.kept_bytes

    @property
    def has_memory(self) -> bool:
        """A large frame has begun to arrive in memory of its own."""
        return self._large is not None

    @property
    def arrived_bytes(self) -> int:
        """How much of an incomplete frame is there."""
        return self._at if self._large is not None else len(self._head)

    @property
    def missing_bytes(self) -> int:
        """How much of a frame that waits for memory has not been received; 0: none waits."""
        if not self.waiting:
            return 0
        return self._length - (self._at if self._large is not None else len(self._head) - 4)

    def buffer(self, *, busy: bool = False) -> memoryview:
        """Where the next bytes of the socket go; *busy*: the frames in them will have to wait."""
        if self._tail is not None:
            return self._tail
        if (self._produce.pressed or self._requests.pressed) and not self.trusted:
            return self._little
        return self._some if busy else self._shared

    def received(self, size: int) -> Iterator[memoryview]:
        """*size* bytes are in `buffer`; yields the frames that they complete, in order.

        A frame is what follows its size; it is writable and nobody else's.  Nothing may be
        received before all of them are taken.

        Raises:
            ForeignProtocolError: the first bytes are those of TLS or HTTP.
            CorruptFrameError: a size that is negative or too small.
            FrameTooLargeError: a size that is too large.
        """
        assert not self.waiting, "read without memory for it"
        if self._tail is not None:
            assert self._large is not None
            self._at += size
            if self._at < self._length:
                self._tail = self._large[self._at :]
                if not self._tail:
                    self._grow()
                return iter(())
            frame = self._large
            self._large = self._tail = None
            self.completed += 1
            self.kept_bytes = len(frame)
            self._budget.arrived(self)
            return iter((frame,))
        return self._cut(size)

    def taken(self) -> None:
        """The frames are the log's, or nobody's: what one of them kept is counted no longer."""
        if self.kept_bytes:
            kept, self.kept_bytes = self.kept_bytes, 0
            self._budget.release(self, kept)

    def release(self) -> None:
        """Nothing more will come."""
        head, self._head = self._head, b""
        # It waits no longer before its head makes room: that may be given to who waits.
        self._budget.release(self, 0 if self._large is None else len(self._large))
        if self._large is None:
            self._produce.note(-len(head))
        self.taken()
        self._large = self._tail = None
        self.on_memory = None

    def go_on(self) -> None:
        """The budget has counted what this waited for."""
        self.waiting = False
        if self._large is None:
            head, self._head = self._head, b""
            self._fill(memoryview(head)[4:])
            self._produce.note(-len(head))
        else:
            self._exchange()
        if self.on_memory is not None:
            self.on_memory()

    def _cut(self, size: int) -> Iterator[memoryview]:
        """Copy what is there, now; cut it as it is taken."""
        if self._head:
            chunk = bytearray(self._head)
            self._produce.note(-len(chunk))
            chunk += self._shared[:size]
            self._head = b""
        else:
            chunk = bytearray(self._shared[:size])
        return self._frames(chunk)

    def _frames(self, chunk: bytearray) -> Iterator[memoryview]:
        view = memoryview(chunk)
        at, end = 0, len(chunk)
        while end - at >= 4:
            (length,) = _SIZE.unpack_from(chunk, at)
            if length > LARGE_BYTES and not self.completed:
                protocol = foreign_protocol(bytes(chunk[at : at + 4]))
                if protocol is not None:
                    raise ForeignProtocolError(protocol)
            if length > self._limit:
                raise FrameTooLargeError(
                    f"a request of {length} bytes is over {SOCKET_REQUEST_BYTES} ({self._limit})"
                )
            if length < _MIN_BYTES:
                raise CorruptFrameError(
                    f"a request cannot have {length} bytes: is this client speaking Kafka's "
                    f"protocol?"
                )
            if end - at - 4 < length:
                if length > LARGE_BYTES and end - at >= _WITH_KEY_BYTES:
                    is_produce = not (chunk[at + 4] or chunk[at + 5])
                    self._budget = self._produce if is_produce else self._requests
                    if self._begin_large(length, view[at + 4 :]):
                        return
                break
            at += 4
            self.completed += 1
            yield view[at : at + length]
            at += length
        if at < end:
            self._head = bytes(view[at:])
            self._produce.note(end - at)

    def _begin_large(self, length: int, head: memoryview) -> bool:
        """Give the frame its memory; False: it must wait for it."""
        if length <= _TRUSTED_BYTES or self.trusted or self._budget.calm:
            first = _TRUSTED_BYTES
        else:
            first = max(_EARNED_BYTES, _GROWTH * len(head))
        self._length = length
        self._size = min(length, first)
        if self._budget.take(self, self._size):
            self._fill(head)
            return True
        self.waiting = True
        return False

    def _fill(self, head: memoryview) -> None:
        self._large = memoryview(self._pool.take(self._size))[: self._size]
        self._at = len(head)
        self._large[: self._at] = head
        self._tail = self._large[self._at :]

    def _grow(self) -> None:
        assert self._large is not None
        self._size = min(self._length, _GROWTH * len(self._large))
        if self._budget.take(self, self._size - len(self._large)):
            self._exchange()
        else:
            self.waiting = True

    def _exchange(self) -> None:
        assert self._large is not None
        larger = memoryview(self._pool.take(self._size))[: self._size]
        larger[: self._at] = self._large
        self._large = larger
        self._tail = larger[self._at :]
