"""The spool of a segment before its PUT: an unnamed file, mapped piece by piece as the body.

A file is used for one segment after another: fresh pages cost several times as much as filling
them.

Shell.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, overload
from weakref import WeakSet

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a segment that a PUT has in the process's memory at once."""


class MappedBody(Sequence[memoryview]):
    """The first *size_bytes* of a file, in pieces: each is mapped as long as it has a reader."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._maps: WeakSet[mmap.mmap] = WeakSet()
        self._closed = False

    def __len__(self) -> int:
        return -(-self._size_bytes // _PIECE_BYTES)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = range(0, self._size_bytes, _PIECE_BYTES)[index]
        length = min(_PIECE_BYTES, self._size_bytes - start)
        if self._closed:
            raise ValueError("the spool was let go: its file may hold another segment")
        made = mmap.mmap(self._descriptor, length, access=mmap.ACCESS_READ, offset=start)
        self._maps.add(made)
        return memoryview(made)

    def close(self) -> bool:
        """Give out no more pieces; False: a reader still has one."""
        self._closed = True
        return not self._maps


class FileSpool:
    """A temporary file without a name, written from its start."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._body: MappedBody | None = None

    def body(self) -> MappedBody:
        """Everything written so far: it costs page cache, and hardly memory of the process."""
        self.file.flush()
        self._body = MappedBody(self.file.fileno(), self.file.tell())
        return self._body

    def release(self) -> bool:
        """Give out no more pieces; False: a cancelled request still reads one."""
        return self._body is None or self._body.close()


def spool_in(folder: Path) -> Callable[[], AbstractContextManager[FileSpool]]:
    """Returns a factory of spools in *folder*, and creates the folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    free: list[IO[bytes]] = []

    @contextmanager
    def spool() -> Iterator[FileSpool]:
        file = free.pop() if free else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        made = FileSpool(file)
        failed = False
        try:
            yield made
        except OSError:
            failed = True
            raise
        finally:
            # A request that still reads the file would read the next segment's bytes as its own.  A
            # closed file returns its space to a full disk.
            if made.release() and not failed and _is_rewound(file):
                free.append(file)
            else:
                with suppress(OSError):
                    file.close()

    return spool


def _is_rewound(file: IO[bytes]) -> bool:
    """False: the disk does not take the rest of the file's buffer."""
    try:
        file.seek(0)
    except OSError:
        return False
    return True
