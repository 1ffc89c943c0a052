"""The tables of the embedded metadata store, one thread's half of it.

    kv      key → value, create_revision, mod_revision, lease_id
    lease   lease_id → ttl_ms, expires_at_ms
    store   one row: the revision of the last change

``application_id`` is ``drft`` and ``user_version`` the format's version.  Keys are
blobs, so that they sort by their bytes.  Only the current state is stored, without
history, so the file is as large as that state.  A stored format: add a version, never
edit one in place.

A disk that other files fill must not end the agent's session: from the start on the file has free
pages in reserve, and the write-ahead log its full size, so that small changes are written where
there is room already.  (A file system that never writes in place gives no such reserve.)

Everything between `begin` and `commit` is one SQLite transaction and one sync of
the write-ahead log, however many transactions of the port are in it; each of them has
its own revision.

Adapter.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from driftlog_metadata.stores.errors import (
    CorruptError,
    OutcomeUnknownError,
    StoreError,
    UnavailableError,
    UnsupportedFormatError,
)
from driftlog_metadata.stores.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    LeaseNotFoundError,
    ModRevisionIs,
    NotWrittenSince,
    Operation,
    Put,
    PutEvent,
    TxnResult,
    ValueIs,
    WatchEvent,
)

APPLICATION_ID: Final = int.from_bytes(b"drft")
DATABASE_VERSION: Final = 1
PAGE_BYTES: Final = 4096

_BUSY_TIMEOUT_S: Final = 1.0
"""How long to wait while an operator reads the file with the sqlite3 command."""

_WAL_BYTES: Final = 4 * 1024 * 1024
"""Size to which the write-ahead log is cut after a burst: SQLite's usual 1000 pages."""

