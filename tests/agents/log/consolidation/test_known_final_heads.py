"""If it failed: a restore would take a head for the last one that committed more, or lack it."""

from driftlog_agents.log.consolidation.known_final_heads import KnownFinalHeads, final_head
from driftlog_metadata.schema.codec import encode_ended_head, encode_head
from driftlog_metadata.schema.keys import head_key
from driftlog_metadata.schema.model import CLOSED, EndedHead
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats.bucket_files import FinalHead

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def kv(session_id: str, value: bytes, revision: int = 7) -> KeyValue:
    """The key of a head as it was read."""
    return KeyValue(head_key(session_id), value, 1, revision)


def test_heads_that_were_closed_here_are_pending_with_their_last_value_until_done() -> None:
    """
    So are those of sessions that are over, each once.
    """
    known = KnownFinalHeads()
    known.closed({B: kv(B, encode_head(3)), C: kv(C, encode_head(CLOSED))})
    pending = known.pending([A])
    of_closed = known.of_closed(B)
    known.done(B)

    assert [A, B] == pending
    assert FinalHead(B, 3, 7) == of_closed
    assert None is known.of_closed(A)
    assert [A] == known.pending([A, B])


def test_a_head_that_is_marked_closed_missing_or_unreadable_gives_none() -> None:
    """
    The bucket has it, or its number is not known.
    """
    marked = kv(A, encode_ended_head(EndedHead(3, 5)))
    rest = [kv(A, encode_head(CLOSED)), kv(A, b"?"), None]

    assert FinalHead(A, 3, 7) == final_head(A, kv(A, encode_head(3)))
    assert [None] * 4 == [final_head(A, found) for found in (marked, *rest)]
