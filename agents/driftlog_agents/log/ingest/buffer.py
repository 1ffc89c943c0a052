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

from driftlog_agents.log.ingest.acks_one import AcksOne, Answer, Told
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
        self._acks_one = AcksOne(settings.probe_interval_ms)
        self._sync_wanted = asyncio.Event()
        self._write_scheduled = False
        self._counters = counters or LogCounters()

    @property
    def disk_bytes(self) -> int:
        """Size of all files."""
        return self._files.size_bytes

    def refuses(self, log: PartitionLog) -> bool:
        """Whether acks=1 cannot be promised for *log* now."""
        return self._acks_one.refuses(log, self._now_ms())

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
        self._answer(self._acks_one.wait(log, end, waiter))
        self._sync_soon()

    def close(self) -> None:
        """The session is over: there are no more syncs, and every waiter is answered."""
        pending, self._pending = self._pending, []
        self._answer(self._acks_one.close(pending))

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
            if self._acks_one.written(pending):
                self._log.info("buffer_disk_recovered", session=self._session_id)
        self._sync_soon()

    def _write(self, pending: list[PendingBatch]) -> None:
        if self._acks_one.waits_for_disk(self._now_ms()):
            raise _NotTriedError("the disk refused a write a moment ago")
        if self._acks_one.failed_at_ms is not None or self._files.is_full:
            self._begin_file()
        use = self._files.newest
        start = use.file.size
        use.file.append(self._files.entries(pending))
        use.dirty = True
        use.uncommitted += len(pending)
        self._counters.buffer_bytes += use.file.size - start
        for _, batch, _ in pending:
            batch.file = use.file

    def _write_failed(self, pending: list[PendingBatch], error: UnavailableError) -> None:
        if self._acks_one.failed_at_ms is None:
            self._log.warning(
                "buffer_write_failed",
                session=self._session_id,
                error=str(error),
                advice="acks=1 is refused until the disk has room; acks=all continues from memory",
            )
        tried_ms = None if isinstance(error, _NotTriedError) else self._now_ms()
        self._answer(self._acks_one.write_failed(pending, tried_ms))

    def _answer(self, answers: Iterable[Answer]) -> None:
        for waiter, log, told in answers:
            match told:
                case Told.SYNCED:
                    waiter.synced(log)
                case Told.UNSYNCED:
                    waiter.unsynced(log)
                case Told.COMMITTED:
                    waiter.committed(log)
                case Told.LOST:
                    waiter.lost(log)

    def _sync_soon(self) -> None:
        if self._acks_one.to_sync:
            self._sync_wanted.set()

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
            if not self._acks_one.begin_sync():
                continue
            failed = False
            for use in self._files:
                # Committed batches need no sync, even those that were committed during one.
                if use.dirty and use.uncommitted and not await self._sync(use):
                    failed |= use.uncommitted > 0
            self._answer(self._acks_one.sync_ended(self._now_ms(), failed=failed))

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
