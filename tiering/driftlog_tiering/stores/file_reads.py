"""A range of a file: small ones through the page cache, big ones past it.

The counterpart of `file_writes`: data written past the cache is not in it, and a
virtual machine pays more for the fresh page of each 4 KiB than for reading it.  Past the
cache the disk fills memory that is used again.

Adapter.
"""

import ctypes
import errno
import os
import threading
from typing import Final

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.buffer_pool import BufferPool
from driftlog_tiering.stores.file_writes import ALIGNMENT, DIRECT_BYTES, set_direct

_DIRECT_RANGE_BYTES: Final = 256 * 1024
"""A range of a big file is read past the cache from this size on.  The kernel reads ahead for
smaller ranges."""

_POOL_BYTES: Final = 32 * 1024 * 1024
"""Buffers of ranges, in use and free; more come from the allocator."""

_MAX_CALL_BYTES: Final = 1 << 30
"""Limit of one read: macOS refuses 2 GiB, Linux cuts there."""


class FileReads:
    """Reads for all threads of a process."""

    def __init__(self) -> None:
        self._pool = BufferPool(_POOL_BYTES)
        self._taking = threading.Lock()

    def read(self, descriptor: int, start: int, stop: int) -> Buffer:
        """The bytes ``[start, stop)``, which the file has.

        A view of memory that the pool uses again when its last view is gone; or bytes.

        Raises:
            OSError: the disk failed.
            UnavailableError: the file shrank meanwhile.
        """
        if start >= stop:
            return b""
        big = stop - start >= _DIRECT_RANGE_BYTES
        if big and os.fstat(descriptor).st_size >= DIRECT_BYTES and set_direct(descriptor, on=True):
            try:
                return self._read_past_the_cache(descriptor, start, stop)
            except OSError as error:
                if error.errno != errno.EINVAL:  # the platform has O_DIRECT, this file does not
                    raise
            finally:
                set_direct(descriptor, on=False)
        return _read_through_the_cache(descriptor, start, stop)

    def _read_past_the_cache(self, descriptor: int, start: int, stop: int) -> memoryview:
        first = start - start % ALIGNMENT
        length = -(-(stop - first) // ALIGNMENT) * ALIGNMENT
        with self._taking:
            memory = self._pool.take(length + ALIGNMENT)
        shift = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNMENT
        blocks = memoryview(memory)[shift : shift + length]
        filled = 0
        while filled < stop - first:
            # A read ends inside a block at the end of the file only.
            found = os.preadv(descriptor, [blocks[filled:]], first + filled)
            if not found:
                raise UnavailableError("an object shrank while it was read")
            filled += found
        return blocks[start - first : stop - first].toreadonly()


def _read_through_the_cache(descriptor: int, start: int, stop: int) -> bytes:
    parts: list[bytes] = []
    while start < stop:
        part = os.pread(descriptor, min(stop - start, _MAX_CALL_BYTES), start)
        if not part:
            raise UnavailableError("an object shrank while it was read")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
