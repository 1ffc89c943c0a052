"""Framing: received bytes become requests, with as few copies as possible.

    small frames   arrive in a buffer that all connections share; received bytes are copied
                   once and cut into views
    large frames   (> 32 KiB, once part of one has arrived) get memory of their own, and the
                   socket reads directly into its tail: the memory that the kernel filled is
                   checked, patched, written to disk and uploaded
    huge frames    (> 2 MiB) get more memory as bytes arrive: a client that announces 100 MiB
                   has not sent them yet.  Only the first 2 MiB are copied: then the system adds
                   pages where bytes arrive

The memory of incomplete frames is counted: while there is no room, a connection is not read.
Produce has a budget of its own, which counts a large frame until it is admitted; then the log
limits what it holds.  A large frame of another request is counted until the request is answered.

Frames are cut one by one: a caller may stop after any frame, and take the rest later.

A frame is ``int32 size`` and *size* bytes.  A size over the limit is refused before it is
buffered.

Pure.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from driftlog_agents.foundation.fair_queue import NOBODY, Client
from driftlog_agents.network.limits.foreign_protocols import ForeignProtocolError, foreign_protocol
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.protocol.errors import (
    SOCKET_REQUEST_BYTES,
    CorruptFrameError,
    FrameTooLargeError,
)
from driftlog_tiering.stores.buffer_pool import ZEROED_BYTES, BufferPool

LARGE_BYTES: Final = 32 * 1024
_MIN_BYTES: Final = 8
"""API key, version and correlation id: no request is shorter."""
_SIZE: Final = Struct(">i")
_WITH_KEY_BYTES: Final = 6
"""Size and API key; the key of Produce is 0."""
_TRUSTED_BYTES: Final = 2 * 1024 * 1024
"""Memory for a frame that is only announced; clients' requests are 1 MiB by default."""
_EARNED_BYTES: Final = 64 * 1024
"""The same for an untrusted client's huge frame while much is held; it grows as bytes arrive."""
_SOME_BYTES: Final = 32 * 1024
"""Bytes read at once from each socket while the event loop is busy."""

_LITTLE_BYTES: Final = 4 * 1024
"""Bytes read at once from untrusted clients while memory is scarce."""
_GROWTH: Final = 4
"""A full buffer is replaced by one so many times larger: a third of a copy for each byte."""


class FrameReader:
    """The frames of one connection.

    Args:
        socket_request_max_bytes: a larger request is refused before it is buffered.
        shared: buffer for small reads; connections share it, because each read is copied at once.
        pool: memory of large frames.
        budget: for incomplete Produce frames of all connections.
        requests: the same for other frames, which count until they are answered; None: they are
            counted as Produce is.
        client: whose frames they are.
    """

    __slots__ = (
        "_at",
        "_budget",
        "_head",
        "_large",
        "_length",
        "_limit",
        "_little",
        "_memory",
        "_pool",
        "_produce",
        "_requests",
        "_shared",
        "_size",
        "_some",
        "_tail",
        "client",
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
        client: Client = NOBODY,
    ) -> None:
        self.client = client
        assert len(shared) > LARGE_BYTES
        self._pool = pool
        self._budget = self._produce = budget
        """The budget of the large frame that arrives now."""
        self._requests = budget if requests is None else requests
        self.kept_bytes = 0
        """Bytes of a complete large frame that no request has taken over yet."""
        self._limit = socket_request_max_bytes
        self._shared = shared
        self._little = shared[:_LITTLE_BYTES]
        self._some = shared[:_SOME_BYTES]
        self._head = b""
        """Received bytes of an incomplete frame, with its size field."""
        self._large: memoryview | None = None
        """Memory of a large frame: all of it, or as much as its received bytes allow."""
        self._memory: memoryview | None = None
        """What `_large` is the beginning of."""
        self._length = 0
        self._size = 0
        """The next size of `_large`, in bytes."""
        self._tail: memoryview | None = None
        self._at = 0
        self.waiting = False
        """There is no memory: the socket is not read until `on_memory` is called."""
        self.on_memory: Callable[[], None] | None = None
        self.trusted = False
        self.completed = 0
        """Number of complete frames."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes held by an incomplete frame, or by a large one that waits to be taken."""
        incomplete = len(self._large) if self._large is not None else len(self._head)
        return incomplete + self.kept_bytes

    @property
    def has_memory(self) -> bool:
        """Whether a large frame has begun to arrive in memory of its own."""
        return self._large is not None

    @property
    def arrived_bytes(self) -> int:
        """Received bytes of the incomplete frame."""
        return self._at if self._large is not None else len(self._head)

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of a frame that waits for memory; 0: none waits."""
        if not self.waiting:
            return 0
        return self._length - (self._at if self._large is not None else len(self._head) - 4)

    def buffer(self, *, busy: bool = False) -> memoryview:
        """Where the next bytes of the socket go; *busy*: the frames in them have to wait."""
        if self._tail is not None:
            return self._tail
        if (self._produce.pressed or self._requests.pressed) and not self.trusted:
            return self._little
        return self._some if busy else self._shared

    def received(self, size: int) -> Iterator[memoryview]:
        """*size* bytes are in `buffer`; yields the frames that they complete, in order.

        A frame is the bytes after the size; it is writable, and only the caller uses it.  The
        caller takes all frames before it receives more bytes.

        Raises:
            ForeignProtocolError: the first bytes belong to TLS or HTTP.
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
            self._large = self._memory = self._tail = None
            self.completed += 1
            self.kept_bytes = len(frame)
            self._budget.arrived(self)
            return iter((frame,))
        return self._cut(size)

    def taken(self) -> None:
        """The log has the frames, or they are dropped: uncount the large one."""
        if self.kept_bytes:
            kept, self.kept_bytes = self.kept_bytes, 0
            self._budget.release(self, kept)

    def release(self) -> None:
        """The connection is closed: release the memory."""
        head, self._head = self._head, b""
        # First stop waiting, then free the head: the budget gives free room to what waits.
        self._budget.release(self, 0 if self._large is None else len(self._large))
        if self._large is None:
            self._produce.note(-len(head))
        self.taken()
        self._large = self._memory = self._tail = None
        self.on_memory = None

    def go_on(self) -> None:
        """Called by the budget, which now counts the bytes that this waited for."""
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
        """Copy the received bytes now; cut each frame when it is taken."""
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
                    f"a request cannot have {length} bytes: this client may not speak "
                    "Kafka's protocol"
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
        """Give the frame its memory; False: it waits for memory."""
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
        self._large = self._memory = memoryview(self._pool.take(self._size))[: self._size]
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
        assert self._memory is not None
        if len(self._memory) < self._size:
            size = self._length if self._size > ZEROED_BYTES else self._size
            self._memory = memoryview(self._pool.take(size))[:size]
            self._memory[: self._at] = self._large
        self._large = self._memory[: self._size]
        self._tail = self._large[self._at :]