_WAL_PAGES: Final = 500
"""At so many pages the log is moved into the file: it stays well below `_WAL_BYTES`."""

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Free pages of the file, and size of its log.  More: the agent survives a full disk for longer."""

_RESERVE_SHARE: Final = 4
"""The reserve is made only where the disk has so many times its size free."""

_SCHEMA: Final = f"""
CREATE TABLE kv (
    key BLOB PRIMARY KEY,
    value BLOB NOT NULL,
    create_revision INTEGER NOT NULL,
    mod_revision INTEGER NOT NULL,
    lease_id INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX kv_by_lease ON kv (lease_id) WHERE lease_id <> 0;
CREATE TABLE lease (
    lease_id INTEGER PRIMARY KEY,
    ttl_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
);
CREATE TABLE store (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL);
INSERT INTO store VALUES (1, 1);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {DATABASE_VERSION};
"""

_COLUMNS: Final = "key, value, create_revision, mod_revision, lease_id"
_COLUMNS_WITHOUT_VALUE: Final = "key, x'', create_revision, mod_revision, lease_id"

Change = tuple[int, list[WatchEvent]]
"""A revision and its events."""

_Row = tuple[bytes, bytes, int, int, int]


class StoreLockedError(StoreError):
    """Another process has this store open: another agent runs on this directory."""


class DirectoryLock:
    """One process per file: an flock beside it, which dies with the process.

    Raises:
        StoreLockedError: another process holds it.
        UnavailableError: the lock file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        lock_path = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnavailableError(f"{lock_path}: {error}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLockedError(
                f"another agent (process {holder}) runs on {path.parent}: it holds {lock_path}"
            ) from error
        with contextlib.suppress(OSError):  # only the message above needs it; the disk may be full
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


class Database:
    """The store for one thread: the port's semantics without its concurrency.

    Args:
        path: the file; made if it is not there.
        now_ms: the wall clock of leases.
        max_bytes: writes that need a larger file are refused as on a full disk.

    Raises:
        CorruptError: *path* is not a sound store; the message names it.
        UnsupportedFormatError: a newer driftlog wrote it.
        UnavailableError: it cannot be opened.
    """

    def __init__(self, path: Path, now_ms: Callable[[], int], max_bytes: int) -> None:
        self._path = path
        self._now_ms = now_ms
        with translated(path):
            self._connection = connect(path)
            try:
                self.created = self._prepare(max_bytes)
                self.fill_reserve(always=True)
                self.revision = self._stored_revision()
                self.next_expiry_ms = self._soonest()
            except BaseException:
                self._connection.close()
                raise
        self._changes: list[Change] = []

    def close(self) -> None:
        """Move the log into the file and close both."""
        self._connection.close()

    # ── One SQLite transaction ──

    def begin(self) -> None:
        """Start the transaction of all calls up to `commit`."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._changes = []

    def commit(self) -> list[Change]:
        """Make the transaction durable; returns its changes, in order."""
        if self._changes:
            self._connection.execute("UPDATE store SET revision = ?", (self.revision,))
        self._connection.execute("COMMIT")
        return self._changes

    def rollback(self) -> None:
        """Return to the state before `begin`."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.revision = self._stored_revision()
        self.next_expiry_ms = self._soonest()

    def fill_reserve(self, *, always: bool) -> None:
        """Make `RESERVE_BYTES` of free pages, where the disk and the store's limit have room.

        *always*: also where there are free pages, to give the write-ahead log its full size.

        Raises:
            sqlite3.Error, OSError: the file may be in doubt.
        """
        run = self._connection.execute
        (free,) = run("PRAGMA freelist_count").fetchone()
        if not always and free * PAGE_BYTES >= RESERVE_BYTES // 2:
            return
        (pages,) = run("PRAGMA page_count").fetchone()
        (most,) = run("PRAGMA max_page_count").fetchone()
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return  # the directory was removed: writes continue, in the open files
        if min((most - pages) * PAGE_BYTES, disk.f_bavail * disk.f_frsize) < (
            _RESERVE_SHARE * RESERVE_BYTES
        ):
            return
        try:
            # Two transactions: SQLite does not write pages that one transaction takes and frees.
            run("BEGIN IMMEDIATE")
            run("DROP TABLE IF EXISTS reserve")  # of a process that was killed between the two
            run("CREATE TABLE reserve (filler BLOB)")
            run("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_BYTES,))
            run("COMMIT")
            run("DROP TABLE reserve")
        except sqlite3.OperationalError as error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (
                sqlite3.SQLITE_FULL,
                sqlite3.SQLITE_BUSY,
            ):
                raise

    # ── The port ──

    def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        """See `stores/store.MetadataStore.txn`; raises before it changes anything."""
        self.expire()
        succeeded = all(map(self._holds, compares))
        operations = then if succeeded else otherwise
        self._check_leases(operations)
        events: list[WatchEvent] = []
        reads = tuple(self._apply(operation, events) for operation in operations)
        self._record(events)
        return TxnResult(succeeded, self.revision, reads)

    def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.grant_lease`."""
        self.expire()
        self._connection.execute(
            "INSERT OR IGNORE INTO lease VALUES (?, ?, ?)",
            (lease_id, ttl_ms, self._now_ms() + ttl_ms),
        )
        self.next_expiry_ms = self._soonest()

    def keep_alive(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.keep_alive`."""
        self.expire()
        kept = self._connection.execute(
            "UPDATE lease SET expires_at_ms = ? + ttl_ms WHERE lease_id = ?",
            (self._now_ms(), lease_id),
        )
        if kept.rowcount == 0:
            raise LeaseNotFoundError(f"lease {lease_id} is gone")
        self.next_expiry_ms = self._soonest()

    def revoke_lease(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.revoke_lease`."""
        self.expire()
        self._end_lease(lease_id)
        self.next_expiry_ms = self._soonest()

    def expire(self) -> None:
        """End every expired lease, the first to expire first."""
        if not self.expiry_is_due():
            return
        due = self._connection.execute(
            "SELECT lease_id FROM lease WHERE expires_at_ms <= ? ORDER BY expires_at_ms, lease_id",
            (self._now_ms(),),
        ).fetchall()
        for (lease_id,) in due:
            self._end_lease(lease_id)
        self.next_expiry_ms = self._soonest()

    def expiry_is_due(self) -> bool:
        """Whether `expire` would end a lease."""
        return self.next_expiry_ms is not None and self.next_expiry_ms <= self._now_ms()

    # ── Rows ──

    def _prepare(self, max_bytes: int) -> bool:
        """Bring the file to this format version; True if it is new."""
        created = self._check_format()
        run = self._connection.execute
        if run("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise UnavailableError(f"{self._path}: its file system cannot have SQLite's WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA fullfsync = ON")  # macOS, where fsync alone does not reach the disk
        run(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        run(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        run(f"PRAGMA max_page_count = {max(1, max_bytes // PAGE_BYTES)}")
        if created:
            self._connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        elif (problem := run("PRAGMA quick_check(1)").fetchone()) != ("ok",):
            raise CorruptError(f"{self._path} is damaged: {problem[0]}")
        # A clock that went back must not make a dead session's lease last longer than its TTL.
        latest = "? + ttl_ms"
        run(
            f"UPDATE lease SET expires_at_ms = {latest} WHERE expires_at_ms > {latest}",
            (now_ms := self._now_ms(), now_ms),
        )
        return created

    def _check_format(self) -> bool:
        run = self._connection.execute
        (application_id,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if (application_id, version, tables) == (0, 0, 0):
            return True
        if application_id != APPLICATION_ID:
            raise CorruptError(f"{self._path} is a database, but not a driftlog metadata store")
        if version > DATABASE_VERSION:
            raise UnsupportedFormatError(
                f"{self._path} has format version {version}, and this driftlog reads up to "
                f"{DATABASE_VERSION}: upgrade it"
            )
        return False

    def _stored_revision(self) -> int:
        row: tuple[int] | None = self._connection.execute("SELECT revision FROM store").fetchone()
        if row is None:
            raise CorruptError(f"{self._path} is damaged: it has no revision")
        return row[0]

    def _soonest(self) -> int | None:
        (at_ms,) = self._connection.execute("SELECT min(expires_at_ms) FROM lease").fetchone()
        return None if at_ms is None else int(at_ms)

    def _record(self, events: list[WatchEvent]) -> None:
        if events:
            self.revision += 1
            self._changes.append((self.revision, events))

    def _holds(self, compare: Compare) -> bool:
        if isinstance(compare, NotWrittenSince):
            under = read_prefix(self._connection, compare.key)
            return all(kv.mod_revision <= compare.revision for kv in under)
        kv = read_key(self._connection, compare.key)
        match compare:
            case CreateRevisionIs():
                return compare.revision == (0 if kv is None else kv.create_revision)
            case ModRevisionIs():
                return compare.revision == (0 if kv is None else kv.mod_revision)
            case ValueIs():
                return kv is not None and compare.value == kv.value

    def _check_leases(self, operations: Sequence[Operation]) -> None:
        for op in operations:
            if not isinstance(op, Put) or not op.lease_id:
                continue
            found = self._connection.execute(
                "SELECT 1 FROM lease WHERE lease_id = ?", (op.lease_id,)
            )
            if found.fetchone() is None:
                raise LeaseNotFoundError(f"lease {op.lease_id} is gone; {op.key} was not put")

    def _apply(self, operation: Operation, events: list[WatchEvent]) -> tuple[KeyValue, ...]:
        match operation:
            case Put():
                self._put(operation, events)
                return ()
            case Delete():
                deleted = self._connection.execute(
                    "DELETE FROM kv WHERE key = ?", (operation.key.encode(),)
                )
                if deleted.rowcount:
                    events.append(DeleteEvent(operation.key, self.revision + 1))
                return ()
            case DeletePrefix():
                start, end = _range(operation.prefix)
                self._delete_where("key >= ? AND key < ?", (start, end), events)
                return ()
            case Get():
                kv = read_key(self._connection, operation.key)
                return () if kv is None else (kv,)
            case GetPrefix():
                return tuple(read_prefix(self._connection, operation.prefix))

    def _put(self, put: Put, events: list[WatchEvent]) -> None:
        key = put.key.encode()
        revision = self.revision + 1
        found = self._connection.execute("SELECT create_revision FROM kv WHERE key = ?", (key,))
        row = found.fetchone()
        create_revision = revision if row is None else row[0]
        self._connection.execute(
            f"INSERT OR REPLACE INTO kv ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
            (key, put.value, create_revision, revision, put.lease_id),
        )
        kv = KeyValue(put.key, bytes(put.value), create_revision, revision, put.lease_id)
        events.append(PutEvent(kv))

    def _delete_where(
        self, where: str, arguments: tuple[object, ...], events: list[WatchEvent]
    ) -> None:
        run = self._connection.execute
        keys = run(f"SELECT key FROM kv WHERE {where} ORDER BY key", arguments).fetchall()
        run(f"DELETE FROM kv WHERE {where}", arguments)
        events.extend(DeleteEvent(key.decode(), self.revision + 1) for (key,) in keys)

    def _end_lease(self, lease_id: int) -> None:
        events: list[WatchEvent] = []
        self._delete_where("lease_id = ? AND lease_id <> 0", (lease_id,), events)
        self._connection.execute("DELETE FROM lease WHERE lease_id = ?", (lease_id,))
        self._record(events)


def connect(path: Path) -> sqlite3.Connection:
    """A connection without implicit transactions, for use by one thread at a time."""
    return sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def read_key(connection: sqlite3.Connection, key: str) -> KeyValue | None:
    """The current value of the key; None: it is not there."""
    found = connection.execute(f"SELECT {_COLUMNS} FROM kv WHERE key = ?", (key.encode(),))
    row: _Row | None = found.fetchone()
    return None if row is None else KeyValue(row[0].decode(), *row[1:])


def read_prefix(
    connection: sqlite3.Connection, prefix: str, *, keys_only: bool = False
) -> list[KeyValue]:
    """The keys under *prefix* in the order of their bytes; *keys_only*: with empty values."""
    columns = _COLUMNS_WITHOUT_VALUE if keys_only else _COLUMNS
    found = connection.execute(
        f"SELECT {columns} FROM kv WHERE key >= ? AND key < ? ORDER BY key", _range(prefix)
    )
    rows: list[_Row] = found.fetchall()
    return [KeyValue(row[0].decode(), *row[1:]) for row in rows]


def read_prefix_at_one_revision(
    connection: sqlite3.Connection, prefix: str, *, keys_only: bool
) -> tuple[int, list[KeyValue]]:
    """The keys under *prefix*, and the revision at which they are read."""
    connection.execute("BEGIN")
    try:
        (revision,) = connection.execute("SELECT revision FROM store").fetchone()
        return revision, read_prefix(connection, prefix, keys_only=keys_only)
    finally:
        connection.execute("COMMIT")


def _range(prefix: str) -> tuple[bytes, bytes]:
    """[start, end) of the keys under *prefix*; UTF-8 has no byte 0xFF, so the last one can grow."""
    start = prefix.encode()
    return start, start[:-1] + bytes((start[-1] + 1,))


# ── Errors ──


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the port's, for calls that cannot have changed anything."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(path, error, committing=False) from error


def translate(path: Path, error: sqlite3.Error, *, committing: bool) -> StoreError | CorruptError:
    """The port's error for *error*; *committing*: it came from COMMIT.

    Outside COMMIT a failure is rolled back, so nothing happened.  In COMMIT a full disk is
    certain too (the frame that commits is the last one written, and its checksum covers all
    before it); after any other failure to write or sync, a crash may bring the frames back.
    Source: sqlite.org/rescode.html, sqlite.org/walformat.html.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    what = f"{path}: {error} ({name})"
    match code:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptError(f"{what}: the file is damaged or is not a driftlog metadata store")
        case sqlite3.SQLITE_FULL:
            return UnavailableError(f"{what}: the disk is full, or the store's limit is reached")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnavailableError(f"{what}: another process has locked the database")
        case _ if committing:
            return OutcomeUnknownError(what)
        case _:
            return UnavailableError(what)
