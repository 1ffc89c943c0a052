"""The transaction of a rewrite: chosen flush records out, fewer ones in; and what its answer means.

1. It succeeds only if each old record is as it was read: a change by another agent is not undone.
2. It succeeds only while this session lives, and, for records of another session, after that one's
   end.
3. An answer may be lost and the transaction sent again: then the first new record is there already.

Source: design.md, "Forget".

Pure.
"""

from collections.abc import Sequence
from enum import Enum

from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_metadata.schema.codec import encode_flush_record
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.store import TxnResult
from driftlog_metadata.transactions import flush_transactions
from driftlog_metadata.transactions.session_transactions import Txn

NewRecord = tuple[str, FlushRecord]
"""Key and value."""


class ReplacementOutcome(Enum):
    """What the store's answer means."""

    REPLACED = "replaced"
    SESSION_OVER = "session over"
    CHANGED = "changed"
    """A record differs from what was read: they are loaded again, and the objects stay unnamed."""


class RecordReplacement:
    """Replaces *chosen*, records of *managed*, by *new*, for the live session *session_id*."""

    def __init__(
        self,
        session_id: str,
        session_revision: int,
        managed: SessionFlushRecords,
        chosen: Sequence[FlushRecordEntry],
        new: Sequence[NewRecord],
    ) -> None:
        self._session_revision = session_revision
        self._first = new[0][1]
        self.txn: Txn = flush_transactions.consolidate(
            session_id,
            session_revision,
            [(known.key, known.record) for known in chosen],
            new,
            dead=managed.session_id if managed.dead else None,
        )

    def outcome(self, result: TxnResult) -> ReplacementOutcome:
        """What *result*, the answer to `txn`, means."""
        if result.succeeded:
            return ReplacementOutcome.REPLACED
        mine, first = result.reads
        if first and first[0].value == encode_flush_record(self._first):
            return ReplacementOutcome.REPLACED
        if not mine or mine[0].create_revision != self._session_revision:
            return ReplacementOutcome.SESSION_OVER
        return ReplacementOutcome.CHANGED
