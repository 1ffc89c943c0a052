"""Buffers that are used again: a fresh page costs more than filling it.

Agents receive large frames into them, and read batches into them for the responses.

Pure.
"""

from collections import deque
from mmap import mmap
from sys import getrefcount
from typing import Final

_FINE_BYTES: Final = 64 * 1024
_COARSE_BYTES: Final = 256 * 1024
"""Sizes of pooled buffers: multiples of the first up to 1 MiB, then of the second."""
ZEROED_BYTES: Final = 4 * 1024 * 1024
"""Larger buffers are pages that the system zeroes one by one, as they are filled: to zero 100 MiB
at once takes 50 ms."""
_LOOK: Final = 16
"""Buffers that `take` checks: they become free in about the order of their use."""


class BufferPool:
    """Large buffers, used again.

    A buffer is free when nothing but the pool refers to it: views of it count, for each keeps
    its buffer alive.

    Args:
        limit_bytes: size of the buffers kept at most; any more belong to the allocator.
    """

    __slots__ = ("_bytes", "_limit_bytes", "_rings")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._rings: dict[int, deque[bytearray | mmap]] = {}

    def take(self, length: int) -> bytearray | mmap:
        """A buffer of at least *length* bytes, with undefined content."""
        step = _FINE_BYTES if length <= 1024 * 1024 else _COARSE_BYTES
        size = (length + step - 1) // step * step
        ring = self._rings.setdefault(size, deque())
        for _ in range(min(len(ring), _LOOK)):
            ring.rotate(-1)
            if getrefcount(ring[-1]) <= 2:  # the ring's, and the argument's
                return ring[-1]
        if size <= self._limit_bytes < self._bytes + size:
            self._forget(size)
        made = bytearray(size) if size <= ZEROED_BYTES else mmap(-1, size)
        if self._bytes + size <= self._limit_bytes:
            self._bytes += size
            ring.append(made)
        return made

    def _forget(self, wanted: int) -> None:
        """Release free buffers of other sizes."""
        for size, ring in self._rings.items():
            if size != wanted:
                while ring and getrefcount(ring[0]) <= 2 and self._bytes > 0:
                    ring.popleft()
                    self._bytes -= size
                    if self._bytes + wanted <= self._limit_bytes:
                        return
