"""The disk port: an agent's directory of buffer files, one folder per session.

The directory belongs to one process at a time: opening it takes a lock, so the process that
has it knows that all earlier sessions in it are dead.

Every method may raise `UnavailableError` (disk full, quota, I/O error): the caller then counts the
write as not done.

Port: `tests/contract/test_disk.py` is its definition.
"""

from collections.abc import Sequence
from typing import Protocol

from driftlog_tiering.foundation.types import Buffer


class BufferFile(Protocol):
    """An append-only file of the present session, kept open."""

    @property
    def size(self) -> int:
        """Bytes appended in this use of the file."""
        ...

    @property
    def alive(self) -> bool:
        """False once the file was recycled or removed: positions in it are then invalid."""
        ...

    @property
    def trusted(self) -> bool:
        """False once a sync failed: it may hold its old bytes, or nothing."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write at the end, not synced; returns the position of the first byte.

        Raises:
            UnavailableError: not (wholly) written; the file is not written to again.
        """
        ...

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Exactly *length* bytes that were appended; the buffer is the caller's own.

        Raises:
            UnavailableError: an I/O error, or fewer bytes are there.
        """
        ...

    async def sync(self) -> None:
        """When it returns, everything appended before the call survives a power failure.

        Raises:
            UnavailableError: it may be lost; the file is not written to again.
        """
        ...


class AgentDisk(Protocol):
    """The agent's directory.

    Methods that create, change or remove folders, notes and small files wait for the disk without
    blocking the event loop.  They run one after the other, in the order of their calls.  A
    cancelled call may still run, before later calls.
    """

    def sessions(self) -> list[str]:
        """Ids of the sessions that left buffer files, in any order."""
        ...

    async def create_session(self, session_id: str) -> None:
        """Create the session's folder, durably; a failed attempt may be repeated."""
        ...

    def create_file(self, session_id: str, number: int) -> BufferFile:
        """A new empty file; numbers of a session ascend.

        It survives a power failure from its first `sync` on; before, it may be gone, or be there.
        """
        ...

    def recycle_file(self, file: BufferFile, session_id: str, number: int) -> BufferFile:
        """Use *file*'s pages for a new one; *file* is no longer alive.

        Until the first `sync` of the new one, a power failure may restore the old name.
        """
        ...

    def remove_file(self, file: BufferFile) -> None:
        """Close and delete; *file* is no longer alive."""
        ...

    async def read_files(self, session_id: str) -> list[int]:
        """Numbers of the files that the session left, ascending; empty: no such session."""
        ...

    async def read_file(self, session_id: str, number: int) -> bytes:
        """All bytes of a file, with the bytes that earlier uses left after its end."""
        ...

    async def remove_session(self, session_id: str) -> None:
        """Delete the session's folder with its files and its note; a missing one is no error."""
        ...

    async def create_kept(self, session_id: str) -> None:
        """Begin to set files of the session aside; deletes what an earlier attempt left.

        Raises:
            UnavailableError: the session stays as it is, and may be set aside again; also in the
                next two methods.
        """
        ...

    async def write_kept(self, session_id: str, number: int, data: bytes) -> None:
        """Write one of the buffer files that are set aside."""
        ...

    async def finish_kept(self, session_id: str, note: bytes) -> str:
        """Keep these files with *note*, whole or not at all, durably; returns the path for people.

        *note*: an encoded `Leftovers` with the time at which they were set aside.  The session's
        folder is deleted, at the next start at the latest, and `sessions` omits it.
        """
        ...

    def kept(self) -> list[str]:
        """Ids of sessions with files set aside that still exist, and their note."""
        ...

    def count_kept(self) -> int:
        """Number of `kept` sessions; their notes are read only after a change of these folders."""
        ...

    async def load_note(self, session_id: str) -> bytes | None:
        """The session's last note; None: no note, or no such session."""
        ...

    async def save_note(self, session_id: str, data: bytes) -> None:
        """Replace the note in the session's folder, whole or not at all, durably.

        It is deleted with the folder, after all files in it; as long as a file stays, it stays.

        Raises:
            UnavailableError: the note before may still be there, or not.
        """
        ...

    def load(self, name: str) -> bytes | None:
        """A small file of the agent's own (its node id); None: not there."""
        ...

    async def save(self, name: str, data: bytes) -> None:
        """Replace a small file, whole or not at all, durably."""
        ...

    def close(self) -> None:
        """Close every file and release the lock."""
        ...
