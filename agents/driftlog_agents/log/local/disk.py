"""The disk port: an agent's directory of buffer files, one folder per session.

The directory belongs to one process at a time: opening it takes a lock, so the process that
has it knows that all earlier sessions in it are dead.

Every method may raise `UnavailableError` (disk full, quota, I/O error): what was
to be written is then not there, as far as a caller may rely on.

Port: `tests/contract/test_disk.py` is its definition.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class BufferFile(Protocol):
    """An append-only file of the present session, kept open."""

    @property
    def size(self) -> int:
        """Bytes appended in this use of the file."""
        ...

    @property
    def alive(self) -> bool:
        """False once the file was recycled or removed: positions in it mean nothing then."""
        ...

    @property
    def trusted(self) -> bool:
        """False once a sync failed: what it holds may be what it held before, or nothing."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write at the end, not synced; returns the position of the first byte.

        Raises:
            UnavailableError: not (wholly) written; the file is not written to again.
        """
        ...

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Exactly *length* bytes that were appended; the caller has them to itself.

        Raises:
            UnavailableError: an I/O error, or fewer bytes are there.
        """
        ...

    async def sync(self) -> None:
        """Everything appended before this call survives the loss of power when it returns.

        Raises:
            UnavailableError: it may not; the file is not written to again.
        """
        ...


class AgentDisk(Protocol):
    """The agent's directory.

    What makes, changes or removes folders, notes and small files waits for the disk, and the event
    loop does not wait with it: these methods are done one after the other, in the order of their
    calls.  One that was cancelled may be done all the same, before those that were called later.
    """

    def sessions(self) -> list[str]:
        """Ids of the sessions that left buffer files, in any order."""
        ...

    async def create_session(self, session_id: str) -> None:
        """Make the session's folder, durably; an attempt that failed may be repeated."""
        ...

    def create_file(self, session_id: str, number: int) -> BufferFile:
        """A new empty file; numbers of a session ascend.

        It survives the loss of power from its first `sync` on; before, it may be gone, or be there.
        """
        ...

    def recycle_file(self, file: BufferFile, session_id: str, number: int) -> BufferFile:
        """Use *file*'s pages for a new one; *file* is no longer alive.

        Until the first `sync` of the new one, the loss of power may give it its old name back.
        """
        ...

    def remove_file(self, file: BufferFile) -> None:
        """Close and delete; *file* is no longer alive."""
        ...

    async def read_files(self, session_id: str) -> list[int]:
        """Numbers of the files that the session left, ascending; none: no such session."""
        ...

    async def read_file(self, session_id: str, number: int) -> bytes:
        """All bytes of a file, with what earlier uses left behind its end."""
        ...

    async def remove_session(self, session_id: str) -> None:
        """Delete the session's folder with its files and its note; none is no error."""
        ...

    async def create_kept(self, session_id: str) -> None:
        """Begin to set something of the session aside; what an attempt before has left is gone.

        Raises:
            UnavailableError: the session stays as it is; so with the next two.
        """
        ...

    async def write_kept(self, session_id: str, number: int, data: bytes) -> None:
        """A buffer file of what is set aside."""
        ...

    async def finish_kept(self, session_id: str, note: bytes) -> str:
        """Keep these files with *note*, whole or not at all, durably; the path for people.

        The session's folder is deleted, at the next start at the latest: it is no session any more.
        """
        ...

    def kept(self) -> list[str]:
        """Ids of sessions of which something is set aside and still there."""
        ...

    async def load_note(self, session_id: str) -> bytes | None:
        """What was last noted about the session; None: nothing, or no such session."""
        ...

    async def save_note(self, session_id: str, data: bytes) -> None:
        """Note something in the session's folder, whole or not at all, durably.

        It goes with the folder: after everything else in it, and where that is kept, too.

        Raises:
            UnavailableError: what was there before may be there still, or not.
        """
        ...

    def load(self, name: str) -> bytes | None:
        """A small file of the agent's own (its node id); None: not there."""
        ...

    async def save(self, name: str, data: bytes) -> None:
        """Replace a small file, whole or not at all, durably."""
        ...

    def close(self) -> None:
        """Close every file and give the lock back."""
        ...
