"""A commit that is taken for another outcome than the store's answer fails here.

Pure.
"""

import pytest

from driftlog_agents.log.session.commit_outcome import (
    CommitOutcome,
    OpenOutcome,
    is_closed,
    outcome_of,
    outcome_of_open,
)
from driftlog_metadata.schema.codec import encode_head
from driftlog_metadata.schema.model import CLOSED
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import KeyValue, TxnResult


def head(value: bytes) -> KeyValue:
    """A session's head."""
    return KeyValue("/driftlog/v1/heads/1", value, 1, 1)


def refused(*kvs: KeyValue) -> TxnResult:
    """The answer to a commit that does not apply."""
    return TxnResult(succeeded=False, revision=9, reads=((), kvs))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (TxnResult(succeeded=True, revision=9, reads=()), CommitOutcome.COMMITTED),
        (refused(head(encode_head(7))), CommitOutcome.COMMITTED),
        (refused(head(encode_head(8))), CommitOutcome.COMMITTED),
        (refused(head(encode_head(6))), CommitOutcome.DEAD),
        (refused(head(encode_head(CLOSED))), CommitOutcome.DEAD),
        (refused(), CommitOutcome.DEAD),
    ],
)
def test_the_head_tells_whether_an_earlier_attempt_committed(
    result: TxnResult, expected: CommitOutcome
) -> None:
    """An answer that was lost is found again; anything else ends the session."""
    assert expected == outcome_of(7, result)


def test_an_unreadable_head_is_no_outcome() -> None:
    """The caller must not take it for a commit, nor for none."""
    with pytest.raises(CorruptError):
        outcome_of(7, refused(head(b"noise")))


def test_an_unreadable_head_is_not_closed() -> None:
    """So it is closed again."""
    heads = [head(encode_head(CLOSED)), head(encode_head(3)), head(b"noise")]

    assert [True, False, False] == [is_closed(one) for one in heads]


def test_a_session_that_an_earlier_attempt_opened_is_open() -> None:
    """At the revision of that attempt, which is the session's fence."""
    mine = KeyValue("/session", b"", 5, 6)
    answered = TxnResult(succeeded=True, revision=9, reads=())
    lost = TxnResult(succeeded=False, revision=9, reads=((mine,), (), (head(b""),), ()))

    assert OpenOutcome(9) == outcome_of_open("/session", answered)
    assert OpenOutcome(5) == outcome_of_open("/session", lost)


def test_opening_is_repeated_by_the_agents_present_key_unless_the_lease_has_ended() -> None:
    """The head stays when the lease takes the session's key."""
    agent = KeyValue("/agent", b"", 1, 7)
    changed = TxnResult(succeeded=False, revision=9, reads=((), (agent,), (), ()))
    over = TxnResult(succeeded=False, revision=9, reads=((), (agent,), (head(b""),), ()))

    assert OpenOutcome(0, agent) == outcome_of_open("/session", changed)
    with pytest.raises(FencedError):
        outcome_of_open("/session", over)
