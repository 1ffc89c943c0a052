"""Decides about each batch that a dead session of this disk left in its buffer files.

    the committed log cannot be read now      ──▶ UNKNOWN    its file stays where it is
    the log has forgotten its leader epoch    ──▶ DELETED    so are all records at its offset
    the log has this batch                    ──▶ IN_LOG     no action
    it follows the log, and may be appended   ──▶ APPEND     same offset, leader epoch and bytes
    it was acknowledged with acks=1           ──▶ SET_ASIDE  its place in the log is taken
    otherwise                                 ──▶ DROP       it was never acknowledged

*The log has the batch* exactly if the batch at its offset has its leader epoch.  One session
assigns the offsets of a leader epoch, each once, and its commits end when its head is closed; so
this answer never changes after that.

*The log has forgotten its leader epoch* if the batch is below log start and its epoch is older than
the first known one: epochs below log start are dropped, as in Kafka.  Either the log had the batch,
and a user deleted it, or another leader took its offset.  Nothing tells which.  Most such batches
were in the log: a replay would bring back what a user deleted.  The others would be deleted as well
had they kept their offsets.  So none is set aside; `displaced_records` logs and counts the acks=1
ones.

*It may be appended* if only sessions of this disk have led the partition since the batch was
accepted, if no earlier batch of the partition was left out (a DELETED one leaves no hole), and if
it continues the log at its end in an epoch that is not older than the log's newest.

`tests/agents/log/recovery/test_verdict.py` has these rules as a table.
Pure.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """See the module."""

    UNKNOWN = "unknown"
    IN_LOG = "in the log"
    APPEND = "append"
    SET_ASIDE = "set aside"
    DROP = "drop"
    DELETED = "deleted"


class BufferedBatch(NamedTuple):
    """The properties of a buffered batch that decide about it."""

    leader_epoch: int
    base_offset: int
    acks_one: bool
    """The batch was acknowledged with acks=1 after a sync of the file."""


class CommittedLog(NamedTuple):
    """A partition's log: its committed batches and those that this session has appended."""

    epochs: Sequence[tuple[int, int]]
    """(Leader epoch, its start offset), ascending.  Batches below the first start offset are of
    that epoch or of an older one; older ones are decided only when the manifest's epochs are
    here."""
    start: int
    end: int


def judge(batch: BufferedBatch, log: CommittedLog | None, *, continues: bool) -> Verdict:
    """Decides about *batch*.

    *log* None: the committed log is unknown.  *continues*: only sessions of this disk have led the
    partition since, this session leads it, and no earlier batch was left out.
    """
    if log is None:
        return Verdict.UNKNOWN
    if _is_forgotten(log, batch):
        return Verdict.DELETED
    if has(log, batch):
        return Verdict.IN_LOG
    if continues and batch.base_offset == log.end and not _is_overtaken(log, batch):
        return Verdict.APPEND
    return Verdict.SET_ASIDE if batch.acks_one else Verdict.DROP


def has(log: CommittedLog, batch: BufferedBatch) -> bool:
    """Whether the log has *batch*; a log without known epochs has every batch below its end.

    Below the first known epoch's start the log has a batch of that epoch.  Nothing tells whether it
    has one of an older epoch: such a batch counts as not in the log.  (A record that is set aside
    twice is seen; one that is dropped is not.)
    """
    if batch.base_offset >= log.end:
        return False
    known = bisect_right(log.epochs, batch.base_offset, key=lambda entry: entry[1])
    if known:
        return log.epochs[known - 1][0] == batch.leader_epoch
    return not log.epochs or batch.leader_epoch == log.epochs[0][0]


def why_not_appended(batch: BufferedBatch, log: CommittedLog) -> str:
    """Why a batch has no place at its offset though only this disk has led the partition."""
    if _is_overtaken(log, batch):
        return "a later leader took their offsets"
    if batch.base_offset > log.end:
        return (
            "earlier records are not on this disk: buffer_file_damaged shows what a damaged file "
            "lacks"
        )
    return "other records have their offsets"


def _is_forgotten(log: CommittedLog, batch: BufferedBatch) -> bool:
    if not log.epochs or batch.base_offset >= log.start:
        return False
    epoch, start_offset = log.epochs[0]
    return batch.base_offset < start_offset and batch.leader_epoch < epoch


def _is_overtaken(log: CommittedLog, batch: BufferedBatch) -> bool:
    return bool(log.epochs) and log.epochs[-1][0] > batch.leader_epoch
