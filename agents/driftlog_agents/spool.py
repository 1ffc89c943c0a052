"""Where a segment grows before it is put: an unnamed file, and a mapping of it as the body.

A file is used for one segment after another: its pages are there already, and fresh ones
cost several times what filling them does.

Shell.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO


class FileSpool:
    """A temporary file that nobody else sees, written from its start."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    def body(self) -> memoryview | bytes:
        """Everything written so far, mapped: it costs page cache, not memory of the process."""
        self.file.flush()
        if (size := self.file.tell()) == 0:
            return b""
        self._map = mmap.mmap(self.file.fileno(), size, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)
        return self._view

    def release(self) -> bool:
        """Give the mapping back; False: a request that was given up still reads from it."""
        if self._view is not None and self._map is not None:
            try:
                self._view.release()
                self._map.close()
            except BufferError:
                return False  # it goes when its last user goes
        return True


def spool_in(folder: Path) -> Callable[[], AbstractContextManager[FileSpool]]:
    """A maker of spools in *folder*, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    free: list[IO[bytes]] = []

    @contextmanager
    def spool() -> Iterator[FileSpool]:
        file = free.pop() if free else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        file.seek(0)
        made = FileSpool(file)
        try:
            yield made
        finally:
            if made.release():
                free.append(file)
            else:
                file.close()  # what is written over it would be read as that request's

    return spool
