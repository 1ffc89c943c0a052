"""The disk port on a POSIX directory.

    DIR/lock                              flock; names the process that holds it
    DIR/node_id.json, …                   small files of the agent
    DIR/buffer/{session_id}/{number:010d}.buf
    DIR/buffer/{session_id}/leftovers.json    the note about it
    DIR/kept/{session_id}/…                   the files set aside of it, and leftovers.json

Writes happen on the event loop's thread: a `write` to the page cache takes less time than passing
it to a thread.  `fdatasync` runs on one thread.  Operations on folders and small files, with their
`fsync`, run on another one, so that both keep their order.  Folders and files are private to the
agent: 0700 and 0600, also those that an earlier release made.  The name of a buffer file is durable
with the file's first sync: before, nothing in it is promised.

Adapter.
"""

import asyncio
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from driftlog_agents.log.local.disk import Buffer, BufferFile
from driftlog_agents.log.local.leftovers import decode_leftovers
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_tiering.stores.buffer_pool import BufferPool

_IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_JOIN_BYTES: Final = 4096
_POOLED: Final = range(32 * 1024, 4 * 1024 * 1024 + 1)
"""Reads of these sizes go into pooled memory."""
_POOL_BYTES: Final = 32 * 1024 * 1024
"""Size of the pool, for answers on their way to consumers; the allocator serves the rest."""
_SESSION: Final = re.compile(r"[0-9a-f]{32}")
_FILE: Final = re.compile(r"[0-9]+\.buf")
_NOTE: Final = "leftovers.json"
_PART: Final = ".part"
"""Suffix of a folder whose files are not all set aside yet."""
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_OTHERS: Final = 0o077
"""Bits of a mode that group and others have."""
_OWN_FOLDERS: Final = ("buffer", "kept", "spool")
_SAME_TICK_NS: Final = 2_000_000_000
"""The coarsest clock of a file system: FAT stores even seconds."""
_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


_T = TypeVar("_T")


class DirectoryLockedError(FencedError):
    """Another process has the lock of the directory."""


class PosixBufferFile:
    """A `BufferFile` on a file descriptor."""

    __slots__ = (
        "_executor",
        "_named",
        "_pool",
        "_size",
        "_torn",
        "alive",
        "descriptor",
        "identity",
        "path",
        "trusted",
    )

    def __init__(
        self, descriptor: int, path: Path, executor: ThreadPoolExecutor, pool: BufferPool
    ) -> None:
        self.descriptor = descriptor
        self.path = path
        self.identity = _identity(os.fstat(descriptor))
        self.alive = True
        self.trusted = True
        self._executor = executor
        self._pool = pool
        self._size = 0
        self._named = False
        """Its folder was synced after the file got its name."""
        self._torn = False
        """A part of a failed append is at its end.  The bytes before it can still be synced."""

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        assert self.alive
        if self._torn or not self.trusted:
            raise UnavailableError(f"{self.path} failed before and is not written to")
        start = self._size
        try:
            for i in range(0, len(buffers), _IOV_MAX):
                self._write(list(buffers[i : i + _IOV_MAX]))
        except OSError as error:
            self._torn = True
            self._size = start
            raise UnavailableError(f"cannot write {self.path}: {error.strerror}") from error
        return start

    def _write(self, buffers: list[Buffer]) -> None:
        total = sum(map(len, buffers))
        if total < len(buffers) * _JOIN_BYTES:
            buffers = [b"".join(buffers)]  # copying small ones costs less than a vector of them
        if (written := os.pwritev(self.descriptor, buffers, self._size)) == total:
            self._size += total
            return
        self._write_rest(buffers, written)

    def _write_rest(self, buffers: list[Buffer], written: int) -> None:
        """Continue after a partial write: the disk is about to be full."""
        self._size += written
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            written = os.pwrite(self.descriptor, rest, self._size)
            self._size += written
            rest = rest[written:]

    def read(self, position: int, length: int) -> bytes | memoryview:
        assert self.alive
        if position + length > self._size:
            # The file may have bytes there, of an earlier use or of a failed append.
            raise UnavailableError(f"{self.path} does not hold {length} bytes at {position}")
        data: bytes | memoryview
        try:
            if _POOLED.start <= length < _POOLED.stop:
                data = memoryview(self._pool.take(length))[:length]
                found = os.preadv(self.descriptor, [data], position)
            else:
                data = os.pread(self.descriptor, length, position)
                found = len(data)
        except OSError as error:
            raise UnavailableError(f"cannot read {self.path}: {error.strerror}") from error
        if found != length:
            raise UnavailableError(f"{self.path} is shorter than what was written to it")
        return data

    async def sync(self) -> None:
        if not self.trusted:
            # Linux reports a lost write once per descriptor: the next fdatasync would succeed.
            raise UnavailableError(f"{self.path} failed before and is not trusted again")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._sync)
        except OSError as error:
            self.trusted = False
            raise UnavailableError(f"cannot sync {self.path}: {error.strerror}") from error

    def _sync(self) -> None:
        if not self._named:
            _sync_directory(self.path.parent)
            self._named = True
        _sync_data(self.descriptor)


