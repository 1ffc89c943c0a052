"""Back on its own disk: what dead sessions buffered here and never committed is appended again.

    for each old directory, oldest session first; for each file; for each whole entry:

        offset < log_end ──▶ it is in the log already (committed, or from an earlier directory)
        offset = log_end ──▶ append: same offset, same leader epoch, same bytes
        offset > log_end ──▶ a hole: what is behind it was never promised

A directory whose recovery was cut off by the next crash is simply read again: the next
session's files begin with copies of the same batches at the same offsets.  A directory
goes when its last batch is committed.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from driftlog_agents.log.buffer_format import Entry, entries
from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.flush import Batch
from driftlog_agents.log.flusher import Flusher
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_agents.log.takeover import Taken
from driftlog_metadata.errors import UnavailableError
from driftlog_metadata.model import TopicPartition
from driftlog_tiering.batch import CorruptBatchError, check_batch

_RETRY_S: Final = 0.5
_BREATHE_BYTES: Final = 1024 * 1024
"""Let the loop run after this much: keep-alives must not wait for a long recovery."""


class _Arrival:
    """A `Waiter` that sets an event when its partition's recovered batches are committed."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def committed(self, log: PartitionLog) -> None:
        self.event.set()

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("recovered batches wait for their commit")

    def lost(self, log: PartitionLog) -> None:
        # Its topic was deleted.  (When the session is lost nobody waits any more.)
        self.event.set()


class Recovery:
    """Appends the leftovers of old sessions, and removes their directories when it may."""

    def __init__(
        self,
        *,
        disk: AgentDisk,
        flusher: Flusher,
        taken: Taken,
        sealed_epoch: Callable[[PartitionLog], Awaitable[int]],
        now_ms: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._sealed_epoch = sealed_epoch
        self._now_ms = now_ms
        self._flusher = flusher
        self._taken = taken
        self._log = structlog.get_logger()
        self._holes: set[PartitionLog] = set()
        self._kept: set[str] = set()
        self._recovered: set[PartitionLog] = set()
        self._newest_epoch: dict[PartitionLog, int] = {}
        self.batches = 0

    async def append_leftovers(self, old_sessions: Sequence[str]) -> None:
        """Append what is beyond the committed end; nothing else is admitted before this is over.

        *old_sessions*: oldest first.
        """
        for session_id in old_sessions:
            self._holes.clear()
            for number in await self._disk.read_files(session_id):
                await self._read(session_id, number)
        if self.batches:
            self._log.info(
                "leftovers_appended", batches=self.batches, partitions=len(self._recovered)
            )

    async def _read(self, session_id: str, number: int) -> None:
        while True:
            try:
                data = await self._disk.read_file(session_id, number)
                break
            except UnavailableError as error:
                self._log.warning("buffer_file_unreadable", error=str(error), advice="tried again")
                await asyncio.sleep(_RETRY_S)
        since = 0
        try:
            for entry in entries(data):
                await self._learn_epochs(entry)
                if self._take(session_id, entry):
                    since += len(entry.batch)
                if since >= _BREATHE_BYTES:
                    since = 0
                    await asyncio.sleep(0)
        except CorruptBatchError:
            # Torn: by the crash, or by a write that failed.  It was not synced, and so nothing
            # behind it in this file was; what was promised later is in later files.
            self._log.info("buffer_file_torn", session=session_id, file=number)
        while self._flusher.overloaded:  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_S)  # once in a start, for seconds

    def _take(self, session_id: str, entry: Entry) -> bool:
        tp = TopicPartition(entry.topic_id, entry.partition)
        log = self._taken.logs.get(tp)
        if log is None:
            if entry.topic_id in self._taken.topics:
                self._kept.add(session_id)  # led elsewhere for now
            return False
        if log.state is State.OFFLINE:
            self._kept.add(session_id)
            return False
        if log in self._holes:
            return False
        header = check_batch(entry.batch, from_client=False)
        records = header.last_offset_delta + 1
        if header.base_offset < log.log_end:
            return False
        if header.partition_leader_epoch < self._newest_epoch.get(log, -1):
            # Somebody has led since.  What is not in the log below the start of a later epoch
            # never will be: its place is taken.
            self._stale(session_id, log, entry)
            return False
        if header.base_offset > log.log_end:
            self._hole(session_id, log, entry, header.base_offset)
            return False
        if tp not in self._taken.continued:
            self._led_since(session_id, log, entry)
            return False
        batch = Batch(
            bytes(entry.batch),
            len(entry.batch),
            header.base_offset,
            records,
            header.partition_leader_epoch,
            header.attributes,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.max_timestamp,
        )
        log.start_epoch(header.partition_leader_epoch, header.base_offset)
        log.append(records, header.producer_id, header.producer_epoch, header.base_sequence)
        self._flusher.append(log, batch, None, None, self._now_ms())
        self._recovered.add(log)
        self.batches += 1
        return True

    async def _learn_epochs(self, entry: Entry) -> None:
        """Know the newest leader epoch in the log before anything is appended to it.

        The flush records have it, but where everything is sealed: then the manifest has.
        """
        log = self._taken.logs.get(TopicPartition(entry.topic_id, entry.partition))
        if log is None or log in self._newest_epoch or log.state is State.OFFLINE:
            return
        newest = log.epochs[-1][0] if log.epochs else -1
        if log.manifest_version:
            newest = max(newest, await self._sealed_epoch(log))
        self._newest_epoch[log] = newest

    def _stale(self, session_id: str, log: PartitionLog, entry: Entry) -> None:
        if entry.acks_one and log not in self._holes:
            self._kept.add(session_id)
            self._log.error(
                "leftovers_are_stale",
                partition=f"{log.topic}-{log.partition}",
                session=session_id,
                advice="a later leader took their offsets; the directory is kept in DIR/kept",
            )
        self._holes.add(log)

    def _hole(self, session_id: str, log: PartitionLog, entry: Entry, base: int) -> None:
        self._holes.add(log)
        if entry.acks_one:
            self._kept.add(session_id)
            self._log.error(
                "leftovers_have_a_hole",
                partition=f"{log.topic}-{log.partition}",
                log_end=log.log_end,
                found=base,
                session=session_id,
                advice="the disk lost what it had synced; the directory is kept for inspection",
            )

    def _led_since(self, session_id: str, log: PartitionLog, entry: Entry) -> None:
        """Released, or led by a session that is not of this disk: nothing is owed here unless
        it was `acks=1`, and then it may not take its old offset."""
        self._holes.add(log)
        if entry.acks_one:
            self._kept.add(session_id)
            self._log.error(
                "leftovers_of_a_partition_led_elsewhere",
                partition=f"{log.topic}-{log.partition}",
                session=session_id,
                advice="acknowledged with acks=1 and not in the log; the directory is kept",
            )

    async def remove_directories(self, old_sessions: Sequence[str]) -> None:
        """Delete each old directory once everything that was appended from them is committed."""
        for log in self._recovered:
            arrival = _Arrival()
            end = log.log_end
            if log.high_watermark < end:
                log.waiting_duplicates.append((end, arrival))
                await arrival.event.wait()
        for session_id in old_sessions:
            if session_id in self._kept:
                self._disk.keep_session(session_id)
            else:
                self._disk.remove_session(session_id)
