"""The object store in a directory: one file per object, its path is its key.

    put, create                                             a crash leaves
      write .tmp/{owner}/{n} ─▶ fdatasync                   a leftover, swept at the next start
      ─▶ rename (put) or link (create, fails when there)    the object or none, never half of it
      ─▶ fsync of the folder, and of the parents of new ones

`create` syncs the folder before it answers that the object exists, too: the caller may take that
for the success of its own attempt.

A temporary folder is locked (flock) by the store that owns it, so several processes
may share a root and each sweeps only the folders of dead ones.  Folders that `delete`
empties are removed.

The store's clock is the file system's: `Listing.store_now_ms` is the time of a file
touched now, so that ages are right on a network file system too.

*Non-obvious.*  A walk in the order of keys is not a walk in the order of names:
``a.b`` sorts before ``a/x`` and the folder ``a`` before both, so a folder sorts as
``a/``.  macOS ignores case and Unicode normal forms in names: there, keys that differ
only in these are one object (driftlog's own carry ids that differ otherwise), and
fsync does not reach the platter (F_FULLFSYNC would, at 20 ms a call; macOS is for
development).  A folder that two processes remove and make at the same moment relies
on an ordered journal (ext4, XFS, APFS) for the entry in *its* parent.

Adapter.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import stat as stat_modes
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Final, TypeVar

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.file_reads import FileReads
from driftlog_tiering.stores.file_writes import write_new_file
from driftlog_tiering.stores.object_keys import (
    MAX_PAGE_SIZE,
    TEMPORARY,
    check_key,
    check_page_size,
    check_range,
    is_key,
)
from driftlog_tiering.stores.object_store import (
    AlreadyExistsError,
    Listing,
    NotFoundError,
    ObjectInfo,
)

T = TypeVar("T")

THREADS: Final = 8
"""Uploads in flight and cold reads at once; each waits for the disk, outside the GIL."""

_MAX_KNOWN_FOLDERS: Final = 100_000
"""Folders remembered as durable, about 20 MB.  Beyond it all are forgotten, and synced again."""

_PUBLISH_ATTEMPTS: Final = 10
"""How often a `put` makes its folder again that a `delete` removes meanwhile."""

_ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DirectoryObjectStore:
    """A bucket that is a folder; the store makes a missing one.

    Args:
        root: the folder.
        fsync: False gives up durability (not atomicity) for speed: tests.

    Raises:
        UnavailableError: *root* cannot be used; the message says why.
    """

    def __init__(self, root: str | os.PathLike[str], fsync: bool = True) -> None:
        self._root = Path(root).absolute()
        self._fsync = fsync
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="directory-store")
        self._reads = FileReads()
        self._temporary = _TemporaryFolder(self._root / TEMPORARY)
        self._folders = threading.Lock()
        self._durable: set[str] = {""}
        self._removals = 0
        try:
            self._make_root()
        except OSError as error:
            raise UnavailableError(f"cannot keep objects in {self._root}: {error}") from error

    # ── The port ──

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        await self._write(key, body, os.rename)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        await self._write(key, body, os.link)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        check_key(key)
        check_range(start, end)
        return await self._in_pool(lambda: self._read(key, start, end))

    async def stat(self, key: str) -> ObjectInfo:
        check_key(key)
        return await self._in_pool(lambda: self._info(key))

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = MAX_PAGE_SIZE
    ) -> AsyncIterator[Listing]:
        check_page_size(page_size)
        folder = prefix[: prefix.rfind("/") + 1]
        objects: Iterator[ObjectInfo] = iter(())
        if folder == "" or is_key(folder[:-1]):
            objects = self._walk(folder, prefix, start_after)
        first = True
        while True:
            page = await self._in_pool(lambda: self._page(objects, page_size))
            if page.objects or first:
                yield page
            if len(page.objects) < page_size:
                return
            first = False

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for i in range(0, len(keys), MAX_PAGE_SIZE):
            batch = keys[i : i + MAX_PAGE_SIZE]
            await self._in_pool(lambda batch=batch: self._unlink(batch))  # type: ignore[misc]

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        self._temporary.close()

    async def _in_pool(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, job)

    # ── Writing: one hop to the pool ──

    async def _write(
        self, key: str, body: Sequence[Buffer], publish: Callable[[Path, Path], None]
    ) -> None:
        check_key(key)
        call = _Call()
        try:
            await self._in_pool(lambda: self._store(call, key, body, publish))
        except asyncio.CancelledError:
            # The caller may change the buffers now, so an unpublished object is never published.
            call.abandoned = True
            raise

    def _store(
        self,
        call: "_Call",
        key: str,
        body: Sequence[Buffer],
        publish: Callable[[Path, Path], None],
    ) -> None:
        try:
            temporary = self._temporary.new_file()
        except OSError as error:
            raise UnavailableError(f"{key}: {error}") from error
        try:
            with _refused(key):
                write_new_file(temporary, body, sync=self._fsync, abandoned=lambda: call.abandoned)
            if not call.abandoned:
                self._publish(key, temporary, publish)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _publish(self, key: str, temporary: Path, publish: Callable[[Path, Path], None]) -> None:
        folder = key.rpartition("/")[0]
        removals = self._removals
        for _ in range(_PUBLISH_ATTEMPTS):
            try:
                self._make_durable(folder)
                publish(temporary, self._root / key)
                break
            except FileNotFoundError:
                self._forget(folder)  # A delete, here or in another process, removed it.
            except FileExistsError as error:
                if (self._root / key).is_dir():
                    raise ValueError(f"{key!r} is the folder of another key") from error
                # Its writer may not have synced it: an earlier attempt of the caller, perhaps.
                with _not_durable(key):
                    self._sync_folder(folder)
                raise AlreadyExistsError(key) from error
            except IsADirectoryError as error:
                raise ValueError(f"{key!r} is the folder of another key") from error
            except OSError as error:
                raise _publish_error(key, error) from error
        else:
            raise UnavailableError(f"{key}: its folder is removed as often as it is made")
        with _not_durable(key):
            self._sync_folder(folder)
            if self._removals != removals:
                with contextlib.suppress(FileNotFoundError):  # deleted since: nothing to sync
                    self._make_durable(folder)

    # ── Folders ──

    def _make_root(self) -> None:
        missing = [self._root, *self._root.parents]
        new = [folder for folder in missing if not folder.exists()]
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in new if self._fsync else ():
            _sync_path(folder.parent)
        self._temporary.sweep()

    def _make_durable(self, folder: str) -> None:
        """
        Make *folder* and its parents, and their entries durable: once per process.

        Raises:
            FileNotFoundError: another process removed one of them meanwhile: try again.
        """
        if folder in self._durable:
            return
        with self._folders:
            if len(self._durable) > _MAX_KNOWN_FOLDERS:
                self._durable = {""}
            unknown = [folder]
            while unknown[-1] not in self._durable:
                unknown.append(unknown[-1].rpartition("/")[0])
            for name in reversed(unknown[:-1]):
                path = self._root / name
                try:
                    path.mkdir()
                except FileExistsError:
                    # One stat: another process may remove the folder and make it again meanwhile.
                    if not stat_modes.S_ISDIR(path.stat().st_mode):
                        raise ValueError(f"the folder {name!r} is an object") from None
                self._sync_folder(name.rpartition("/")[0])
                self._durable.add(name)

    def _forget(self, folder: str) -> None:
        with self._folders:
            while folder:
                self._durable.discard(folder)
                folder = folder.rpartition("/")[0]

    def _remove_if_empty(self, folder: str) -> None:
        with self._folders, contextlib.suppress(OSError):
            while folder:
                (self._root / folder).rmdir()
                self._durable.discard(folder)
                self._removals += 1
                folder = folder.rpartition("/")[0]

    def _sync_folder(self, folder: str) -> None:
        if self._fsync:
            with contextlib.suppress(FileNotFoundError):  # removed since: nothing to sync
                _sync_path(self._root / folder)

    def _unlink(self, keys: Sequence[str]) -> None:
        removed = 0
        folders: dict[str, None] = {}
        try:
            for key in keys:
                if _unlinked(self._root / key):
                    removed += 1
                    folders[key.rpartition("/")[0]] = None
            for folder in folders:
                self._sync_folder(folder)
        except OSError as error:
            if removed:
                raise OutcomeUnknownError(f"{removed} of {len(keys)}, then: {error}") from error
            raise UnavailableError(str(error)) from error
        for folder in folders:
            self._remove_if_empty(folder)

    # ── Reading ──

    def _read(self, key: str, start: int, end: int | None) -> Buffer:
        with self._found(key):
            fd = os.open(self._root / key, os.O_RDONLY)
            try:
                status = os.fstat(fd)
                if not stat_modes.S_ISREG(status.st_mode):
                    raise NotFoundError(key)
                stop = status.st_size if end is None else min(end, status.st_size)
                return self._reads.read(fd, start, stop)
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def _found(self, key: str) -> Iterator[None]:
        with _refused(key):
            try:
                yield
            except _ABSENT as error:
                self._check_there()
                raise NotFoundError(key) from error

    def _check_there(self) -> None:
        """Check that the bucket's folder exists: if it is gone (a share that is not mounted), an
        absent object proves nothing.

        Raises:
            UnavailableError: the folder is gone.
        """
        if self._temporary.is_gone() or not self._root.is_dir():
            raise UnavailableError(f"{self._root} is not there any more: is it mounted?")

    def _info(self, key: str) -> ObjectInfo:
        with self._found(key):
            status = (self._root / key).stat()
        if not stat_modes.S_ISREG(status.st_mode):
            raise NotFoundError(key)
        return _object_info(key, status)

    def _page(self, objects: Iterator[ObjectInfo], size: int) -> Listing:
        with _refused("listing"):
            page = tuple(islice(objects, size))
        self._check_there()
        return Listing(page, self._temporary.now_ms())

    def _walk(self, folder: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Objects in *folder* (``""`` or ending in ``/``), by key, reading no other folders."""
        try:
            names = sorted(self._names(folder, prefix, start_after))
        except _ABSENT:
            return
        for name in names:
            if name.endswith("/"):
                yield from self._walk(name, prefix, start_after)
            elif is_key(name):
                with contextlib.suppress(FileNotFoundError):  # Deleted since.
                    yield _object_info(name, (self._root / name).stat())

    def _names(self, folder: str, prefix: str, start_after: str) -> Iterator[str]:
        with os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    name = f"{folder}{entry.name}/"
                    inside = name.startswith(prefix) or prefix.startswith(name)
                    later = name > start_after or start_after.startswith(name)
                    if inside and later and name.lower() != f"{TEMPORARY}/":
                        yield name
                elif entry.is_file(follow_symlinks=False):
                    name = f"{folder}{entry.name}"
                    if name.startswith(prefix) and name > start_after:
                        yield name


