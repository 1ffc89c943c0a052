"""What the store's answers to a session's transactions mean.

Pure.
"""

from dataclasses import dataclass
from enum import Enum

from driftlog_metadata.schema.codec import decode_head
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import KeyValue, TxnResult


class CommitOutcome(Enum):
    """The outcome of a commit transaction."""

    COMMITTED = "committed"
    UNKNOWN = "unknown"
    """The commit was refused, or its answer lost: repeat it."""
    DEAD = "dead"
    """The session is over; this flush is not committed and never will be.  (Unless the head cannot
    be read: then an attempt whose answer was lost may have been committed.)"""


def outcome_of(seq: int, result: TxnResult) -> CommitOutcome:
    """The outcome of the commit of flush *seq*, by the answer of the store.

    Raises:
        CorruptError: the session's head cannot be read.
    """
    if result.succeeded:
        return CommitOutcome.COMMITTED
    _, head = result.reads
    if head and decode_head(head[0].value) >= seq:
        return CommitOutcome.COMMITTED  # by an earlier attempt, its answer lost
    return CommitOutcome.DEAD


@dataclass(frozen=True, slots=True)
class OpenOutcome:
    """The outcome of the transaction that creates a session's keys."""

    revision: int
    """Create revision of the session's key; 0: send it again."""
    agent: KeyValue | None = None
    """The agent's key now, which the next try must name."""


def outcome_of_open(key: str, result: TxnResult) -> OpenOutcome:
    """The outcome of opening the session whose *key* that is, by the answer of the store.

    Raises:
        FencedError: an earlier try created the session, and its lease has ended since.
    """
    if result.succeeded:
        return OpenOutcome(result.revision)
    mine, agent, head, _ = result.reads
    if mine:  # our own attempt, its answer lost
        assert mine[0].key == key
        return OpenOutcome(mine[0].create_revision)
    if head:
        raise FencedError("the session's lease ended while it was being opened")
    return OpenOutcome(0, agent[0] if agent else None)


def is_closed(head: KeyValue) -> bool:
    """Whether the head is *closed*; False for one that cannot be read: it is closed again."""
    try:
        return decode_head(head.value) < 0
    except CorruptError:
        return False
