"""The port for the names and small files of a bucket, read on the driver.

Port: `tests/spark/test_files.py` is its definition.
"""

from typing import Protocol


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

    def read(self, key: str) -> bytes | None:
        """The bytes of a small file; None when there is none.

        Raises:
            StorageError: the file cannot be read.
        """
        ...
