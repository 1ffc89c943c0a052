"""The order of a recovery: what becomes of each batch that dead sessions of this disk left.

    the partition is led, readable           ──▶ `verdict`: append it, or note that it has no place
    its claim is retained                    ──▶ pass over it: it keeps its place until the
                                                 partition is read
    offline                                  ──▶ its directory stays for the next start
    otherwise                                ──▶ note that it has no place: `displaced_records`

A noted partition gets no batch of this directory at an old offset any more, not at a later start
either: a later start may lead the partition directly after this session, which has given these
offsets to other records.

Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.local.buffer_format import Entry
from driftlog_agents.log.local.leftovers import Leftovers, PartitionLeftovers
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.recovery.verdict import (
    BufferedBatch,
    CommittedLog,
    Verdict,
    judge,
    why_not_appended,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import BatchHeader

REPAIR: Final = (
    "restart the agent when the disk can be read, or after the file is replaced by a copy of its "
    "readable part (ddrescue); to give up the records there that were acknowledged with acks=1, "
    "move the session's directory out of DIR/buffer and restart the agent"
)
"""Advice about a buffer file that cannot be read."""

LED_ELSEWHERE: Final = "another agent has led the partition since"


@dataclass(slots=True, eq=False)
class Directory:
    """The directory of an old session; not all of its batches are in the log."""

    note: Leftovers
    changed: bool = False
    """The note differs from the one on the disk."""
    files: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Files with batches that were acknowledged with acks=1 and may have no place, and the
    partitions of these batches."""
    passed_over: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Files with batches that wait until their partitions can be read, and these partitions."""
    promised: set[TopicPartition] = field(default_factory=set)
    """Those partitions of which a batch passed over was acknowledged with acks=1."""
    has_appended: bool = False
    """Batches of it were appended, and may not be committed yet."""
    stays: bool = False
    """An offline partition needs it at the next start."""

    @property
    def session_id(self) -> str:
        """The session that left the directory."""
        return self.note.session_id

    @property
    def undecided(self) -> set[TopicPartition]:
        """Partitions with batches that are, or may have to be, set aside."""
        return {tp for tps in self.files.values() for tp in tps}

    @property
    def waiting(self) -> set[TopicPartition]:
        """Partitions with batches that are passed over."""
        return {tp for tps in self.passed_over.values() for tp in tps}

    @property
    def is_needed(self) -> bool:
        """Whether the directory holds batches that may be nowhere else."""
        return bool(self.files or self.passed_over or self.has_appended or self.stays)

    def has_noted(self, tp: TopicPartition, batch: BufferedBatch) -> bool:
        """Whether the note excludes the batch from its old offset."""
        of = self.note.partitions.get(tp)
        return of is not None and of.covers(batch.leader_epoch, batch.base_offset)

    def note_down(self, tp: TopicPartition, batch: BufferedBatch, reason: str) -> None:
        """Excludes the batch and later ones of its leader epoch from their old offsets."""
        if not self.has_noted(tp, batch):
            of = self.note.partitions.setdefault(tp, PartitionLeftovers(reason))
            of.first_offsets[batch.leader_epoch] = batch.base_offset
            self.changed = True

    def drop(self, tps: Collection[TopicPartition]) -> None:
        """Excludes *tps* from what is set aside."""
        _without(self.files, tps)

    def pass_over(self, number: int, tp: TopicPartition, batch: BufferedBatch) -> None:
        """Notes that *batch* of a file waits until its partition can be read."""
        self.passed_over.setdefault(number, set()).add(tp)
        if batch.acks_one:
            self.promised.add(tp)

    def files_of(self, tps: Collection[TopicPartition]) -> list[int]:
        """The files with batches of *tps* that are passed over, in their order."""
        return sorted(n for n, found in self.passed_over.items() if not found.isdisjoint(tps))

    def decided(self, tps: Collection[TopicPartition]) -> None:
        """No batch of *tps* is passed over any more."""
        _without(self.passed_over, tps)
        self.promised.difference_update(tps)


def forget_idle(
    directories: Iterable[Directory], retained: Collection[TopicPartition]
) -> set[TopicPartition]:
    """The partitions of *retained* of which *directories* have no batch that was acknowledged with
    acks=1: no other batch of theirs is passed over from now on, and no claim is retained for
    them."""
    directories = list(directories)
    promised = {tp for directory in directories for tp in directory.promised}
    idle = set(retained) - promised
    for directory in directories:
        directory.decided(idle)
    return idle


def _without(files: dict[int, set[TopicPartition]], tps: Collection[TopicPartition]) -> None:
    for number in list(files):
        files[number].difference_update(tps)
        if not files[number]:
            del files[number]


class LeftoverBatches:
    """See the module; for one session.  The batches come directory by directory, the oldest one
    first, and in the order of its files."""

    def __init__(self) -> None:
        self._ended: set[PartitionLog] = set()
        """Partitions of which a batch of the present directory was left out."""
        self._learned: set[PartitionLog] = set()
        self.unreadable: dict[str, str] = {}
        """Sessions whose directories cannot be read, and why."""
        self.recovered: set[PartitionLog] = set()
        """Logs to which batches were appended."""
        self.batches = 0
        """Number of batches that were appended."""

    def begin(self) -> None:
        """The next batch is the first one of a directory."""
        self._ended.clear()

    def needs_epochs(
        self, taken: Taken, tp: TopicPartition, leader_epoch: int
    ) -> PartitionLog | None:
        """The log whose manifest must be read before a batch of *leader_epoch* is decided, if it
        is needed; it is asked for once.

        The flush records have the leader epochs of the tail, the manifest has the earlier ones.
        The manifest is not read if it cannot have an epoch later than the batch's: the tail's first
        epoch is not later, or the last leader before this one wrote the batch.  (So after a crash
        this does not depend on the manifest.)
        """
        log = taken.logs.get(tp)
        if log is None or log in self._learned or log.state is State.OFFLINE:
            return None
        if leader_epoch >= log.leader_epoch - 1:
            return None
        if log.epochs and log.epochs[0][0] <= leader_epoch:
            return None
        self._learned.add(log)
        return log if log.manifest_version else None

    def decide(
        self,
        taken: Taken,
        directory: Directory,
        number: int,
        tp: TopicPartition,
        batch: BufferedBatch,
    ) -> PartitionLog | None:
        """Decides about the next batch, of file *number*; returns the log that it is appended to,
        if it is."""
        log = taken.logs.get(tp)
        continues = tp in taken.continued and not directory.has_noted(tp, batch)
        committed = None
        if log is not None and log.state is not State.OFFLINE:
            committed = CommittedLog(log.epochs, log.log_start, log.log_end)
        elif continues and tp in taken.retained:
            directory.pass_over(number, tp, batch)
            return None
        elif continues:
            directory.stays = True  # it is unknown whether the log has it
            return None
        match judge(batch, committed, continues=continues and log not in self._ended):
            case Verdict.IN_LOG:
                return None
            case Verdict.APPEND:
                assert log is not None
                self.batches += 1
                self.recovered.add(log)
                directory.has_appended = True
                return log
            case Verdict.DELETED:  # it lies below log start: the batches after it lack nothing
                if batch.acks_one:
                    directory.files.setdefault(number, set()).add(tp)
                return None
            case Verdict.SET_ASIDE | Verdict.DROP | Verdict.UNKNOWN:
                reason = LED_ELSEWHERE
                if committed is not None and continues and log is not None:
                    reason = why_not_appended(batch, committed)
                    self._ended.add(log)
                directory.note_down(tp, batch, reason)
                if batch.acks_one:
                    directory.files.setdefault(number, set()).add(tp)
                return None

    def take_offline(self, taken: Taken, session_id: str, reason: str) -> list[PartitionLog]:
        """Takes the logs offline that `needing` returns, and returns them."""
        concerned = self.needing(taken, session_id)
        for log in concerned:
            if log.state is not State.OFFLINE:
                log.state = State.OFFLINE
                log.offline_reason = f"{reason}; {REPAIR}"
        return concerned

    def needing(self, taken: Taken, session_id: str) -> list[PartitionLog]:
        """The logs that continue from a session whose directory cannot be read: acknowledged
        batches may be only there."""
        return [
            log
            for tp, log in taken.logs.items()
            if tp in taken.continued and session_id in log.sessions
        ]


def batch_of(entry: Entry, header: BatchHeader) -> Batch:
    """The batch of a whole entry, as the flusher takes it."""
    return Batch(
        memoryview(bytes(entry.batch)),
        len(entry.batch),
        header.base_offset,
        header.partition_leader_epoch,
        (
            header.last_offset_delta + 1,
            header.attributes,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.base_timestamp,
            header.max_timestamp,
        ),
    )
