"""Removal of flush records: deleted, or replaced by fewer.

    committed ──▶ consolidated ──▶ consolidated again ──▶ forgotten

A record's value names an object, and no name is ever used twice.  So a record with the value that
was read is the record that was read, and a late copy of one of these transactions changes nothing.

Pure.
"""

from collections.abc import Sequence
from typing import Final

from driftlog_metadata.schema.codec import encode_flush_record
from driftlog_metadata.schema.keys import session_key
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.store import (
    MAX_TXN_OPS,
    Compare,
    CreateRevisionIs,
    Delete,
    Get,
    Operation,
    Put,
    ValueIs,
)
from driftlog_metadata.transactions.session_transactions import Txn

Named = tuple[str, FlushRecord]
"""A flush record under its key."""

RECORDS_PER_TXN: Final = MAX_TXN_OPS - 2
"""Old and new records of one consolidation: a compare for each, and two for sessions."""


def forget(records: Sequence[Named]) -> Txn:
    """Delete all of *records* (at most `MAX_TXN_OPS`), or none if one of them is gone or has
    changed."""
    assert 0 < len(records) <= MAX_TXN_OPS
    return Txn(compares=_there(records), then=tuple(Delete(key) for key, _ in records))


def consolidate(
    session_id: str,
    session_revision: int,
    old: Sequence[Named],
    new: Sequence[Named],
    *,
    dead: str | None = None,
) -> Txn:
    """Replace all of *old* by *new* (`RECORDS_PER_TXN` together), as the live session
    *session_id*; nothing if one of *old* is missing or a key of *new* is taken.

    *dead*: the session of the records, if it is another one; it must be over.  Otherwise-reads:
    the key of *session_id*; the first of *new*, to recognise an own attempt whose answer was lost.
    """
    assert old
    assert new
    assert len(old) + len(new) <= RECORDS_PER_TXN
    assert dead != session_id
    compares: list[Compare] = [CreateRevisionIs(session_key(session_id), session_revision)]
    if dead is not None:
        compares.append(CreateRevisionIs(session_key(dead), 0))
    compares += _there(old)
    compares += [CreateRevisionIs(key, 0) for key, _ in new]
    then: list[Operation] = [Delete(key) for key, _ in old]
    then += [Put(key, encode_flush_record(record)) for key, record in new]
    return Txn(tuple(compares), tuple(then), (Get(session_key(session_id)), Get(new[0][0])))


def _there(records: Sequence[Named]) -> tuple[Compare, ...]:
    return tuple(ValueIs(key, encode_flush_record(record)) for key, record in records)
