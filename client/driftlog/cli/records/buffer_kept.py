"""Directories that an agent has set aside, and the replayed records of each.

    DIR/kept/{session_id}/leftovers.json    the list of its files
                          replayed.json     for each file, ranges of the records that are
                                            acknowledged, by their number in the file

A file is its name and its CRC-32C: the numbers hold for these bytes only.  A file that is damaged
or restored between two runs is another one.
``replayed.json`` is written after the acknowledgements that it names, so a replay never skips a
record; after a kill between the two the next run produces that record again.
A replayed directory becomes ``.{session_id}.part``, durably, before its files are deleted: after a
kill, or a power failure, between the two no run finds it, and the agent's next start deletes it.

Shell.
"""

import fcntl
import json
import os
import shutil
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
_PART: Final = ".part"
"""Suffix of a directory that the agent has not finished, or that is being deleted."""


@dataclass(slots=True)
class ReplayedRecords:
    """The acknowledged records of each file, one byte per record."""

    path: Path
    files: dict[str, bytearray] = field(default_factory=dict)
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
            for file, ranges in stored["files"].items():
                for first, end in ranges:
                    found._flags(file, end)[first:end] = b"\1" * (end - first)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"{path / _PROGRESS} cannot be read: {error}") from error
        return found

    def _flags(self, file: str, size: int) -> bytearray:
        flags = self.files.setdefault(file, bytearray())
        flags.extend(bytes(max(0, size - len(flags))))
        return flags

    def has(self, file: str, record: int) -> bool:
        """Whether the record is acknowledged."""
        flags = self.files.get(file, b"")
        return record < len(flags) and flags[record] == 1

    def add(self, file: str, record: int) -> None:
        """Note that the record is acknowledged."""
        self._flags(file, record + 1)[record] = 1
        self.changed = True

    @property
    def records(self) -> int:
        """The number of acknowledged records of all files."""
        return sum(flags.count(1) for flags in self.files.values())

    def save(self) -> None:
        """Write the file, whole or not at all, durably."""
        if not self.changed:
            return
        self.changed = False
        body = json.dumps({"files": {n: list(_ranges(f)) for n, f in self.files.items()}})
        temporary = self.path / f".{_PROGRESS}.tmp"
        with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / _PROGRESS)
        _sync_directory(self.path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
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
    done: ReplayedRecords

    def remove(self) -> None:
        """Delete it; no later run finds a part of it."""
        part = self.path.with_name(f".{self.path.name}{_PART}")
        shutil.rmtree(part, ignore_errors=True)
        self.path.rename(part)
        # A power failure may undo the rename: the next run would repeat what is deleted of it.
        _sync_directory(part.parent)
        shutil.rmtree(part)


def find(directory: Path) -> tuple[list[KeptDirectory], list[str]]:
    """The directories to replay, oldest first; and why others cannot be replayed.

    Raises:
        CommandError: *directory* has none, or cannot be read.
    """
    try:
        directory = directory.resolve()
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
            paths = [p for p in there if (p / _NOTE).exists() and not p.name.endswith(_PART)]
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    kept, refused = [], []
    for path in paths:
        try:
            kept.append(_open(path))
        except CommandError as error:
            refused.append(str(error))
    return sorted(kept, key=lambda one: one.leftovers.set_aside_at_ms or 0), refused


def _open(path: Path) -> KeptDirectory:
    try:
        leftovers = decode_leftovers((path / _NOTE).read_bytes())
        done = ReplayedRecords.load(path)
    except CorruptError as error:
        raise CommandError(f"{path}: {error}") from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    if leftovers.set_aside_at_ms is None:
        raise CommandError(
            f"{path} is not set aside yet: start the agent; it decides which of the "
            "records the log has"
        )
    buffer = path.parent.parent / "buffer" / path.name
    if path.parent.name == "kept" and buffer.exists():
        raise CommandError(
            f"{path} is not finished: {buffer} has the same records, and the agent's next start "
            "deletes it.  Start the agent once, and run the command again"
        )
    return KeptDirectory(path, leftovers, done)


@contextmanager
def locked(path: Path) -> Iterator[KeptDirectory | None]:
    """The directory, as the last replay of it left it; None: that one has replayed all of it.

    Raises:
        CommandError: another replay of it runs, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield _open(path) if path.exists() else None
    except BlockingIOError as error:
        raise CommandError(f"{path}: another replay of this directory runs") from error
    finally:
        os.close(descriptor)
