"""Names and bytes of a bucket that is a directory, without a JVM.

Adapter.
"""

import os
from pathlib import Path

from driftlog_spark_reader.common.errors import StorageError


class LocalFiles:
    """A directory.  Its methods may be called from several threads.

    Raises:
        StorageError: there is no such directory.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder).absolute()
        if not path.is_dir():
            raise StorageError(
                f"directory {path} does not exist; give the location where the agents store "
                "their objects, on a disk that the driver and all executors see"
            )
        self.root = f"file:{path}".rstrip("/")
        self._folder = path

    def path(self, key: str) -> str:
        """The full path of a key."""
        return f"{self.root}/{key}"

    def names(self, prefix: str) -> list[str]:
        """Last components of the names in the folder *prefix*; empty when there is none.

        Raises:
            StorageError: the listing failed.
        """
        try:
            return os.listdir(self._folder / prefix)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(f"cannot list {self.path(prefix)}: {error}") from error

    def read(self, key: str) -> bytes | None:
        """The bytes of a small file; None when there is none.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            return (self._folder / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot read {self.path(key)}: {error}") from error

    def read_range(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes ``[start, end)`` of a file, fewer where it ends before; None: no such file.

        Raises:
            StorageError: the file cannot be read.
        """
        try:
            with open(self._folder / key, "rb", buffering=0) as file:
                return os.pread(file.fileno(), end - start, start)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot read {self.path(key)}: {error}") from error

    def close(self) -> None:
        """Nothing to release."""
