"""Appends the uncommitted batches that dead sessions of this disk left in their buffer files.

    for each old directory, oldest session first; for each file; for each whole entry: `verdict`

        APPEND             ──▶ flushed again, at its offset, before anything else is admitted
        IN_LOG, DROP       ──▶ no action
        SET_ASIDE, DELETED, UNKNOWN
                           ──▶ its partition is noted in the directory; `displaced_records` decides

A noted partition gets no batch of this directory at an old offset any more, not at a later start
either: a later start may lead the partition directly after this session, which has given these
offsets to other records.

If a crash interrupts the recovery of a directory, the next start reads it again: the next session's
files begin with copies of the same batches at the same offsets.  A directory is removed when its
last batch is committed or set aside.  A directory with batches of an offline partition stays for
the next start, whatever else is in it.

An unreadable directory stays as well.  Acknowledged batches may be only there, so the partitions
that continue from its session are offline until an operator has repaired it; the others are
served.  The partitions' keys show which ones: a session stays in their lists as long as its
directory exists and only sessions of this disk lead them.  If other agents have led a partition
since, the directory's batches cannot be appended to it, and the partition does not wait for the
directory.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local.buffer_format import Entry, PassedOver, entries
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.leftovers import Leftovers, decode_leftovers
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.waiters import Arrival
from driftlog_agents.log.recovery.displaced_records import Directory, DisplacedRecords
from driftlog_agents.log.recovery.verdict import (
    BufferedBatch,
    CommittedLog,
    Verdict,
    judge,
    why_not_appended,
)
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader, CorruptBatchError, check_batch

_RETRY_S: Final = 0.5
_PATIENCE_MS: Final = 10_000
"""How long the recovery retries an unreadable file while no partition is served.  Longer: a disk
that comes back later takes no partition offline; shorter: the other partitions are served
sooner."""

REPAIR: Final = (
    "restart the agent when the disk can be read, or after the file is replaced by a copy of its "
    "readable part (ddrescue); to give up the records there that were acknowledged with acks=1, "
    "move the session's directory out of DIR/buffer and restart the agent"
)
"""Advice about a buffer file that cannot be read."""

LED_ELSEWHERE: Final = "another agent has led the partition since"

_T = TypeVar("_T")
_BREATHE_BYTES: Final = 1024 * 1024
"""The event loop runs after so many bytes: keep-alives must not wait for a long recovery."""


class _GivenUpError(Exception):
    """A directory stays unreadable after all retries."""


def unreadable(counters: LogCounters, error: UnavailableError) -> None:
    """Counts and logs that the disk does not return the files of earlier sessions."""
    counters.buffer_unreadable += 1
    structlog.get_logger().warning(
        "buffer_unreadable", error=str(error), advice=f"retrying; if this persists: {REPAIR}"
    )


class Recovery:
    """See the module; for one session."""

    def __init__(
        self,
        *,
        disk: AgentDisk,
        flusher: Flusher,
        taken: Taken,
        takeover: Takeover,
        loader: MetadataLoader,
        displaced: DisplacedRecords,
        counters: LogCounters,
        now_ms: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._flusher = flusher
        self._taken = taken
        self._takeover = takeover
        self._loader = loader
        self._displaced = displaced
        self._counters = counters
        self._now_ms = now_ms
        self._log = structlog.get_logger()
        self._ended: set[PartitionLog] = set()
        """Partitions of which a batch of the present directory was left out."""
        self._directories: list[Directory] = []
        """Directories of old sessions with batches that are not finished, oldest first."""
        self._left: set[str] = set()
        self._recovered: set[PartitionLog] = set()
        self._appended_from: set[str] = set()
        """Sessions from whose directories batches were appended."""
        self._learned: set[PartitionLog] = set()
        self.batches = 0

    async def append_leftovers(self, old_sessions: Sequence[str]) -> None:
        """Appends the batches above the committed ends; no other batch is admitted before this is
        over.

        *old_sessions*: oldest first.
        """
        for session_id in old_sessions:
            self._ended.clear()
            try:
                directory = await self._directory(session_id)
                for number in await self._patiently(partial(self._disk.read_files, session_id)):
                    await self._read(directory, number)
            except _GivenUpError as error:
                self._give_up(session_id, str(error))
            else:
                await self._note(directory)
        if self.batches:
            self._log.info(
                "leftovers_appended", batches=self.batches, partitions=len(self._recovered)
            )

    async def _patiently(self, read: Callable[[], Awaitable[_T]]) -> _T:
        until_ms: float | None = None
        while True:
            try:
                return await read()
            except UnavailableError as error:
                unreadable(self._counters, error)
                if until_ms is None:
                    until_ms = self._now_ms() + _PATIENCE_MS
                elif self._now_ms() >= until_ms:
                    raise _GivenUpError(str(error)) from error
            await asyncio.sleep(_RETRY_S)

    async def _directory(self, session_id: str) -> Directory:
        data = await self._patiently(partial(self._disk.load_note, session_id))
        try:
            note = Leftovers(session_id) if data is None else decode_leftovers(data)
        except CorruptError as error:
            raise _GivenUpError(str(error)) from error
        return Directory(note)

    def _give_up(self, session_id: str, reason: str) -> None:
        """Keeps the directory, and takes the partitions offline that continue from its session."""
        self._left.add(session_id)
        concerned = [
            log
            for tp, log in self._taken.logs.items()
            if tp in self._taken.continued and session_id in log.sessions
        ]
        for log in concerned:
            if log.state is not State.OFFLINE:
                log.state = State.OFFLINE
                log.offline_reason = f"{reason}; {REPAIR}"
        self._log.error(
            "leftovers_unreadable",
            session=session_id,
            error=reason,
            offline=[f"{log.topic}-{log.partition}" for log in concerned],
            advice=REPAIR,
        )

    async def _read(self, directory: Directory, number: int) -> None:
        session_id = directory.session_id
        data = await self._patiently(partial(self._disk.read_file, session_id, number))
        since = 0
        passed_over = PassedOver()
        for entry in entries(data, number, passed_over):
            try:
                header = check_batch(entry.batch, from_client=False)
            except CorruptBatchError:
                passed_over.add(len(entry.batch))
                continue
            passed_over.followed()
            await self._learn_epochs(entry, header)
            self._take(directory, number, entry, header)
            since += len(entry.batch)
            if since >= _BREATHE_BYTES:
                since = 0
                await asyncio.sleep(0)
        if passed_over.entries:
            self._say_damaged(session_id, number, passed_over)
        if passed_over.torn:
            # The crash, or a failed write, tore the entry: it was not synced, and no entry follows
            # it in this file; later acknowledged batches are in later files.
            self._log.info("buffer_file_torn", session=session_id, file=number)
        while self._flusher.overloaded:  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_S)  # only at a start, for seconds

    def _say_damaged(self, session_id: str, number: int, passed_over: PassedOver) -> None:
        self._counters.buffer_damaged_files += 1
        self._counters.buffer_damaged_entries += passed_over.entries
        self._counters.buffer_damaged_bytes += passed_over.size_bytes
        self._log.warning(
            "buffer_file_damaged",
            session=session_id,
            file=number,
            entries_skipped=passed_over.entries,
            bytes_skipped=passed_over.size_bytes,
            means="the disk has damaged the file, or power was lost before its sync (then no "
            "acknowledged record is missing); records before the damage keep their offsets, "
            "records after it that were acknowledged with acks=1 are set aside "
            "(records_set_aside)",
            advice="after a loss of power, or a crash of the machine: no action needed; otherwise "
            "check the disk: acks=1 records of the damaged part that are nowhere else are lost",
        )

    def _take(self, directory: Directory, number: int, entry: Entry, header: BatchHeader) -> None:
        tp = TopicPartition(entry.topic_id, entry.partition)
        log = self._taken.logs.get(tp)
        batch = BufferedBatch(header.partition_leader_epoch, header.base_offset, entry.acks_one)
        noted = directory.has_noted(tp, batch)
        continues = tp in self._taken.continued and not noted
        committed = None
        if log is not None and log.state is not State.OFFLINE:
            committed = CommittedLog(log.epochs, log.log_start, log.log_end)
        elif continues:
            self._left.add(directory.session_id)  # it is unknown whether the log has it
            return
        verdict = judge(batch, committed, continues=continues and log not in self._ended)
        match verdict:
            case Verdict.IN_LOG:
                pass
            case Verdict.APPEND:
                assert log is not None
                self._append(directory, log, entry, header)
            case Verdict.SET_ASIDE | Verdict.DELETED | Verdict.DROP | Verdict.UNKNOWN:
                reason = LED_ELSEWHERE
                if committed is not None and continues and log is not None:
                    reason = why_not_appended(batch, committed)
                    self._ended.add(log)
                directory.note_down(tp, batch, reason)
                if batch.acks_one:
                    directory.files.setdefault(number, set()).add(tp)

    def _append(
        self, directory: Directory, log: PartitionLog, entry: Entry, header: BatchHeader
    ) -> None:
        records = header.last_offset_delta + 1
        batch = Batch(
            bytes(entry.batch),
            len(entry.batch),
            header.base_offset,
            header.partition_leader_epoch,
            (
                records,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_timestamp,
                header.max_timestamp,
            ),
        )
        log.start_epoch(header.partition_leader_epoch, header.base_offset)
        producer = (header.producer_id, header.producer_epoch, header.base_sequence)
        log.append(records, *producer, self._now_ms())
        self._flusher.append(log, batch, None, None, self._now_ms())
        self._recovered.add(log)
        self._appended_from.add(directory.session_id)
        self.batches += 1

    async def _learn_epochs(self, entry: Entry, header: BatchHeader) -> None:
        """Loads the leader epochs of the log before any batch is appended to it.

        The flush records have the epochs of the tail, the manifest has the earlier ones.  The
        manifest is not read if it cannot have an epoch later than the entry's: the tail's first
        epoch is not later, or the last leader before this one wrote the entry.  (So after a crash
        this does not depend on the manifest.)
        """
        tp = TopicPartition(entry.topic_id, entry.partition)
        log = self._taken.logs.get(tp)
        if log is None or log in self._learned or log.state is State.OFFLINE:
            return
        epoch = header.partition_leader_epoch
        if epoch >= log.leader_epoch - 1 or (log.epochs and log.epochs[0][0] <= epoch):
            return
        self._learned.add(log)
        if not log.manifest_version:
            return
        try:
            await self._loader.learn_epochs(log)
        except ObjectUnavailableError as error:
            # All claimed partitions wait for this recovery.  No batch of this log has been
            # appended: epochs ascend.  A later start decides about its buffered batches.
            assert log.log_end == log.high_watermark
            self._taken.unreadable[tp] = str(error)
            await self._takeover.give_back(self._taken, [tp])

    async def _note(self, directory: Directory) -> None:
        """Stores which partitions of the directory get no more batches from it, before other
        batches are admitted to them."""
        session_id = directory.session_id
        is_needed = directory.files or session_id in self._appended_from or session_id in self._left
        if not is_needed:
            await self._finish(directory)  # before other batches get its offsets
            return
        self._directories.append(directory)
        if not directory.changed:
            return
        try:
            await self._disk.save_note(session_id, directory.note.encode())
        except UnavailableError as error:
            # The leader epochs of the batches still tell them from other batches at their offsets.
            self._log.error(
                "leftovers_not_noted",
                session=session_id,
                error=str(error),
                advice="no action needed; the agent serves, and decides again at its next start",
            )

    async def remove_directories(self) -> None:
        """Deletes each old directory once all of its batches are committed or set aside.

        Raises:
            FencedError: the session ended first.
        """
        for log in self._recovered:
            arrival = Arrival()
            end = log.log_end
            if log.high_watermark < end:
                log.waiting_duplicates.append((end, arrival))
                await arrival.event.wait()
        decidable = [d for d in self._directories if d.session_id not in self._left]
        async for directory in self._displaced.set_aside(decidable):
            await self._finish(directory)

    async def _finish(self, directory: Directory) -> None:
        await self._disk.remove_session(directory.session_id)
        self._taken.buffered.discard(directory.session_id)
        if directory.note.partitions:
            self._log.info("leftovers_directory_removed", session=directory.session_id)
