"""What the store's answers to a session's transactions mean.

Pure.
"""

from enum import Enum

from driftlog_metadata.schema.codec import decode_head
from driftlog_metadata.stores.errors import CorruptError
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


def is_closed(head: KeyValue) -> bool:
    """Whether the head is *closed*; False for one that cannot be read: it is closed again."""
    try:
        return decode_head(head.value) < 0
    except CorruptError:
        return False
