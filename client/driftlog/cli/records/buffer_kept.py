"""Directories that an agent has set aside, and the replayed records of each.

    DIR/kept/{session_id}/leftovers.json    the list of its files
                          replayed.json     for each file, ranges of the records that are
                                            acknowledged, by their number in the file

``replayed.json`` is written after the acknowledgements that it names, so a replay never skips a
record; after a kill between the two the next run produces that record again.

Shell.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from driftlog.cli.common.errors import CommandError
from driftlog_agents.log.local.leftovers import Leftovers, decode_leftovers
from driftlog_metadata.stores.errors import CorruptError

_NOTE: Final = "leftovers.json"
_PROGRESS: Final = "replayed.json"


@dataclass(slots=True)
class ReplayedRecords:
    """The acknowledged records of each file, one byte per record."""

    path: Path
    files: dict[int, bytearray] = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def load(cls, path: Path) -> "ReplayedRecords":
        """The records that earlier runs replayed, from ``replayed.json`` in *path*.

        Raises:
            CommandError: the file cannot be read.
        """
        found = cls(path)
        try:
            stored = json.loads((path / _PROGRESS).read_bytes())
            for number, ranges in stored["files"].items():
                for first, end in ranges:
                    found._file(int(number), end)[first:end] = b"\1" * (end - first)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{path / _PROGRESS} cannot be read: {error}") from error
        return found

    def _file(self, number: int, size: int) -> bytearray:
        flags = self.files.setdefault(number, bytearray())
        flags.extend(bytes(max(0, size - len(flags))))
        return flags

    def has(self, number: int, record: int) -> bool:
        """Whether the record is acknowledged."""
        flags = self.files.get(number, b"")
        return record < len(flags) and flags[record] == 1

    def add(self, number: int, record: int) -> None:
        """Note that the record is acknowledged."""
        self._file(number, record + 1)[record] = 1
        self.changed = True

    def count(self, number: int) -> int:
        """The number of acknowledged records of a file."""
        return self.files.get(number, b"").count(1)

    def save(self) -> None:
        """Write the file, whole or not at all, durably."""
        if not self.changed:
            return
        self.changed = False
        body = json.dumps({"files": {str(n): list(_ranges(f)) for n, f in self.files.items()}})
        temporary = self.path / f".{_PROGRESS}.tmp"
        with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / _PROGRESS)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _ranges(flags: bytearray) -> Iterator[tuple[int, int]]:
    """Runs of bytes that are 1: first, and one past the last."""
    first = flags.find(1)
    while first >= 0:
        end = flags.find(0, first)
        end = len(flags) if end < 0 else end
        yield first, end
        first = flags.find(1, end)


@dataclass(slots=True)
class KeptDirectory:
    """A directory that an agent has set aside."""

    path: Path
    leftovers: Leftovers
    done: "ReplayedRecords"


def find(directory: Path) -> list[KeptDirectory]:
    """The directories to replay, oldest first.

    Raises:
        CommandError: *directory* has none, or one cannot be read.
    """
    try:
        paths = [directory]
        if not (directory / _NOTE).exists():
            root = directory / "kept"
            names = sorted(os.listdir(directory)) if not root.exists() else []
            if not root.exists() and "buffer" not in names and "node_id.json" not in names:
                raise CommandError(
                    f"{directory} is no agent's directory: give the DIR of its --dir, or the "
                    "directory that its log line `records_set_aside` names"
                )
            there = sorted(root.iterdir()) if root.exists() else []
            paths = [path for path in there if (path / _NOTE).exists()]
        kept = [_open(path) for path in paths]
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    return sorted(kept, key=lambda one: one.leftovers.set_aside_at_ms or 0)


def _open(path: Path) -> KeptDirectory:
    try:
        leftovers = decode_leftovers((path / _NOTE).read_bytes())
    except CorruptError as error:
        raise CommandError(f"{path}: {error}") from error
    if leftovers.set_aside_at_ms is None:
        raise CommandError(
            f"{path} is not set aside yet: start the agent, which decides what of it is in the log"
        )
    return KeptDirectory(path, leftovers, ReplayedRecords.load(path))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One replay of a directory at a time.

    Raises:
        CommandError: another replay of it runs.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CommandError(f"{path}: another replay of it runs") from error
    finally:
        os.close(descriptor)
