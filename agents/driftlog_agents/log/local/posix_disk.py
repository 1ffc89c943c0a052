"""The disk port on a POSIX directory.

`directory_names` says what is in it.  `fdatasync` runs on one thread.  Operations on folders and
small files, with their `fsync`, run on another one, so that both keep their order.  Folders and
files are private to the agent: 0700 and 0600, also those that an earlier release made.

Adapter.
"""

import asyncio
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from driftlog_agents.log.local.directory_names import (
    BUFFER,
    KEPT,
    LOCK,
    NOTE,
    OWN_FOLDERS,
    PARTS,
    file_name,
    file_numbers,
    is_session,
    part_name,
    says_whole,
    tightened,
)
from driftlog_agents.log.local.disk import BufferFile
from driftlog_agents.log.local.posix_buffer_file import (
    PosixBufferFile,
    identity_of,
    sync_directory,
)
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_tiering.stores.buffer_pool import BufferPool

_POOL_BYTES: Final = 32 * 1024 * 1024
"""Size of the pool, for answers on their way to consumers; the allocator serves the rest."""
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_SAME_TICK_NS: Final = 2_000_000_000
"""The coarsest clock of a file system: FAT stores even seconds."""


_T = TypeVar("_T")


class DirectoryLockedError(FencedError):
    """Another process has the lock of the directory."""


class PosixDisk:
    """An `AgentDisk` on a directory, which is created if it is missing.

    Raises:
        DirectoryLockedError: another process has the directory; the message names it.
        UnavailableError: the directory cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._buffer = root / BUFFER
        self._kept = root / KEPT
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
            self._lock = os.open(root / LOCK, flags, _FILE_MODE)
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
            root / LOCK: identity_of(os.fstat(self._lock)),
            self._buffer: identity_of(self._buffer.stat()),
        }
        self._identities_hold = self._identities == {
            path: identity_of(path.stat()) for path in self._identities
        }
        """The file system reports the same number for a file each time; some FUSE, 9p and SMB do
        not."""

    def _tighten(self) -> None:
        """Remove the access of other users that an earlier release, or a mkdir, granted.

        Objects below the directory keep their modes: other users cannot reach them through it.
        """
        try:
            paths = [self._root, *self._root.iterdir()]
            for name in OWN_FOLDERS:
                paths += (self._root / name).rglob("*")
            for path in paths:
                status = path.lstat()
                mode = tightened(stat.S_IMODE(status.st_mode))
                if mode is not None and not stat.S_ISLNK(status.st_mode):
                    path.chmod(mode)
                    self.tightened += 1
        except OSError as error:  # a path of another user, such as a mounted volume
            self.open_to_others = str(error)

    def moved_to(self) -> Path | None:
        """Where the directory is now, with its lock and buffers; None: it did not move, or the
        system cannot tell (only Linux can)."""
        try:
            now = Path(os.readlink(f"/proc/self/fd/{self._lock}"))
            found = {
                self._root / LOCK: identity_of(now.stat()),
                self._buffer: identity_of((now.parent / self._buffer.name).stat()),
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
                there = identity_of(path.stat())
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
                if path.is_dir() and is_session(path.name) and path.name not in kept
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
        return file_numbers(names)

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
        await self._keeping(_save, self._part(session_id) / file_name(number), data)

    async def finish_kept(self, session_id: str, note: bytes) -> str:
        part, folder = self._part(session_id), self._kept / session_id
        await self._keeping(_save, part / NOTE, note)
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
            return [name for name in names if is_session(name) and self._is_kept(name)]
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
        with suppress(UnavailableError):
            return says_whole(_load(self._kept / session_id / NOTE))
        return False

    def _part(self, session_id: str) -> Path:
        return self._kept / part_name(session_id)

    def _sweep_kept(self) -> None:
        """Finish what a killed process began: delete the folders of sessions that are set aside,
        and the parts of unfinished ones."""
        with suppress(OSError):
            sync_directory(self._kept)  # the killed process may not have done this
            for session_id in self.kept():
                _remove_folder(self._buffer / session_id)
        for part in self._kept.glob(PARTS):
            shutil.rmtree(part, ignore_errors=True)

    async def load_note(self, session_id: str) -> bytes | None:
        return await self._run(_load, self._buffer / session_id / NOTE)

    async def save_note(self, session_id: str, data: bytes) -> None:
        await self._run(_save, self._buffer / session_id / NOTE, data)

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
        return self._buffer / session_id / file_name(number)


def _make_folder(path: Path) -> None:
    path.mkdir(mode=_FOLDER_MODE, exist_ok=True)  # a failed attempt may have made it
    sync_directory(path.parent)


def _remove_folder(folder: Path) -> None:
    noted = False
    with suppress(OSError):  # `exists` raises the error of a broken disk
        noted = (folder / NOTE).exists()
    if noted:
        # The note says which batches of the files are elsewhere already: no file stays without it.
        with suppress(OSError):
            for path in folder.glob("*.buf"):
                path.unlink()
            sync_directory(folder)
            shutil.rmtree(folder, ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _make_part(part: Path) -> None:
    part.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    sync_directory(part.parent.parent)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=_FOLDER_MODE)


def _rename_durably(source: Path, target: Path) -> None:
    source.rename(target)
    try:
        sync_directory(target.parent)
    except OSError:
        # A power failure may undo the rename, so nothing may rely on it.
        target.rename(source)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)


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
        sync_directory(path.parent)
    except OSError as error:
        raise UnavailableError(f"cannot write {path}: {error.strerror}") from error
