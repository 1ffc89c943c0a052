"""Back on its own disk: what dead sessions buffered here and never committed is appended again.

    for each old directory, oldest session first; for each file; for each whole entry:

        a later epoch begins in the log at s:
            offset < s ──▶ it is in the log already
            offset ≥ s ──▶ elsewhere: somebody has led since, and its place is taken
        its epoch is the newest, or newer than all:
            offset < log_end ──▶ it is in the log already (committed, or from an earlier directory)
            offset = log_end ──▶ append: same offset, same leader epoch, same bytes
            offset > log_end ──▶ elsewhere: the disk has not what stood before it
        its partition is not led here ──▶ elsewhere, if its leader says that it is not in the log

*Elsewhere* (`recovery/forwarder`): what was answered to acks=1 is appended at new offsets, by
whoever leads now, and the rest was never promised.  That is noted in the directory before anything
is served, and final: a later start may lead the partition in a row with this one, and must not put
there at the old offset what had no place at this one.

What would be in the log already, and stands there with another epoch, is not (a disk that could
not be written kept the note from being there): it goes elsewhere too.

A directory whose recovery was cut off by the next crash is simply read again: the next
session's files begin with copies of the same batches at the same offsets.  A directory
goes when its last batch is committed, or appended elsewhere.  One with batches of a partition that
is offline stays for the next start, whatever else is in it, and one with what was answered to
acks=1 and cannot be appended at all is set aside in DIR/kept.

One that cannot be read stays as well.  What it promised may be nowhere else, so the partitions
that go on from its session take nothing until a person has looked at it: they are offline, and
the others go on.  Which these are is in their keys: a session stays in the lists of those it led
for as long as its directory is there and only sessions of this disk lead them.  Where others
have led since, nothing can be appended any more, and nothing waits for it.

Shell.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.local.buffer_format import Entry, PassedOver, entries
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import UNDEFINED_EPOCH, PartitionLog, State
from driftlog_agents.log.partition.waiters import Arrival
from driftlog_agents.log.recovery.directory import LED_ELSEWHERE, NOT_ON_DISK, Directory
from driftlog_agents.log.recovery.forwarder import AcksOneForwarder
from driftlog_agents.log.recovery.uncommitted_batches import Leftover, Note, decode_note
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader, CorruptBatchError, check_batch

_RETRY_S: Final = 0.5
_PATIENCE_MS: Final = 10_000
"""How long what cannot be read is tried again while nothing is served.  Longer: a disk that comes
back later takes no partition offline."""

REPAIR: Final = (
    "start the agent again when the disk can be read, or a copy of what can be read (ddrescue) is "
    "in the file's place; to go on without what was acknowledged with acks=1 and is only there, "
    "move the session's directory out of DIR/buffer and start the agent again"
)
"""What to do with a buffer file that cannot be read."""

_T = TypeVar("_T")
_BREATHE_BYTES: Final = 1024 * 1024
"""Let the loop run after this much: keep-alives must not wait for a long recovery."""


class _GivenUpError(Exception):
    """A directory cannot be read, and not for a moment only."""


class Recovery:
    """Appends the leftovers of old sessions, and removes their directories when it may."""

    def __init__(
        self,
        *,
        disk: AgentDisk,
        flusher: Flusher,
        elsewhere: AcksOneForwarder,
        taken: Taken,
        sealed_epochs: Callable[[PartitionLog], Awaitable[list[tuple[int, int]]]],
        give_back: Callable[[Taken, Collection[TopicPartition]], Awaitable[None]],
        unreadable: Callable[[UnavailableError], None],
        counters: LogCounters,
        now_ms: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._sealed_epochs = sealed_epochs
        self._give_back = give_back
        self._unreadable = unreadable
        self._counters = counters
        self._now_ms = now_ms
        self._flusher = flusher
        self._elsewhere = elsewhere
        self._taken = taken
        self._log = structlog.get_logger()
        self._ended: dict[PartitionLog, str] = {}
        """Of the directory that is read: why nothing more of a partition is appended here."""
        self._directories: dict[str, Directory] = {}
        """Of old sessions that have something to append elsewhere, by session."""
        self._left: set[str] = set()
        self._recovered: set[PartitionLog] = set()
        self._appended_from: set[str] = set()
        """Sessions whose directories these batches are from."""
        self._learned: set[PartitionLog] = set()
        self.batches = 0

    async def append_leftovers(self, old_sessions: Sequence[str]) -> None:
        """Append what is beyond the committed end; nothing else is admitted before this is over.

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
                self._unreadable(error)
                if until_ms is None:
                    until_ms = self._now_ms() + _PATIENCE_MS
                elif self._now_ms() >= until_ms:
                    raise _GivenUpError(str(error)) from error
            await asyncio.sleep(_RETRY_S)

    async def _directory(self, session_id: str) -> Directory:
        data = await self._patiently(partial(self._disk.load_note, session_id))
        try:
            return Directory(session_id, Note() if data is None else decode_note(data))
        except CorruptError as error:
            raise _GivenUpError(str(error)) from error

    def _give_up(self, session_id: str, reason: str) -> None:
        """The directory stays; who goes on from that session is offline.  See the module."""
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
            self._counters.buffer_damaged_files += 1
            self._counters.buffer_damaged_entries += passed_over.entries
            self._counters.buffer_damaged_bytes += passed_over.size_bytes
            # What follows the gap of its partition goes elsewhere: `_take`.
            self._log.warning(
                "buffer_file_damaged",
                session=session_id,
                file=number,
                entries_skipped=passed_over.entries,
                bytes_skipped=passed_over.size_bytes,
                means="the disk has damaged it, or power was lost before it was synced (then "
                "nothing that was promised is missing); what stands before and behind it is kept, "
                "what stands behind it at new offsets (leftovers_appended_elsewhere)",
                advice="after a loss of power, or a crash of the machine: nothing; otherwise check "
                "the disk: what was acknowledged with acks=1 and stood there alone is lost",
            )
        if passed_over.torn:
            # By the crash, or by a write that failed: it was not synced, and nothing follows it in
            # this file; what was promised later is in later files.
            self._log.info("buffer_file_torn", session=session_id, file=number)
        while self._flusher.overloaded:  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_S)  # once in a start, for seconds

    def _take(self, directory: Directory, number: int, entry: Entry, header: BatchHeader) -> None:
        tp = TopicPartition(entry.topic_id, entry.partition)
        log = self._taken.logs.get(tp)
        leftover = directory.note.partitions.get(tp)
        noted = leftover is not None and leftover.may_have(header)
        continues = tp in self._taken.continued and not noted
        if log is None or (log.state is State.OFFLINE and not continues):
            directory.causes[tp] = LED_ELSEWHERE
            self._goes_elsewhere(directory, number, entry, header)
            return
        if log.state is State.OFFLINE:
            self._left.add(directory.session_id)  # nobody can say whether it is in the log
            return
        records = header.last_offset_delta + 1
        later = bisect_right(log.epochs, header.partition_leader_epoch, key=lambda e: e[0])
        overtaken = later < len(log.epochs)
        if header.base_offset < (log.epochs[later][1] if overtaken else log.log_end):
            if _has(log, header):
                return
            self._ended.setdefault(log, "leftovers of an older leader took their offsets")
        if log not in self._ended:
            if overtaken:
                self._ended[log] = "a later leader took their offsets"
            elif header.base_offset > log.log_end:
                self._ended[log] = NOT_ON_DISK
            elif tp not in self._taken.continued:
                self._ended[log] = "the partition was led elsewhere since"
            elif noted:
                self._ended[log] = "an earlier start of this agent found no place for them"
        if log in self._ended:
            directory.causes[tp] = self._ended[log]
            self._goes_elsewhere(directory, number, entry, header)
            return
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
        """Know the leader epochs in the log before anything is appended to it.

        The flush records have those of the tail, the manifest those before it.  It is not asked
        where it has none that is later than the entry's: if the tail's first is not, or if the
        last leader before us wrote the entry.  (So leftovers do not depend on it after a crash.)
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
            sealed = await self._sealed_epochs(log)
        except ObjectUnavailableError as error:
            # All that was claimed waits for us.  Nothing of this log has been appended: epochs
            # ascend.  What is buffered of it goes to who leads it once the object is given.
            assert log.log_end == log.high_watermark
            self._taken.unreadable[tp] = str(error)
            await self._give_back(self._taken, [tp])
            return
        newest = sealed[-1][0] if sealed else -1
        log.epochs = sealed + [entry for entry in log.epochs if entry[0] > newest]

    # ── What goes elsewhere ──

    def _goes_elsewhere(
        self, directory: Directory, number: int, entry: Entry, header: BatchHeader
    ) -> None:
        """The entry has no place at its old offset; or nobody here knows, who does not lead it."""
        tp = TopicPartition(entry.topic_id, entry.partition)
        leftover = directory.note.partitions.get(tp)
        if leftover is None:
            leftover = directory.note.partitions[tp] = Leftover()
            directory.changed = True
        if leftover.ends is None:
            begins = directory.begins.setdefault(tp, {})
            begins.setdefault(header.partition_leader_epoch, header.base_offset)
        if entry.acks_one and leftover.may_have(header):
            directory.files.setdefault(tp, number)

    async def _note(self, directory: Directory) -> None:
        """Write down what of the directory goes elsewhere, before anything else is admitted."""
        session_id, note = directory.session_id, directory.note
        for tp, leftover in note.partitions.items():
            topic = self._taken.topics.get(tp.topic_id)
            if topic is not None:
                directory.names[tp] = topic.name
            if leftover.done:
                continue
            log = self._taken.logs.get(tp)
            if tp not in directory.files:
                directory.end(tp)
            elif leftover.ends is None and log is not None and log.state is not State.OFFLINE:
                leftover.ends = directory.begins[tp]
                directory.changed = True
        if directory.pending:
            self._log.info(
                "leftovers_go_elsewhere",
                session=session_id,
                partitions=len(directory.pending),
                reasons=sorted(
                    {directory.causes.get(tp, LED_ELSEWHERE) for tp in directory.pending}
                ),
                advice="nothing to do: what is in the log stays as it is; what was acks=1 and "
                "is on this disk alone is appended by today's leaders at new offsets, and "
                "leftovers_appended_elsewhere says what that was",
            )
        elif session_id not in self._appended_from and session_id not in self._left:
            await self._finish(directory)  # before anything takes the offsets that it has
            return
        self._directories[session_id] = directory
        if directory.changed:
            await self._save(directory)

    async def _save(self, directory: Directory) -> None:
        try:
            await self._elsewhere.save(directory)
        except UnavailableError as error:
            self._log.error(
                "leftovers_not_noted",
                session=directory.session_id,
                error=str(error),
                advice="it is tried again before anything of it is appended",
            )

    async def remove_directories(self) -> None:
        """Delete each old directory once all of it is committed, or appended elsewhere.

        Raises:
            FencedError: the session ended first.
        """
        for log in self._recovered:
            arrival = Arrival()
            end = log.log_end
            if log.high_watermark < end:
                log.waiting_duplicates.append((end, arrival))
                await arrival.event.wait()
        async for directory in self._elsewhere.append(list(self._directories.values())):
            if directory.session_id not in self._left:
                await self._finish(directory)
            # (Also where something in it is to be set aside: later starts do that.)

    async def _finish(self, directory: Directory) -> None:
        """All that it has is in the log, or must be looked at by a person."""
        session_id = directory.session_id
        if directory.note.incomplete:
            await self._keep(session_id)
            return
        await self._disk.remove_session(session_id)
        self._taken.buffered.discard(session_id)
        if directory.note.partitions:
            self._log.info("leftovers_directory_removed", session=session_id)

    async def _keep(self, session_id: str) -> None:
        try:
            await self._disk.keep_session(session_id)
        except UnavailableError as error:
            self._log.error(
                "leftovers_not_set_aside",
                session=session_id,
                error=str(error),
                advice="the directory stays in DIR/buffer; it is tried again at the next start",
            )


def _has(log: PartitionLog, header: BatchHeader) -> bool:
    """Whether what stands at its offset has its epoch; where nobody knows, it has.

    What is before the first epoch that is known is of that epoch or an earlier one.
    """
    there = log.epoch_at(header.base_offset)
    if there == UNDEFINED_EPOCH and log.epochs:
        there = min(log.epochs[0][0], header.partition_leader_epoch)
    return there in (header.partition_leader_epoch, UNDEFINED_EPOCH)
