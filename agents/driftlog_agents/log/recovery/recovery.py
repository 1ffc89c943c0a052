"""Appends the uncommitted batches that dead sessions of this disk left in their buffer files.

    for each old directory, oldest session first; for each file; for each whole entry:
        `leftover_batches` ──▶ flush it again at its offset, before anything else is admitted
                           ──▶ no action
                           ──▶ it has no place: note it; `displaced_records` decides
                           ──▶ pass over it: the claim of its unreadable partition is retained

When a later attempt reads a partition whose batches were passed over, they are appended before the
partition is served.  If the claim is given up meanwhile, they are noted as having no place.

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
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local.buffer_format import Entry, PassedOver, whole_batches
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.leftovers import Leftovers, decode_leftovers
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.waiters import CommitWaiter
from driftlog_agents.log.recovery.displaced_records import DisplacedRecords, breathing
from driftlog_agents.log.recovery.leftover_batches import (
    REPAIR,
    Directory,
    LeftoverBatches,
    batch_of,
    forget_idle,
)
from driftlog_agents.log.recovery.verdict import BufferedBatch
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader

_RETRY_S: Final = 0.5
_PATIENCE_MS: Final = 10_000
"""How long the recovery retries an unreadable file while no partition is served.  Longer: a disk
that comes back later takes no partition offline; shorter: the other partitions are served
sooner."""

_T = TypeVar("_T")


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
        self._leftovers = LeftoverBatches()
        self._directories: list[Directory] = []
        """Directories of old sessions with batches that are not finished, oldest first."""
        self._appending = asyncio.Lock()
        """Attempts that run at once append one after the other: see `LeftoverBatches.begin`."""

    @property
    def batches(self) -> int:
        """Number of batches that were appended."""
        return self._leftovers.batches

    async def append_leftovers(self, old_sessions: Sequence[str]) -> None:
        """Appends the batches above the committed ends; no other batch is admitted before this is
        over.

        *old_sessions*: oldest first.

        Raises:
            FencedError: the session ended first.
        """
        taken, leftovers = self._taken, self._leftovers
        for session_id in old_sessions:
            leftovers.begin()
            try:
                directory = await self._directory(session_id)
                for number in await self._patiently(partial(self._disk.read_files, session_id)):
                    await self._read(taken, directory, number)
            except _GivenUpError as error:
                self._give_up(taken, session_id, str(error))
            else:
                await self._note(directory)
        if not leftovers.unreadable:
            idle = forget_idle(self._directories, taken.retained)
            await self._takeover.release_retained(taken, idle)
        self._say_appended(self.batches, leftovers.recovered)

    async def append_later(self, taken: Taken) -> None:
        """Appends the batches of partitions of *taken* that were passed over; no batch is admitted
        to them before this is over.

        Raises:
            FencedError: the session ended first.
        """
        for session_id, reason in self._leftovers.unreadable.items():
            self._leftovers.take_offline(taken, session_id, reason)
        tps = taken.logs.keys() & {
            tp for directory in self._directories for tp in directory.waiting
        }
        if tps:
            before = self.batches
            await self._append_passed(taken, tps)
            recovered = self._leftovers.recovered.intersection(taken.logs.values())
            self._say_appended(self.batches - before, recovered)

    async def _append_passed(self, taken: Taken, tps: Collection[TopicPartition]) -> None:
        async with self._appending:
            for directory in list(self._directories):
                self._leftovers.begin()
                try:
                    for number in directory.files_of(tps):
                        await self._read(taken, directory, number, tps)
                except _GivenUpError as error:
                    directory.stays = True
                    self._give_up(taken, directory.session_id, str(error))
                directory.decided(set(tps) - taken.retained.keys())
                await self._save_note(directory)

    def _say_appended(self, batches: int, logs: Collection[PartitionLog]) -> None:
        if batches:
            self._log.info("leftovers_appended", batches=batches, partitions=len(logs))

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

    def _give_up(self, taken: Taken, session_id: str, reason: str) -> None:
        """Keeps the directory, and takes the partitions offline that continue from its session."""
        self._leftovers.unreadable[session_id] = reason
        concerned = self._leftovers.take_offline(taken, session_id, reason)
        self._log.error(
            "leftovers_unreadable",
            session=session_id,
            error=reason,
            offline=[f"{log.topic}-{log.partition}" for log in concerned],
            advice=REPAIR,
        )

    async def _read(
        self,
        taken: Taken,
        directory: Directory,
        number: int,
        only: Collection[TopicPartition] | None = None,
    ) -> None:
        """Handles the batches of one file; *only*: of these partitions, of a file read before."""
        session_id = directory.session_id
        data = await self._patiently(partial(self._disk.read_file, session_id, number))
        passed_over = PassedOver()
        async for entry, header in breathing(whole_batches(data, number, passed_over)):
            tp = TopicPartition(entry.topic_id, entry.partition)
            if only is None or tp in only:
                await self._handle(taken, directory, number, tp, entry, header)
        if passed_over.entries and only is None:
            self._say_damaged(session_id, number, passed_over)
        if passed_over.torn and only is None:
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

    async def _handle(
        self,
        taken: Taken,
        directory: Directory,
        number: int,
        tp: TopicPartition,
        entry: Entry,
        header: BatchHeader,
    ) -> None:
        epoch = header.partition_leader_epoch
        log = self._leftovers.needs_epochs(taken, tp, epoch)
        if log is not None:
            try:
                await self._loader.learn_epochs(log)
            except ObjectUnavailableError as error:
                # All claimed partitions wait for this recovery.  No batch of this log has been
                # appended: epochs ascend.  A later attempt decides about its buffered batches.
                assert log.log_end == log.high_watermark
                taken.unreadable[tp] = str(error)
                if isinstance(error.__cause__, CorruptError):
                    # It is missing or damaged, perhaps for good: the partition is led without it.
                    for each in (taken, self._taken):
                        each.continued.discard(tp)
                await self._takeover.give_back(taken, [tp])
        batch = BufferedBatch(epoch, header.base_offset, entry.acks_one)
        log = self._leftovers.decide(taken, directory, number, tp, batch)
        if log is not None:
            log.start_epoch(epoch, header.base_offset)
            producer = (header.producer_id, header.producer_epoch, header.base_sequence)
            log.append(header.last_offset_delta + 1, *producer, self._now_ms())
            self._flusher.append(log, batch_of(entry, header), None, None, self._now_ms())

    async def _note(self, directory: Directory) -> None:
        """Stores which partitions of the directory get no more batches from it, before other
        batches are admitted to them."""
        if not directory.is_needed:
            await self._finish(directory)  # before other batches get its offsets
            return
        self._directories.append(directory)
        await self._save_note(directory)

    async def _save_note(self, directory: Directory) -> None:
        if not directory.changed:
            return
        try:
            await self._disk.save_note(directory.session_id, directory.note.encode())
            directory.changed = False
        except UnavailableError as error:
            # The leader epochs of the batches still tell them from other batches at their offsets.
            self._log.error(
                "leftovers_not_noted",
                session=directory.session_id,
                error=str(error),
                advice="no action needed; the agent serves, and decides again at its next start",
            )

    async def remove_directories(self, retains_claim: Callable[[TopicPartition], bool]) -> None:
        """Deletes each old directory once all of its batches are committed or set aside.

        *retains_claim*: whether the session retains its claim of a partition that it does not lead.

        Raises:
            FencedError: the session ended first.
        """
        await self._committed()
        waits = partial(self._waits, retains_claim)
        async for directory in self._displaced.set_aside(self._directories, waits):
            self._directories.remove(directory)
            await self._finish(directory)

    async def _waits(
        self, retains_claim: Callable[[TopicPartition], bool], directory: Directory
    ) -> str:
        """Why *directory* cannot be decided now; empty: it can."""
        given_up = {tp for tp in directory.waiting if not retains_claim(tp)}
        if given_up:
            self._taken.continued.difference_update(given_up)
            await self._append_passed(Taken(), given_up)
        if directory.waiting:
            tp = min(directory.waiting)
            return f"{tp}: an object of it cannot be read now; its claim is retained until it can"
        await self._committed()
        return ""

    async def _committed(self) -> None:
        """Waits until every appended batch is committed."""
        recovered = self._leftovers.recovered
        for log in sorted(recovered, key=lambda log: (log.topic_id, log.partition)):
            waiter = CommitWaiter()
            end = log.log_end
            if log.high_watermark < end:
                log.waiters.append((end, waiter))
                await waiter.event.wait()
            recovered.discard(log)

    async def _finish(self, directory: Directory) -> None:
        await self._disk.remove_session(directory.session_id)
        self._taken.buffered.discard(directory.session_id)
        if directory.note.partitions:
            self._log.info("leftovers_directory_removed", session=directory.session_id)
