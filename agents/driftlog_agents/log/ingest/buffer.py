"""The session's buffer files: every accepted batch, written once a turn, synced in groups.

    add ──▶ pending ──once per turn──▶ written ──one fdatasync for all waiters──▶ synced
                        ╳ disk full: the batch stays in memory, requests that wait for the sync
                          wait for the commit instead, and acks=1 is refused until a
                          probe succeeds

`buffer_files` says which file is written, used again or deleted.  A file whose sync failed is not
trusted again: its batches are not promised to acks=1, memory keeps them until they are committed
(batches that memory gave up before are uploaded if the file still holds them whole), and no other
component reads the file.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable
from random import Random

import structlog

from driftlog_agents.log.ingest.buffer_files import (
    BufferFiles,
    BufferSettings,
    FileInUse,
    PendingBatch,
)
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, Waiter
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.stores.errors import UnavailableError


class _NotTriedError(UnavailableError):
    """The disk failed less than `probe_interval_ms` ago: nothing was written."""


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
        self._pending: list[PendingBatch] = []
        self._files = BufferFiles(settings)
        self._to_sync: list[tuple[PartitionLog, int, Waiter]] = []
        self._syncing: list[tuple[PartitionLog, int, Waiter]] = []
        self._sync_wanted = asyncio.Event()
        self._failed_at_ms: float | None = None
        self._write_scheduled = False
        self._counters = counters or LogCounters()

    @property
    def disk_bytes(self) -> int:
        """Size of all files."""
        return self._files.size_bytes

    def refuses(self, log: PartitionLog) -> bool:
        """Whether acks=1 cannot be promised for *log* now."""
        if log.not_in_file_end > log.high_watermark:
            return True
        if self._failed_at_ms is None:
            return False
        return self._now_ms() < self._failed_at_ms + self._settings.probe_interval_ms

    def add(self, log: PartitionLog, batch: Batch, waiter: Waiter | None) -> bool:
        """Take a batch; *waiter*: an acks=1 request that waits for the sync.  True: the caller
        schedules `write_pending` for the end of this turn of the event loop."""
        self._pending.append((log, batch, waiter))
        if self._write_scheduled:
            return False
        self._write_scheduled = True
        return True

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
        self._write_scheduled = False
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

    def _write(self, pending: list[PendingBatch]) -> None:
        if self._failed_at_ms is not None:
            if self._now_ms() < self._failed_at_ms + self._settings.probe_interval_ms:
                raise _NotTriedError("the disk refused a write a moment ago")
            self._begin_file()
        elif self._files.is_full:
            self._begin_file()
        use = self._files.newest
        start = use.file.size
        use.file.append(self._files.entries(pending))
        use.dirty = True
        use.uncommitted += len(pending)
        self._counters.buffer_bytes += use.file.size - start
        for log, batch, waiter in pending:
            batch.file = use.file
            if waiter is not None:
                self._to_sync.append((log, batch.end_offset, waiter))

    def _write_failed(self, pending: list[PendingBatch], error: UnavailableError) -> None:
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
        number, spare = self._files.next_number(), self._files.spare()
        if spare is not None:
            file = self._disk.recycle_file(spare.file, self._session_id, number)
        else:
            file = self._disk.create_file(self._session_id, number)
        self._files.begin(file, self._rng.getrandbits(64), spare)

    def let_go(self, batches: Iterable[Batch]) -> None:
        """*batches* are committed: a file without uncommitted batches may be used again."""
        if self._files.let_go(batches):
            self._delete_cache()

    def _delete_cache(self) -> None:
        for file in self._files.take_deletable():
            self._disk.remove_file(file)

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
            for use in self._files:
                # Committed batches need no sync, even those that were committed during one.
                if use.dirty and use.uncommitted and not await self._sync(use):
                    failed |= use.uncommitted > 0
            self._syncing = []
            if failed:
                self._sync_failed(waiters)
            else:
                for log, _, waiter in waiters:
                    waiter.synced(log)

    async def _sync(self, use: FileInUse) -> bool:
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
