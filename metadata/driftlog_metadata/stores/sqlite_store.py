"""The embedded metadata store: the port on one SQLite file, for the one agent of a process.

    callers ──▶ queue ──▶ writer thread: BEGIN, all that is queued, COMMIT (one fsync) ──▶ answers
       └──── reads ─────▶ reader thread: the last committed state                         └▶ watches

The event loop never waits for the disk.  Transactions that arrive during a commit share
the next one; each is atomic, has its own revision and is answered after the sync, so an
answer is durable against kill −9 and power loss.  `driftlog_metadata.stores.sqlite_database` says
what is in the file.

Non-obvious:

* The reader sees a commit before its callers get the answer; that is linearizable.  A read that
  saw it is answered when the watches have it too: a caller that read revision n may watch from
  n + 1.
* Watch history is in memory: after `open` a watch from an earlier revision raises
  `CompactedError`.
* A COMMIT that fails to write or sync leaves the file in doubt.  From then on every call is
  refused until the store is opened again, which reads the committed state.

Adapter.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Self, TypeVar, cast

from driftlog_metadata.stores.errors import CorruptError, StoreError, UnavailableError
from driftlog_metadata.stores.limits import check_key, check_lease_id, check_ttl_ms, check_txn
from driftlog_metadata.stores.sqlite_database import (
    Change,
    Database,
    DirectoryLock,
    connect,
    read_key,
    read_prefix_at_one_revision,
    translate,
    translated,
)
from driftlog_metadata.stores.store import Compare, KeyValue, Operation, TxnResult, Watch
from driftlog_metadata.stores.watches import History

MiB: Final = 1024**2
GiB: Final = 1024**3

_MAX_REQUESTS_PER_COMMIT: Final = 256
"""Larger: the watch history holds the events of fewer commits, and answers wait longer."""

_MAX_WAIT_S: Final = 1.0
_MIN_WAIT_S: Final = 0.05
"""How long the writer sleeps while a lease runs, at most and at least: the wall clock may jump."""

_RESERVE_S: Final = 1.0
"""Longer: a burst of writes may use up the reserve; shorter: more looks at the file."""

T = TypeVar("T")


class _Request:
    """One operation for the writer, and the future of its caller."""

    __slots__ = ("answer", "run")

    def __init__(self, run: Callable[[Database], object], answer: asyncio.Future[object]) -> None:
        self.run = run
        self.answer = answer


_Outcome = tuple[_Request, object, BaseException | None]


class SqliteMetadataStore:
    """A `stores/store.MetadataStore` in a file.  Made by `open`, on one event loop."""

    def __init__(
        self,
        path: Path,
        now_ms: Callable[[], int],
        files: "_Files",
        history_events: int,
        history_bytes: int,
        reserve_s: float,
    ) -> None:
        self._path = path
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._files = files
        self._database = files.database
        revision = files.database.revision
        self._history = History(
            revision,
            compacted_revision=0 if files.database.created else revision,
            max_events=history_events,
            max_bytes=history_bytes,
        )
        self._next_expiry_ms = files.database.next_expiry_ms
        self._closing = False
        self._broken: BaseException | None = None
        self._reserve_s = reserve_s
        self._reserve_due = 0.0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="driftlog-metadata-reader")
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._writer = threading.Thread(
            target=self._write, name="driftlog-metadata-writer", daemon=True
        )
        self._writer.start()

    @classmethod
    async def open(
        cls,
        path: Path,
        now_ms: Callable[[], int],
        *,
        history_events: int = 10_000,
        history_bytes: int = 32 * MiB,
        max_bytes: int = 8 * GiB,
        reserve_s: float = _RESERVE_S,
    ) -> Self:
        """Open the store in the file *path*, which is made if it is not there.

        This reads the whole file once, to find damage before an agent relies on it.

        Args:
            path: its directory exists; ``-wal``, ``-shm`` and ``.lock`` files stand beside it.
            now_ms: the wall clock of leases; called in the writer's thread too.
            history_events: watches can resume from this many events back.
            history_bytes: and from events with so many bytes, which are in memory.
            max_bytes: refuse writes that need a larger file (etcd's quota: 8 GiB).
            reserve_s: how often the writer checks that the file has pages in reserve.

        Raises:
            StoreLockedError: another agent runs on this directory.
            CorruptError: the file is damaged, or not a store; the message names it.
            UnsupportedFormatError: a newer driftlog wrote the file.
            UnavailableError: it cannot be opened.
        """
        files = await asyncio.to_thread(_Files, path, now_ms, max_bytes)
        return cls(path, now_ms, files, history_events, history_bytes, reserve_s)

    # ── The port ──

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """See `driftlog_metadata.stores.store.MetadataStore.txn`."""
        check_txn(compares, then, otherwise)
        return await self._ask(lambda database: database.txn(compares, then, otherwise))

    async def get(self, key: str) -> KeyValue | None:
        """See `driftlog_metadata.stores.store.MetadataStore.get`."""
        check_key(key)
        found = await self._read(lambda connection: read_key(connection, key))
        if found is not None:
            await self._recorded(found.mod_revision)
        return found

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        """See `driftlog_metadata.stores.store.MetadataStore.get_prefix`."""
        check_key(prefix)
        at = await self._read(
            lambda connection: read_prefix_at_one_revision(connection, prefix, keys_only=keys_only)
        )
        await self._recorded(at[0])
        return at

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.grant_lease`."""
        check_lease_id(lease_id)
        check_ttl_ms(ttl_ms)
        await self._ask(lambda database: database.grant_lease(lease_id, ttl_ms))

    async def keep_alive(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.keep_alive`."""
        check_lease_id(lease_id)
        await self._ask(lambda database: database.keep_alive(lease_id))

    async def revoke_lease(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.revoke_lease`."""
        check_lease_id(lease_id)
        await self._ask(lambda database: database.revoke_lease(lease_id))

    def watch(self, prefix: str, start_revision: int) -> Watch:
        """See `driftlog_metadata.stores.store.MetadataStore.watch`."""
        return self._history.watch(prefix, start_revision)

    async def close(self) -> None:
        """Answer the queued calls, end the watches, close the file.  A repeat is harmless."""
        if self._closing:
            return
        self._closing = True
        self._queue.put(None)
        await self._loop.run_in_executor(self._reader, self._writer.join)
        self._history.close()
        await self._loop.run_in_executor(self._reader, self._files.close)
        self._reader.shutdown()

    async def expire(self) -> None:
        """End every expired lease, as the writer does by itself within a second."""
        await self._ask(Database.expire)

    def removed(self) -> str | None:
        """Which of its files was removed or replaced since it was opened; None: none.

        Later commits are lost when the process ends, unless `save_copy` saves them.
        """
        return self._files.removed()

    def is_whole_in(self, directory: Path) -> bool:
        """Whether all its files are in *directory*, to which they were moved."""
        return self._files.are_in(directory)

    async def save_copy(self, path: Path) -> None:
        """Write the committed state to *path*, a store of its own, whole or not at all.

        A missing directory is made, as after an `rm -r` of the agent's directory.

        Raises:
            UnavailableError: it cannot be written, or this store cannot be read.
            OSError: likewise.
        """
        await self._read(lambda connection: _copy(connection, path))

    # ── On the event loop ──

    async def _ask(self, run: Callable[[Database], T]) -> T:
        self._check_open()
        answer: asyncio.Future[object] = self._loop.create_future()
        self._queue.put(_Request(run, answer))
        return cast("T", await answer)

    async def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        if self._next_expiry_ms is not None and self._next_expiry_ms <= self._now_ms():
            await self.expire()

        def read() -> T:
            with translated(self._path):
                return run(self._files.read_connection)

        return await self._loop.run_in_executor(self._reader, read)

    async def _recorded(self, revision: int) -> None:
        """Return when the watches have *revision*, which is committed."""
        if revision > self._history.revision:
            await self._ask(lambda _: None)  # the writer delivers earlier commits first

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError(f"{self._path} is closed")
        if self._broken is not None:
            raise UnavailableError(
                f"{self._path} is in doubt since a commit failed; open it again: {self._broken}"
            )

    def _deliver(
        self, outcomes: list[_Outcome], changes: list[Change], next_expiry_ms: int | None
    ) -> None:
        self._next_expiry_ms = next_expiry_ms
        for revision, events in changes:
            self._history.record(revision, events)
        for request, result, error in outcomes:
            if request.answer.done():
                continue  # its caller was cancelled
            if error is None:
                request.answer.set_result(result)
            else:
                request.answer.set_exception(error)

    # ── In the writer's thread ──

    def _write(self) -> None:
        last = False
        while not last:
            requests, last = self._next_requests()
            if not requests and not self._database.expiry_is_due():
                continue
            outcomes, changes = self._commit(requests)
            with contextlib.suppress(RuntimeError):  # the loop was closed: no caller is left
                self._loop.call_soon_threadsafe(
                    self._deliver, outcomes, changes, self._database.next_expiry_ms
                )
            self._fill_reserve()  # writes and syncs 4 MiB: after the answers

    def _fill_reserve(self) -> None:
        if self._broken is not None or time.monotonic() < self._reserve_due:
            return
        self._reserve_due = time.monotonic() + self._reserve_s
        try:
            self._database.fill_reserve(always=False)
        except (sqlite3.Error, OSError) as error:
            self._broken = error

    def _next_requests(self) -> tuple[list[_Request], bool]:
        """All queued requests, after a wait for one or a lease; and whether `close` was called."""
        requests: list[_Request] = []
        try:
            request = self._queue.get(timeout=self._patience_s())
            while request is not None:
                requests.append(request)
                if len(requests) == _MAX_REQUESTS_PER_COMMIT:
                    return requests, False
                request = self._queue.get_nowait()
        except Empty:
            return requests, False
        return requests, True

    def _patience_s(self) -> float | None:
        if self._database.next_expiry_ms is None:
            return None
        left_s = (self._database.next_expiry_ms - self._now_ms()) / 1000
        return min(max(left_s, _MIN_WAIT_S), _MAX_WAIT_S)

    def _commit(self, requests: list[_Request]) -> tuple[list[_Outcome], list[Change]]:
        if self._broken is not None:
            error = UnavailableError(f"{self._path} is in doubt: {self._broken}")
            return [(request, None, error) for request in requests], []
        committing = False
        try:
            self._database.begin()
            outcomes = [self._run(request) for request in requests]
            self._database.expire()
            committing = True
            return outcomes, self._database.commit()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the callers must hear it
            failure = self._failed(error, committing=committing)
            return [(request, None, failure) for request in requests], []

    def _run(self, request: _Request) -> _Outcome:
        try:
            return request, request.run(self._database), None
        except StoreError as error:  # the lease is gone; nothing has changed
            return request, None, error

    def _failed(self, error: BaseException, *, committing: bool) -> BaseException:
        """Undo the whole commit; all requests in it get the same answer."""
        failure: BaseException = error
        if isinstance(error, sqlite3.Error):
            failure = translate(self._path, error, committing=committing)
            failure.__cause__ = error
        if not isinstance(failure, UnavailableError | CorruptError):
            self._broken = failure
        try:
            self._database.rollback()
        except sqlite3.Error as rollback_error:
            self._broken = rollback_error
        return failure


class _Files:
    """The files of an open store, opened and closed outside the event loop."""

    def __init__(self, path: Path, now_ms: Callable[[], int], max_bytes: int) -> None:
        self._lock = DirectoryLock(path)
        self._identities: dict[Path, tuple[int, int]] = {}
        self._identities_hold = True
        """The file system gives a file the same number each time; some FUSE, 9p and SMB do not."""
        self._paths = (path, path.with_name(path.name + "-wal"))
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.database = Database(path, now_ms, max_bytes)
            _sync_directory(path.parent)
            self.read_connection = connect(path)
            # The connection has the log open from here on, also when the directory is gone.
            read_key(self.read_connection, "/")
            self.removed()  # records the identities of the files
            self._identities_hold = self.removed() is None
        except OSError as error:
            self._lock.release()
            raise UnavailableError(f"{path}: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def removed(self) -> str | None:
        for path in self._paths:
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                if path in self._identities:
                    return str(path)
                continue  # the log is made by the first write
            except OSError:
                continue
            there = _identity(status)
            if self._identities.setdefault(path, there) != there and self._identities_hold:
                return str(path)
        return None

    def are_in(self, directory: Path) -> bool:
        try:
            return all(
                _identity((directory / path.name).stat()) == identity
                for path, identity in self._identities.items()
            )
        except OSError:
            return False

    def close(self) -> None:
        self.read_connection.close()
        self.database.close()
        self._lock.release()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _copy(connection: sqlite3.Connection, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(connect(temporary)) as target:
        connection.backup(target)
    fd = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make a new file's entry in *directory* survive a power loss."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
