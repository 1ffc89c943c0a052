"""If it failed: a head would be deleted while a session reads it, or never."""

from driftlog_agents.log.garbage.dead_heads import (
    HOUR_MS,
    HeadSettings,
    in_transactions,
    judge,
    unneeded,
)
from driftlog_metadata.schema.codec import encode_ended_head, encode_head
from driftlog_metadata.schema.keys import head_key
from driftlog_metadata.schema.model import EndedHead
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import HEADS_PER_TXN, DeadHead

NOW = 100 * HOUR_MS


def kv(session_id: str, value: bytes) -> KeyValue:
    """A head as it was read."""
    return KeyValue(head_key(session_id), value, 1, 7)


def test_only_heads_of_sessions_that_are_over_are_marked_and_become_due() -> None:
    """
    An unreadable one stays, and is told.
    """
    heads = {
        "live": kv("live", encode_head(1)),
        "new": kv("new", encode_head(2)),
        "marked": kv("marked", encode_ended_head(EndedHead(3, NOW - HOUR_MS + 1))),
        "due": kv("due", encode_ended_head(EndedHead(4, NOW - HOUR_MS))),
        "damaged": kv("damaged", b"?"),
    }
    found = judge(heads, {"live", None}, NOW, HOUR_MS)

    assert [DeadHead(session_id="new", revision=7, head=2)] == found.to_mark
    assert [DeadHead(session_id="due", revision=7, head=4)] == found.due
    assert {head_key("damaged")} == found.unreadable.keys()


def test_a_head_that_is_needed_stays() -> None:
    """
    The others go, as many at a time as a transaction takes.
    """
    due = [DeadHead(session_id=str(n), revision=1, head=n) for n in range(HEADS_PER_TXN + 2)]
    gone = unneeded(due, {"1"})

    assert due[:1] + due[2:] == gone
    assert [HEADS_PER_TXN, 1] == [len(some) for some in in_transactions(gone)]


def test_a_check_is_due_once_an_interval_and_when_the_clock_was_set_back() -> None:
    """
    Otherwise heads would stay for as long as it was ahead.
    """
    settings = HeadSettings(interval_ms=10)
    cases = [(None, 5), (100, 109), (100, 110), (100, 99)]

    assert [True, False, True, True] == [settings.is_due(*case) for case in cases]
