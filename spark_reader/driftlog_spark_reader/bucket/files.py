"""The port for the names and bytes of objects, read on the driver or on an executor.

Port: `tests/spark/test_files.py` is its definition.
"""

from typing import Protocol

from driftlog_tiering.foundation.types import Buffer


class Files(Protocol):
    """A directory, or a bucket's prefix.  Methods may be called from several threads."""

    root: str
    """Its full path, without a slash at the end."""

    def path(self, key: str) -> str:
        """The full path of a key."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Last components of the names in the folder *prefix*; empty when there is none.

        Raises:
            StorageError: the listing failed.
        """
        ...

    def read(self, key: str) -> Buffer | None:
        """The bytes of a small file; None when there is none.

        Raises:
            StorageError: the file cannot be read.
        """
        ...

    def read_range(self, key: str, start: int, end: int) -> Buffer | None:
        """The bytes ``[start, end)`` of a file, fewer where it ends before; None: no such file.

        Raises:
            StorageError: the file cannot be read.
        """
        ...

    def close(self) -> None:
        """Release connections.  The files are not used afterwards."""
        ...
