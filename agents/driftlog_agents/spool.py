"""Where a segment grows before it is put: an unnamed file, and a mapping of it as the body.

Shell.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from driftlog_tiering.object_store import Buffer


class FileSpool:
    """A temporary file that nobody else sees."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    def body(self) -> Buffer:
        """Everything written so far, mapped: it costs page cache, not memory of the process."""
        self.file.flush()
        if self.file.tell() == 0:
            return b""
        self._map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)
        return self._view

    def release(self) -> None:
        """Give the mapping back, unless a request that was given up still holds it."""
        if self._view is not None and self._map is not None:
            try:
                self._view.release()
                self._map.close()
            except BufferError:
                pass  # goes when its last user goes


def spool_in(folder: Path) -> Callable[[], AbstractContextManager[FileSpool]]:
    """A maker of spools in *folder*, which is made."""
    folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def spool() -> Iterator[FileSpool]:
        with tempfile.TemporaryFile(dir=folder) as file:
            made = FileSpool(file)
            try:
                yield made
            finally:
                made.release()

    return spool
