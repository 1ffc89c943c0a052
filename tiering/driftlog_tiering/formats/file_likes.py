"""What pyarrow takes for a file where a segment is written, or one byte range of it read.

Pure.
"""

from typing import IO

import pyarrow as pa

from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import Buffer


class CountingSink:
    """Passes what is written on, counts it, and keeps the CRC-32C since it was last reset."""

    def __init__(self, sink: IO[bytes] | pa.NativeFile) -> None:
        self._sink = sink
        self._written = 0
        self.crc = 0
        self.discards = False
        self.closed = False

    def write(self, data: Buffer) -> int:
        """All of it; nothing, once it discards."""
        if self.discards:
            return len(data)
        self.crc = kernel.crc32c(data, self.crc)
        self._sink.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        """How much was written."""
        return self._written

    def flush(self) -> None:
        """The owner's business."""

    def close(self) -> None:
        """The owner's business too."""
        self.closed = True


class RangedFile:
    """A file of which only one range of bytes is there."""

    def __init__(self, data: Buffer, start: int, size_bytes: int) -> None:
        self._data = memoryview(data)
        self._start = start
        self._size_bytes = size_bytes
        self._position = 0
        self.closed = False

    def size(self) -> int:
        """Of the whole file."""
        return self._size_bytes

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """As of any file."""
        origin = (0, self._position, self._size_bytes)[whence]
        self._position = origin + position
        return self._position

    def read_buffer(self, size: int) -> memoryview:
        """The next bytes, not copied."""
        at = self._position - self._start
        if at < 0 or at + size > len(self._data):
            raise OSError(f"bytes {self._position}+{size} were not fetched")
        self._position += size
        return self._data[at : at + size]

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return bytes(self.read_buffer(size))

    def close(self) -> None:
        """Nothing to release."""
        self.closed = True
