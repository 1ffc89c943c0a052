"""If it failed: a rewrite that another agent overtook would count as done, and its records be lost.

The transaction itself is tested with the others, at `tests/metadata/transactions`.
"""

from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_agents.log.consolidation.replacement import RecordReplacement, ReplacementOutcome
from driftlog_metadata.schema.codec import encode_flush_record
from driftlog_metadata.schema.keys import flush_key, session_key
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.store import CreateRevisionIs, KeyValue, TxnResult

MINE, DEAD = "0" * 32, "1" * 32
OLD, NEW = (
    FlushRecord(object_key="old", size_bytes=2, footer_start=1),
    FlushRecord(object_key="new", size_bytes=2, footer_start=1),
)
HERE = KeyValue(session_key(MINE), b"", 5, 9)


def replacement(*, dead: bool = False) -> RecordReplacement:
    """Of one record by one."""
    session_id = DEAD if dead else MINE
    chosen = [FlushRecordEntry(flush_key(session_id, 1), OLD)]
    managed = SessionFlushRecords(session_id, dead=dead)
    return RecordReplacement(MINE, 5, managed, chosen, [(flush_key(session_id, 2), NEW)])


def outcome(*reads: KeyValue | None) -> ReplacementOutcome:
    """Of a refused transaction that found these keys."""
    found = tuple((kv,) if kv is not None else () for kv in reads)
    return replacement().outcome(TxnResult(False, 10, found))


def test_an_earlier_try_whose_answer_was_lost_has_replaced_the_records() -> None:
    """
    Even if the session has ended since: what was stored stays.
    """
    there = KeyValue(flush_key(MINE, 2), encode_flush_record(NEW), 9, 9)

    assert ReplacementOutcome.REPLACED is replacement().outcome(TxnResult(True, 10, ()))
    assert ReplacementOutcome.REPLACED is outcome(HERE, there)
    assert ReplacementOutcome.REPLACED is outcome(None, there)


def test_otherwise_the_session_is_over_or_a_record_has_changed() -> None:
    """
    Another session of this id is not this one; another record at the new key is not ours.
    """
    foreign = KeyValue(flush_key(MINE, 2), encode_flush_record(OLD), 9, 9)
    again = KeyValue(session_key(MINE), b"", 6, 9)

    assert ReplacementOutcome.SESSION_OVER is outcome(None, None)
    assert ReplacementOutcome.SESSION_OVER is outcome(again, None)
    assert ReplacementOutcome.CHANGED is outcome(HERE, None)
    assert ReplacementOutcome.CHANGED is outcome(HERE, foreign)


def test_records_of_another_session_are_replaced_only_after_its_end() -> None:
    """
    It might commit a flush that the rewrite does not have.
    """
    over = CreateRevisionIs(session_key(DEAD), 0)

    assert over in replacement(dead=True).txn.compares
    assert over not in replacement().txn.compares
