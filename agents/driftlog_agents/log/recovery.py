"""Back on its own disk: what dead sessions buffered here and never committed is appended again.

    for each old directory, oldest session first; for each file; for each whole entry:

        a later epoch begins in the log at s:
            offset < s ──▶ it is in the log already
            offset ≥ s ──▶ stale: somebody has led since, and its place is taken
        its epoch is the newest, or newer than all:
            offset < log_end ──▶ it is in the log already (committed, or from an earlier directory)
            offset = log_end ──▶ append: same offset, same leader epoch, same bytes
            offset > log_end ──▶ a hole: what is behind it was never promised

What would be in the log already, and stands there with another epoch, is not: leftovers that
could not be appended at one start and could at the next took its place.  It is stale too.

A directory whose recovery was cut off by the next crash is simply read again: the next
session's files begin with copies of the same batches at the same offsets.  A directory
goes when its last batch is committed.  One that has what was answered to acks=1 and
cannot be appended is set aside in DIR/kept, and one with batches of a partition that is
offline, or led elsewhere, stays for the next start, whatever else is in it.

One that cannot be read stays as well.  What it promised may be nowhere else, so the partitions
that go on from its session take nothing until a person has looked at it: they are offline, and
the others go on.  Which these are is in their keys: a session stays in the lists of those it led
for as long as its directory is there and only sessions of this disk lead them.  Where others
have led since, nothing can be appended any more, and nothing waits for it.

Shell.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from driftlog_agents.log.buffer_format import Entry, entries
from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.flush import Batch
from driftlog_agents.log.flusher import Flusher
from driftlog_agents.log.partition import UNDEFINED_EPOCH, PartitionLog, State
from driftlog_agents.log.takeover import Taken
from driftlog_metadata.errors import UnavailableError
from driftlog_metadata.model import TopicPartition
from driftlog_tiering.batch import BatchHeader, CorruptBatchError, check_batch

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
        sealed_epochs: Callable[[PartitionLog], Awaitable[list[tuple[int, int]]]],
        unreadable: Callable[[UnavailableError], None],
        now_ms: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._sealed_epochs = sealed_epochs
        self._unreadable = unreadable
        self._now_ms = now_ms
        self._flusher = flusher
        self._taken = taken
        self._log = structlog.get_logger()
        self._ended: dict[PartitionLog, str] = {}
        """Of the directory that is read: why nothing more of a partition is appended."""
        self._reported: set[PartitionLog] = set()
        self._kept: set[str] = set()
        self._left: set[str] = set()
        self._recovered: set[PartitionLog] = set()
        self._learned: set[PartitionLog] = set()
        self.batches = 0

    async def append_leftovers(self, old_sessions: Sequence[str]) -> None:
        """Append what is beyond the committed end; nothing else is admitted before this is over.

        *old_sessions*: oldest first.
        """
        for session_id in old_sessions:
            self._ended.clear()
            self._reported.clear()
            try:
                for number in await self._patiently(partial(self._disk.read_files, session_id)):
                    await self._read(session_id, number)
            except _GivenUpError as error:
                self._give_up(session_id, str(error))
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

    async def _read(self, session_id: str, number: int) -> None:
        data = await self._patiently(partial(self._disk.read_file, session_id, number))
        since = 0
        try:
            for entry in entries(data):
                header = check_batch(entry.batch, from_client=False)
                await self._learn_epochs(entry, header)
                self._take(session_id, entry, header)
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

    def _take(self, session_id: str, entry: Entry, header: BatchHeader) -> None:
        tp = TopicPartition(entry.topic_id, entry.partition)
        log = self._taken.logs.get(tp)
        if log is None:
            if entry.topic_id in self._taken.topics:
                self._left.add(session_id)  # led elsewhere for now
            return
        if log.state is State.OFFLINE:
            self._left.add(session_id)  # nobody can say whether it is in the log
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
                self._ended[log] = "the disk lost what it had synced before them"
            elif tp not in self._taken.continued:
                self._ended[log] = "the partition was led elsewhere since"
        if log in self._ended:
            if entry.acks_one:
                self._set_aside(session_id, log, header.base_offset)
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
        log.append(records, header.producer_id, header.producer_epoch, header.base_sequence)
        self._flusher.append(log, batch, None, None, self._now_ms())
        self._recovered.add(log)
        self.batches += 1

    async def _learn_epochs(self, entry: Entry, header: BatchHeader) -> None:
        """Know the leader epochs in the log before anything is appended to it.

        The flush records have those of the tail, the manifest those before it.  It is not asked
        where it has none that is later than the entry's: if the tail's first is not, or if the
        last leader before us wrote the entry.  (So leftovers do not depend on it after a crash.)
        """
        log = self._taken.logs.get(TopicPartition(entry.topic_id, entry.partition))
        if log is None or log in self._learned or log.state is State.OFFLINE:
            return
        epoch = header.partition_leader_epoch
        if epoch >= log.leader_epoch - 1 or (log.epochs and log.epochs[0][0] <= epoch):
            return
        self._learned.add(log)
        if log.manifest_version:
            sealed = await self._sealed_epochs(log)
            newest = sealed[-1][0] if sealed else -1
            log.epochs = sealed + [entry for entry in log.epochs if entry[0] > newest]

    def _set_aside(self, session_id: str, log: PartitionLog, offset: int) -> None:
        """What was promised to acks=1 may not take its old offset: a person must look at it."""
        self._kept.add(session_id)
        if log in self._reported:
            return
        self._reported.add(log)
        self._log.error(
            "leftovers_not_appended",
            partition=f"{log.topic}-{log.partition}",
            session=session_id,
            from_offset=offset,
            log_end=log.log_end,
            reason=self._ended[log],
            advice="acknowledged with acks=1 and not in the log; the directory is in DIR/kept, or "
            "in DIR/buffer while something else in it waits",
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
            if session_id in self._left:
                continue  # also where something in it is to be set aside: later starts do that
            if session_id in self._kept:
                self._keep(session_id)
            else:
                self._disk.remove_session(session_id)
                self._taken.buffered.discard(session_id)

    def _keep(self, session_id: str) -> None:
        try:
            self._disk.keep_session(session_id)
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
