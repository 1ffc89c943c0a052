"""Files of segments: what one is written to before its PUT, for pyarrow; and one with a byte range.

Pure.
"""

from collections.abc import Sequence
from typing import IO, Protocol

import pyarrow as pa

from driftlog_tiering.batches import kernel
from driftlog_tiering.foundation.types import Buffer


class Spool(Protocol):
    """A segment before its PUT: in a temporary file, or in memory in the simulator."""

    @property
    def file(self) -> IO[bytes]:
        """The file that the segment is written to."""
        ...

    def body(self) -> Sequence[Buffer]:
        """Everything written so far, in pieces."""
        ...


class CountingSink:
    """Forwards writes, counts their bytes, and keeps the CRC-32C since the last reset of `crc`.

    ``end``: a copy of the bytes since it was set, for the footer; None: no copy.
    """

    def __init__(self, sink: IO[bytes] | pa.NativeFile) -> None:
        self._sink = sink
        self._written = 0
        self.crc = 0
        self.end: bytearray | None = None
        self.discards = False
        self.closed = False

    def write(self, data: Buffer) -> int:
        """Write all of *data*; write nothing once `discards` is set."""
        if self.discards:
            return len(data)
        self.crc = kernel.crc32c(data, self.crc)
        self._sink.write(data)
        self._written += len(data)
        if self.end is not None:
            self.end += data
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Does nothing: the owner flushes the sink."""

    def close(self) -> None:
        """Does not close the sink: the owner does."""
        self.closed = True


class RangedFile:
    """A file of which only one range of bytes is in memory.

    ``missed``: whether other bytes were asked for.
    """

    def __init__(self, data: Buffer, start: int, size_bytes: int) -> None:
        self._data = memoryview(data)
        self._start = start
        self._size_bytes = size_bytes
        self._position = 0
        self.missed = False
        self.closed = False

    def size(self) -> int:
        """Size of the whole file, bytes."""
        return self._size_bytes

    def tell(self) -> int:
        """The position in the whole file, bytes."""
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """Move; returns the new position, as `io.IOBase.seek`."""
        origin = (0, self._position, self._size_bytes)[whence]
        self._position = origin + position
        return self._position

    def read_buffer(self, size: int) -> memoryview:
        """The next *size* bytes, not copied.  Raises OSError: they are not in memory."""
        at = self._position - self._start
        if at < 0 or at + size > len(self._data):
            self.missed = True
            raise OSError(f"bytes {self._position}+{size} were not fetched")
        self._position += size
        return self._data[at : at + size]

    def read(self, size: int) -> bytes:
        """The next *size* bytes, as a copy."""
        return bytes(self.read_buffer(size))

    def close(self) -> None:
        """Nothing to release."""
        self.closed = True
