"""What becomes of a batch that a dead session of this disk left in its buffer files.

    what is committed cannot be read now      ──▶ UNKNOWN    its file stays where it is
    the log has this batch                    ──▶ IN_LOG     nothing to do
    it follows the log, and may be put there  ──▶ APPEND     same offset, leader epoch and bytes
    it was answered to acks=1                 ──▶ SET_ASIDE  its place in the log is taken
    otherwise                                 ──▶ DROP       its producer was not answered

*The log has it* exactly if what stands at its offset has its leader epoch.  Offsets of one leader
epoch are given out once, by one session, whose commits end with its head; so this never changes
once that head is closed.

*It may be put there* if sessions of this disk alone have led since the batch was accepted, if
nothing of its partition in front of it had to be left out, and if it continues the log at its end
in an epoch that is not older than the log's newest.

`tests/agents/log/recovery/test_verdict.py` is this as a table.
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


class BufferedBatch(NamedTuple):
    """What decides about one batch of a buffer file."""

    leader_epoch: int
    base_offset: int
    acks_one: bool
    """Its producer was answered with acks=1 after a sync of the file."""


class CommittedLog(NamedTuple):
    """A partition's log, as far as it is committed, or appended by this session."""

    epochs: Sequence[tuple[int, int]]
    """(Leader epoch, its start offset), ascending.  What is before the first one is of its epoch or
    of an older one."""
    end: int


def judge(batch: BufferedBatch, log: CommittedLog | None, *, continues: bool) -> Verdict:
    """What becomes of *batch*.

    *log* None: nobody can say what was committed.  *continues*: sessions of this disk alone have
    led the partition since, this session leads it, and nothing in front of the batch was left out.
    """
    if log is None:
        return Verdict.UNKNOWN
    if has(log, batch):
        return Verdict.IN_LOG
    if continues and batch.base_offset == log.end and not _is_overtaken(log, batch):
        return Verdict.APPEND
    return Verdict.SET_ASIDE if batch.acks_one else Verdict.DROP


def has(log: CommittedLog, batch: BufferedBatch) -> bool:
    """Whether the log has *batch*; where it knows no epochs, what is below its end is there."""
    if batch.base_offset >= log.end:
        return False
    known = bisect_right(log.epochs, batch.base_offset, key=lambda entry: entry[1])
    if known:
        return log.epochs[known - 1][0] == batch.leader_epoch
    return not log.epochs or batch.leader_epoch <= log.epochs[0][0]


def why_not_appended(batch: BufferedBatch, log: CommittedLog) -> str:
    """Why a batch of a partition that this disk went on leading has no place at its offset."""
    if _is_overtaken(log, batch):
        return "a later leader took their offsets"
    if batch.base_offset > log.end:
        return (
            "what stood before them is not on this disk: buffer_file_damaged says what a damaged "
            "file lacks"
        )
    return "other records have their offsets"


def _is_overtaken(log: CommittedLog, batch: BufferedBatch) -> bool:
    return bool(log.epochs) and log.epochs[-1][0] > batch.leader_epoch