class PosixDisk:
    """An `AgentDisk` on a directory, which is created if it is missing.

    Raises:
        DirectoryLockedError: another process has the directory; the message names it.
        UnavailableError: the directory cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._buffer = root / "buffer"
        self._kept = root / "kept"
        self._executor = ThreadPoolExecutor(1, "sync")
        self._folders = ThreadPoolExecutor(1, "folders")
        self._pool = BufferPool(_POOL_BYTES)
        self._files: set[PosixBufferFile] = set()
        self._counted: tuple[int, int] | None = None
        """When DIR/kept last changed, and the number of its directories then."""
        self.tightened = 0
        """Folders and files from which the start removed the access of other users."""
        self.open_to_others = ""
        """Why the directory could not be tightened."""
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            self._buffer.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(root / "lock", flags, _FILE_MODE)
        except OSError as error:
            raise UnavailableError(
                f"cannot use {root} as data directory: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 100, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise DirectoryLockedError(
                f"another agent runs on {root} (process {holder or 'unknown'}): stop it first, or "
                f"give this one a directory of its own with --dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        self._sweep_kept()
        self._tighten()
        self._identities = {
            root / "lock": _identity(os.fstat(self._lock)),
            self._buffer: _identity(self._buffer.stat()),
        }
        self._identities_hold = self._identities == {
            path: _identity(path.stat()) for path in self._identities
        }
        """The file system reports the same number for a file each time; some FUSE, 9p and SMB do
        not."""

    def _tighten(self) -> None:
        """Remove the access of other users that an earlier release, or a mkdir, granted.

        Objects below the directory keep their modes: other users cannot reach them through it.
        """
        try:
            paths = [self._root, *self._root.iterdir()]
            for name in _OWN_FOLDERS:
                paths += (self._root / name).rglob("*")
            for path in paths:
                status = path.lstat()
                if status.st_mode & _OTHERS and not stat.S_ISLNK(status.st_mode):
                    path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
                    self.tightened += 1
        except OSError as error:  # a path of another user, such as a mounted volume
            self.open_to_others = str(error)

    def moved_to(self) -> Path | None:
        """Where the directory is now, with its lock and buffers; None: it did not move, or the
        system cannot tell (only Linux can)."""
        try:
            now = Path(os.readlink(f"/proc/self/fd/{self._lock}"))
            found = {
                self._root / "lock": _identity(now.stat()),
                self._buffer: _identity((now.parent / self._buffer.name).stat()),
            }
            here = self._root.exists() and self._root.samefile(now.parent)
        except OSError:
            return None
        return None if here or found != self._identities else now.parent

    def removed(self) -> str | None:
        """A path that was removed or replaced since it was opened; None: none that can be seen."""
        expected = {**self._identities, **{file.path: file.identity for file in self._files}}
        for path, identity in expected.items():
            try:
                there = _identity(path.stat())
            except (FileNotFoundError, NotADirectoryError):
                return str(path)
            except OSError:
                continue  # the next read or write raises that
            if there != identity and self._identities_hold:
                return str(path)
        return None

    def sessions(self) -> list[str]:
        kept = set(self.kept())
        try:
            return [
                path.name
                for path in self._buffer.iterdir()
                if path.is_dir() and _SESSION.fullmatch(path.name) and path.name not in kept
            ]
        except OSError as error:
            raise UnavailableError(f"cannot list {self._buffer}: {error.strerror}") from error

    async def create_session(self, session_id: str) -> None:
        try:
            await self._run(_make_folder, self._buffer / session_id)
        except OSError as error:
            raise UnavailableError(f"cannot write {self._buffer}: {error.strerror}") from error

    def create_file(self, session_id: str, number: int) -> PosixBufferFile:
        path = self._path(session_id, number)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, _FILE_MODE)
        except OSError as error:
            raise UnavailableError(f"cannot create {path}: {error.strerror}") from error
        return self._opened(PosixBufferFile(descriptor, path, self._executor, self._pool))

    def recycle_file(self, file: BufferFile, session_id: str, number: int) -> PosixBufferFile:
        assert isinstance(file, PosixBufferFile)
        path = self._path(session_id, number)
        try:
            os.rename(file.path, path)
            file.path = path
        except OSError as error:
            raise UnavailableError(f"cannot rename {file.path}: {error.strerror}") from error
        file.alive = False
        self._files.discard(file)
        return self._opened(PosixBufferFile(file.descriptor, path, self._executor, self._pool))

    def _opened(self, file: PosixBufferFile) -> PosixBufferFile:
        self._files.add(file)
        return file

    def remove_file(self, file: BufferFile) -> None:
        assert isinstance(file, PosixBufferFile)
        self._close(file)
        with suppress(OSError):
            file.path.unlink(missing_ok=True)

    def _close(self, file: PosixBufferFile) -> None:
        if file.alive:
            file.alive = False
            os.close(file.descriptor)
        self._files.discard(file)

    async def read_files(self, session_id: str) -> list[int]:
        folder = self._buffer / session_id
        try:
            names = os.listdir(folder)  # (a glob finds nothing in a folder that it cannot list)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnavailableError(f"cannot list {folder}: {error.strerror}") from error
        return sorted(int(name[:-4]) for name in names if _FILE.fullmatch(name))

    async def read_file(self, session_id: str, number: int) -> bytes:
        path = self._path(session_id, number)
        try:
            return await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror}") from error

    async def remove_session(self, session_id: str) -> None:
        folder = self._buffer / session_id
        for file in [f for f in self._files if f.path.parent == folder]:
            self._close(file)
        await self._run(_remove_folder, folder)

    async def create_kept(self, session_id: str) -> None:
        await self._keeping(_make_part, self._part(session_id))

    async def write_kept(self, session_id: str, number: int, data: bytes) -> None:
        await self._keeping(_save, self._part(session_id) / _file_name(number), data)

    async def finish_kept(self, session_id: str, note: bytes) -> str:
        part, folder = self._part(session_id), self._kept / session_id
        await self._keeping(_save, part / _NOTE, note)
        await self._keeping(_rename_durably, part, folder)
        await self.remove_session(session_id)
        return str(folder)

    async def _keeping(self, fn: Callable[..., object], *args: object) -> None:
        try:
            await self._run(fn, *args)
        except OSError as error:
            path = error.filename2 or self._kept  # a rename's target: a folder that is in its way
            raise UnavailableError(f"cannot write {path}: {error.strerror}") from error

    def kept(self) -> list[str]:
        with suppress(OSError):
            names = os.listdir(self._kept)
            return [name for name in names if _SESSION.fullmatch(name) and self._is_kept(name)]
        return []

    def count_kept(self) -> int:
        try:
            changed_ns = self._kept.stat().st_mtime_ns
        except OSError:
            return 0
        if self._counted is None or self._counted[0] != changed_ns:
            count = len(self.kept())
            if time.time_ns() - changed_ns < _SAME_TICK_NS:
                return count  # a change in the same tick of the file system's clock leaves its time
            self._counted = changed_ns, count
        return self._counted[1]

    def _is_kept(self, session_id: str) -> bool:
        """Whether the note says that the folder is whole.  A copy of a session's folder, and what
        an interrupted removal left, have no such note."""
        try:
            note = _load(self._kept / session_id / _NOTE)
            return note is not None and decode_leftovers(note).set_aside_at_ms is not None
        except (UnavailableError, CorruptError):
            return False

    def _part(self, session_id: str) -> Path:
        return self._kept / f".{session_id}{_PART}"

    def _sweep_kept(self) -> None:
        """Finish what a killed process began: delete the folders of sessions that are set aside,
        and the parts of unfinished ones."""
        with suppress(OSError):
            _sync_directory(self._kept)  # the killed process may not have done this
            for session_id in self.kept():
                _remove_folder(self._buffer / session_id)
        for part in self._kept.glob(f".*{_PART}"):
            shutil.rmtree(part, ignore_errors=True)

    async def load_note(self, session_id: str) -> bytes | None:
        return await self._run(_load, self._buffer / session_id / _NOTE)

    async def save_note(self, session_id: str, data: bytes) -> None:
        await self._run(_save, self._buffer / session_id / _NOTE, data)

    def load(self, name: str) -> bytes | None:
        return _load(self._root / name)

    async def save(self, name: str, data: bytes) -> None:
        await self._run(_save, self._root / name, data)

    async def _run(self, fn: Callable[..., _T], *args: object) -> _T:
        """Run in the one thread of folders: a cancelled call ends before the next begins."""
        return await asyncio.get_running_loop().run_in_executor(self._folders, fn, *args)

    def close(self) -> None:
        self._folders.shutdown()
        self._executor.shutdown()
        for file in list(self._files):
            self._close(file)
        os.close(self._lock)

    def _path(self, session_id: str, number: int) -> Path:
        return self._buffer / session_id / _file_name(number)


def _make_folder(path: Path) -> None:
    path.mkdir(mode=_FOLDER_MODE, exist_ok=True)  # a failed attempt may have made it
    _sync_directory(path.parent)


def _remove_folder(folder: Path) -> None:
    noted = False
    with suppress(OSError):  # `exists` raises the error of a broken disk
        noted = (folder / _NOTE).exists()
    if noted:
        # The note says which batches of the files are elsewhere already: no file stays without it.
        with suppress(OSError):
            for path in folder.glob("*.buf"):
                path.unlink()
            _sync_directory(folder)
            shutil.rmtree(folder, ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _make_part(part: Path) -> None:
    part.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    _sync_directory(part.parent.parent)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=_FOLDER_MODE)


def _rename_durably(source: Path, target: Path) -> None:
    source.rename(target)
    try:
        _sync_directory(target.parent)
    except OSError:
        # A power failure may undo the rename, so nothing may rely on it.
        target.rename(source)
        raise


def _file_name(number: int) -> str:
    return f"{number:010d}.buf"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error


def _save(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise UnavailableError(f"cannot write {path}: {error.strerror}") from error
