"""The session's buffer files: every accepted batch, written once a turn, synced in groups.

    add ──▶ pending ──once per turn──▶ written ──one fdatasync for all waiters──▶ synced
                        ╳ disk full: the batch stays in memory, requests that wait for the sync
                          wait for the commit instead, and acks=1 is refused until a
                          probe succeeds

Files are used in order.  A file that holds no uncommitted batch, and is not being synced, stays as
cache until a new file reuses its pages, or the disk budget is exceeded.  A file whose sync failed
is not trusted again: its batches are not promised to acks=1, memory keeps them until they are
committed (batches that memory gave up before are uploaded if the file still holds them whole), no
other component reads the file, and it is deleted when all its batches are committed.

Shell.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import structlog

from driftlog_agents.log.ingest.flush_pipeline import MiB
from driftlog_agents.log.local.buffer_format import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    encode_entry_header,
    encode_file_header,
)
from driftlog_agents.log.local.disk import AgentDisk, Buffer, BufferFile
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, Waiter
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.stores.errors import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSettings:
    """What the local disk may hold."""

    disk_bytes: int = 4096 * MiB
    """Budget of all buffer files; above it the buffer deletes files that are only cache.
    `MemorySettings.pending_bytes` bounds the uncommitted batches.  More: after a burst consumers
    read more of the recent log without the store."""

    cache_bytes: int = 1024 * MiB
    """Size of all files above which a new file overwrites the oldest one that is only cache.  More:
    consumers read more of the recent log locally; fresh pages cost more CPU than used ones."""

    file_bytes: int = 64 * MiB
    """Size at which the buffer begins a new file: cache is freed file by file."""

    probe_interval_ms: float = 1_000
    """How long after a failure the disk is tried again."""


class _NotTriedError(UnavailableError):
    """The disk failed less than `probe_interval_ms` ago: nothing was written."""


@dataclass(slots=True, eq=False)
class _InUse:
    file: BufferFile
    salt: int
    uncommitted: int = 0
    """Uncommitted batches in the file."""
    dirty: bool = False
    syncing: bool = False

    @property
    def only_cache(self) -> bool:
        """Whether the file may be deleted or overwritten.  Not during a sync: the kernel reports a
        lost write once per descriptor, and would report it for the deleted file and not for the new
        file in the same pages."""
        return self.uncommitted == 0 and not self.syncing


class BufferLog:
    """The buffer files of one session."""

    def __init__(
        self,
        *,
        disk: AgentDisk,
        session_id: str,
        settings: BufferSettings,
        rng: Random,
        now_ms: Callable[[], float],
        counters: LogCounters | None = None,
    ) -> None:
        self._disk = disk
        self._session_id = session_id
        self._settings = settings
        self._rng = rng
        self._now_ms = now_ms
        self._log = structlog.get_logger()
        self._pending: list[tuple[PartitionLog, Batch, Waiter | None]] = []
        self._files: deque[_InUse] = deque()
        self._by_file: dict[BufferFile, _InUse] = {}
        self._number = 0
        self._to_sync: list[tuple[PartitionLog, int, Waiter]] = []
        self._syncing: list[tuple[PartitionLog, int, Waiter]] = []
        self._sync_wanted = asyncio.Event()
        self._failed_at_ms: float | None = None
        self.write_scheduled = False
        self.write_soon: Callable[[], None] = self.write_pending
        """The callback of the event loop that runs `write_pending`."""
        self._counters = counters or LogCounters()

    @property
    def disk_bytes(self) -> int:
        """Size of all files."""
        return sum(use.file.size for use in self._files)

    def refuses(self, log: PartitionLog) -> bool:
        """Whether acks=1 cannot be promised for *log* now."""
        if log.not_in_file_end > log.high_watermark:
            return True
        if self._failed_at_ms is None:
            return False
        return self._now_ms() < self._failed_at_ms + self._settings.probe_interval_ms

    def add(self, log: PartitionLog, batch: Batch, waiter: Waiter | None) -> None:
        """Take a batch; *waiter*: an acks=1 request that waits for the sync."""
        self._pending.append((log, batch, waiter))
        if not self.write_scheduled:
            self.write_scheduled = True
            asyncio.get_running_loop().call_soon(self.write_soon)

    def wait_for_sync(self, log: PartitionLog, end: int, waiter: Waiter) -> None:
        """Answer *waiter* once every batch that was added before is synced."""
        self.write_pending()
        if log.not_in_file_end > log.high_watermark:
            _wait_for_commit(log, end, waiter)  # the pending batches could not be written
            return
        self._to_sync.append((log, end, waiter))
        self._sync_wanted.set()

    def close(self) -> None:
        """The session is over: there are no more syncs, and every waiter is answered."""
        waiting = [*self._syncing, *self._to_sync]
        for log, batch, waiter in self._pending:
            if waiter is not None:
                waiting.append((log, batch.end_offset, waiter))
        self._syncing, self._to_sync, self._pending = [], [], []
        for log, end, waiter in waiting:
            if end <= log.high_watermark:
                waiter.committed(log)  # the commit came before the sync
            else:
                waiter.lost(log)

    def write_pending(self) -> None:
        """Write the batches that this turn of the event loop added, in as few system calls as
        possible."""
        self.write_scheduled = False
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        try:
            self._write(pending)
        except UnavailableError as error:
            self._write_failed(pending, error)
        else:
            if self._failed_at_ms is not None:
                self._log.info("buffer_disk_recovered", session=self._session_id)
                self._failed_at_ms = None
        if self._to_sync:
            self._sync_wanted.set()

    def _write(self, pending: list[tuple[PartitionLog, Batch, Waiter | None]]) -> None:
        if self._failed_at_ms is not None:
            if self._now_ms() < self._failed_at_ms + self._settings.probe_interval_ms:
                raise _NotTriedError("the disk refused a write a moment ago")
            self._begin_file()
        elif not self._files or self._files[-1].file.size >= self._settings.file_bytes:
            self._begin_file()
        use = self._files[-1]
        buffers: list[Buffer] = []
        at = use.file.size
        if at == 0:
            buffers.append(encode_file_header(use.salt, self._number))
            at = FILE_HEADER_BYTES
        for log, batch, waiter in pending:
            assert batch.view is not None
            one = waiter is not None
            buffers.append(
                encode_entry_header(use.salt, log.topic_bytes, log.partition, batch.length, one)
            )
            buffers.append(batch.view)
            batch.position = at + ENTRY_HEADER_BYTES
            at += ENTRY_HEADER_BYTES + batch.length
        start = use.file.size
        use.file.append(buffers)
        use.dirty = True
        use.uncommitted += len(pending)
        self._counters.buffer_bytes += use.file.size - start
        for log, batch, waiter in pending:
            batch.file = use.file
            if waiter is not None:
                self._to_sync.append((log, batch.end_offset, waiter))

    def _write_failed(
        self, pending: list[tuple[PartitionLog, Batch, Waiter | None]], error: UnavailableError
    ) -> None:
        if self._failed_at_ms is None:
            self._log.warning(
                "buffer_write_failed",
                session=self._session_id,
                error=str(error),
                advice="acks=1 is refused until the disk has room; acks=all continues from memory",
            )
        if not isinstance(error, _NotTriedError):
            self._failed_at_ms = self._now_ms()
        for log, batch, waiter in pending:
            end = batch.end_offset
            log.not_in_file_end = max(log.not_in_file_end, end)
            if waiter is not None:
                _wait_for_commit(log, end, waiter)

    # ── Files ──

    def _begin_file(self) -> None:
        self._number += 1  # a file name is never tried twice
        spare = self._spare()
        if spare is not None:
            file = self._disk.recycle_file(spare.file, self._session_id, self._number)
            self._forget(spare)
        else:
            file = self._disk.create_file(self._session_id, self._number)
        use = _InUse(file, self._rng.getrandbits(64))
        self._files.append(use)
        self._by_file[file] = use

    def _spare(self) -> _InUse | None:
        """The oldest file that is only cache, if there is enough cache."""
        if self.disk_bytes + self._settings.file_bytes <= self._settings.cache_bytes:
            return None
        for use in self._files:
            if use.only_cache and use.file.trusted and use is not self._files[-1]:
                return use
        return None

    def let_go(self, batches: Iterable[Batch]) -> None:
        """*batches* are committed: a file without uncommitted batches may be used again."""
        for file, count in Counter(batch.file for batch in batches).items():
            use = self._by_file.get(file)
            if use is not None:
                use.uncommitted -= count
                if use.uncommitted == 0:
                    self._delete_cache()

    def _delete_cache(self) -> None:
        """Delete files that are only cache: those above the budget, and those that are not
        trusted."""
        over = self.disk_bytes - self._settings.disk_bytes
        for use in list(self._files):
            spent = over > 0 and use is not self._files[-1]
            if use.only_cache and (spent or not use.file.trusted):
                over -= use.file.size
                self._forget(use)
                self._disk.remove_file(use.file)

    def _forget(self, use: _InUse) -> None:
        self._files.remove(use)
        del self._by_file[use.file]

    # ── Syncing ──

    async def run(self) -> None:
        """Sync in groups until cancelled: batches that arrive during one sync share the next."""
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            waiters, self._to_sync = self._to_sync, []
            if not waiters:
                continue
            self._syncing = waiters
            failed = False
            for use in list(self._files):
                # Committed batches need no sync, even those that were committed during one.
                if use.dirty and use.uncommitted and not await self._sync(use):
                    failed |= use.uncommitted > 0
            self._syncing = []
            if failed:
                self._sync_failed(waiters)
            else:
                for log, _, waiter in waiters:
                    waiter.synced(log)

    async def _sync(self, use: _InUse) -> bool:
        use.dirty = False
        use.syncing = True
        trusted = use.file.trusted
        try:
            self._counters.buffer_syncs += 1
            await use.file.sync()
        except UnavailableError as error:
            # The file's other uncommitted batches are no safer: until they are committed, a sync of
            # later files promises nothing.
            use.dirty = True
            if trusted:
                self._log.warning(
                    "buffer_sync_failed",
                    error=str(error),
                    advice="acks=1 is refused until another file can be synced; acks=all continues",
                )
            return False
        finally:
            use.syncing = False
            self._delete_cache()  # a commit during the sync could not delete this file
        return True

    def _sync_failed(self, waiters: list[tuple[PartitionLog, int, Waiter]]) -> None:
        """After a failed sync the disk's content is not known: *waiters* wait for the commit."""
        self._failed_at_ms = self._now_ms()
        for log, end, waiter in waiters:
            log.not_in_file_end = max(log.not_in_file_end, log.log_end)
            _wait_for_commit(log, end, waiter)


def _wait_for_commit(log: PartitionLog, end: int, waiter: Waiter) -> None:
    if end <= log.high_watermark:
        waiter.committed(log)
    else:
        log.waiting_duplicates.append((end, waiter))
        waiter.unsynced(log)