class _Call:
    """One write; *abandoned*: its caller was cancelled, and may change the buffers."""

    def __init__(self) -> None:
        self.abandoned = False


class _TemporaryFolder:
    """``.tmp/{owner}``: made at the first write, locked as long as its owner lives."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._numbers = count()
        self._making = threading.Lock()
        self._own: Path | None = None
        self._lock_fd = -1

    def new_file(self) -> Path:
        """A path that no other writer uses."""
        return self._folder() / str(next(self._numbers))

    def now_ms(self) -> int:
        """The file system's clock; the process's where it may not write (a read-only mount)."""
        try:
            clock = self._folder() / "clock"
            clock.touch()
            return clock.stat().st_mtime_ns // 1_000_000
        except OSError:
            return time.time_ns() // 1_000_000

    def sweep(self) -> None:
        """Remove the folders of dead owners: their locks are free."""
        with contextlib.suppress(FileNotFoundError):
            for folder in list(self._parent.iterdir()):
                with contextlib.suppress(OSError):
                    fd = _lock(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(fd)

    def is_gone(self) -> bool:
        """Whether the folder was made, and does not exist any more."""
        own = self._own
        return own is not None and not own.is_dir()

    def close(self) -> None:
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock_fd)
            self._own = None

    def _folder(self) -> Path:
        with self._making:
            while self._own is None:
                own = self._parent / uuid.uuid4().hex
                own.mkdir(parents=True)
                try:
                    fd = _lock(own)
                except (FileNotFoundError, BlockingIOError):
                    continue  # Swept between the two lines above.
                if own.exists():
                    self._own, self._lock_fd = own, fd
                else:
                    os.close(fd)
            return self._own


def _lock(folder: Path) -> int:
    """
    Raises:
        BlockingIOError: its owner lives.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn OSError into UnavailableError: an error in this block has changed no object."""
    try:
        yield
    except OSError as error:  # ENOSPC, EDQUOT, EMFILE, EACCES, EIO, ENAMETOOLONG, …
        raise UnavailableError(f"{what}: {error}") from error


@contextlib.contextmanager
def _not_durable(key: str) -> Iterator[None]:
    """Turn OSError into OutcomeUnknownError: *key* can be read, and a power cut may remove it."""
    try:
        yield
    except OSError as error:
        raise OutcomeUnknownError(f"{key} is there, but perhaps not durable") from error


def _publish_error(key: str, error: OSError) -> Exception:
    if error.errno in (errno.EIO, errno.ETIMEDOUT, errno.ESTALE):
        return OutcomeUnknownError(f"{key}: {error}")
    if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
        return UnavailableError(f"{key}: this file system has no hard links: {error}")
    return UnavailableError(f"{key}: {error}")


def _unlinked(path: Path) -> bool:
    """Remove the object; False if there is none."""
    try:
        path.unlink()
    except _ABSENT:
        return False
    except PermissionError:
        if path.is_dir():  # macOS's answer for a folder.
            return False
        raise
    return True


def _object_info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _sync_path(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
