"""What acks=1 requests are told: that their batches are synced, or that they wait for the commit.

    written ──▶ waits ──▶ in a sync ──▶ synced
       ╳ not written        ╳ failed: the disk's content is not known
       └────────────────────┴──▶ waits for the commit; the partition refuses acks=1 until then, and
                                 every partition until the disk is tried again

1. A request is told "synced" only by a sync that began after its batch was written, and only if no
   earlier uncommitted batch of its partition is missing on the disk.
2. Each request is told once.
3. One request waits for each batch: that of its newest duplicate.  The one before is told "lost".

Pure.
"""

from collections.abc import Sequence
from enum import Enum

from driftlog_agents.log.ingest.buffer_files import PendingBatch
from driftlog_agents.log.partition.partition import PartitionLog, Waiter


class Told(Enum):
    """What a request is told."""

    SYNCED = "synced"
    UNSYNCED = "unsynced"
    """It waits for the commit, which the log tells it."""
    COMMITTED = "committed"
    LOST = "lost"
    """The session is over, or a newer request with the same batch waits in its place."""


Answer = tuple[Waiter, PartitionLog, Told]
_Waiting = dict[tuple[PartitionLog, int], Waiter]
"""Partition and end of the batch → request."""


class AcksOne:
    """The acks=1 requests of one session.

    Args:
        probe_interval_ms: how long after a failure the disk is tried again.
    """

    def __init__(self, probe_interval_ms: float) -> None:
        self._probe_interval_ms = probe_interval_ms
        self.to_sync: _Waiting = {}
        """They wait for the next sync."""
        self._syncing: _Waiting = {}
        self.failed_at_ms: float | None = None
        """When the disk failed; None: its last write and sync succeeded."""

    def refuses(self, log: PartitionLog, now_ms: float) -> bool:
        """Whether acks=1 cannot be promised for *log* now."""
        return log.not_in_file_end > log.high_watermark or self.waits_for_disk(now_ms)

    def waits_for_disk(self, now_ms: float) -> bool:
        """Whether the disk failed a moment ago, and is not tried."""
        return (
            self.failed_at_ms is not None and now_ms < self.failed_at_ms + self._probe_interval_ms
        )

    # ── Writes ──

    def written(self, batches: Sequence[PendingBatch]) -> bool:
        """The batches are in a file; True: the disk had failed before."""
        for log, batch, waiter in batches:
            if waiter is not None:
                self.to_sync[log, batch.end_offset] = waiter
        recovered, self.failed_at_ms = self.failed_at_ms is not None, None
        return recovered

    def write_failed(self, batches: Sequence[PendingBatch], tried_ms: float | None) -> list[Answer]:
        """The batches are in no file; *tried_ms*: now; None: the disk was not tried."""
        if tried_ms is not None:
            self.failed_at_ms = tried_ms
        answers: list[Answer] = []
        for log, batch, waiter in batches:
            end = batch.end_offset
            log.not_in_file_end = max(log.not_in_file_end, end)
            if waiter is not None:
                answers += _older_waits(log, end, waiter)
        return answers

    def wait(self, log: PartitionLog, end: int, waiter: Waiter) -> list[Answer]:
        """The request waits for all batches that were added before: it is a duplicate of one."""
        if log.not_in_file_end > log.high_watermark:
            return _wait_for_commit(log, end, waiter)
        earlier = self.to_sync.get((log, end))
        self.to_sync[log, end] = waiter
        return _displaced(log, earlier)

    # ── Syncs ──

    def begin_sync(self) -> bool:
        """A sync begins: it is for the requests that wait now; False: none does."""
        self._syncing, self.to_sync = self.to_sync, {}
        return bool(self._syncing)

    def sync_ended(self, now_ms: float, *, failed: bool) -> list[Answer]:
        """The sync ended; *failed*: a file with uncommitted batches could not be synced."""
        waiting, self._syncing = self._syncing, {}
        if not failed:
            return [(waiter, log, Told.SYNCED) for (log, _), waiter in waiting.items()]
        self.failed_at_ms = now_ms
        answers: list[Answer] = []
        for (log, end), waiter in waiting.items():
            log.not_in_file_end = max(log.not_in_file_end, log.log_end)
            answers += _older_waits(log, end, waiter)
        return answers

    def close(self, batches: Sequence[PendingBatch]) -> list[Answer]:
        """The session is over; *batches*: those that are not written."""
        self.written(batches)
        waiting = [*self._syncing.items(), *self.to_sync.items()]
        self._syncing, self.to_sync = {}, {}
        return [
            (waiter, log, Told.COMMITTED if end <= log.high_watermark else Told.LOST)
            for (log, end), waiter in waiting
        ]


def _wait_for_commit(log: PartitionLog, end: int, waiter: Waiter) -> list[Answer]:
    if end <= log.high_watermark:
        return [(waiter, log, Told.COMMITTED)]
    earlier = log.wait_for_commit(end, waiter)
    return [(waiter, log, Told.UNSYNCED), *_displaced(log, earlier)]


def _older_waits(log: PartitionLog, end: int, waiter: Waiter) -> list[Answer]:
    """As `_wait_for_commit`, of a request that may be older than one that waits for the commit."""
    if end in log.waiting_duplicates:
        return [(waiter, log, Told.LOST)]
    return _wait_for_commit(log, end, waiter)


def _displaced(log: PartitionLog, earlier: Waiter | None) -> list[Answer]:
    return [] if earlier is None else [(earlier, log, Told.LOST)]
