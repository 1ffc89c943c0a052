"""The oracle forgives what a lost disk took, and nothing else."""

from uuid import UUID

import pytest

from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.batches import Row
from tests.simulation.oracle import Oracle, Place, Told

TP = TopicPartition(UUID(int=1), 0)


class _BrokenError(Exception):
    pass


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise _BrokenError(message)


def _place(offset: int, *values: bytes) -> Place:
    return Place(TP, offset, tuple(Told(value, False) for value in values))


def _log(*values: bytes) -> list[Row]:
    return [Row(value, False, 0, 0) for value in values]


def _told(*, one: bool, committed: int) -> Oracle:
    """One batch was acknowledged at 1, then the disk went."""
    oracle = Oracle(_expect)
    oracle.acknowledge(_place(1, b"x"), one=one)
    oracle.lose_disk({TP: committed})
    return oracle


def test_what_only_the_lost_disk_had_may_go() -> None:
    """
    An acks=1 record above what is committed is owed to nobody when its disk is gone.
    """
    oracle = _told(one=True, committed=1)

    oracle.check(TP, _log(b"a"))

    assert oracle.may_be_lost(_place(1, b"x"))


@pytest.mark.parametrize(("one", "committed"), [(True, 2), (False, 1), (False, 0)])
def test_a_lost_disk_takes_nothing_that_is_committed_or_acks_all(one: bool, committed: int) -> None:
    """
    What is below the committed end, and whatever was acks=all, is owed still.
    """
    oracle = _told(one=one, committed=committed)

    assert not oracle.may_be_lost(_place(1, b"x"))
    with pytest.raises(_BrokenError, match="is lost"):
        oracle.check(TP, _log(b"a"))


def test_a_place_that_was_lost_is_promised_to_the_next() -> None:
    """
    The record that is told of a lost one's place is owed, and the lost one is known as such.
    """
    oracle = _told(one=True, committed=1)
    oracle.acknowledge(_place(1, b"y"), one=False)

    assert oracle.may_be_lost(_place(1, b"x"))
    assert not oracle.may_be_lost(_place(1, b"y"))
    with pytest.raises(_BrokenError, match="y"):
        oracle.check(TP, _log(b"a", b"x"))


def test_a_place_is_not_promised_twice() -> None:
    """
    Without a lost disk nobody else is told of a record's place.
    """
    oracle = Oracle(_expect)
    oracle.acknowledge(_place(1, b"x"), one=True)

    with pytest.raises(_BrokenError, match="was told for"):
        oracle.acknowledge(_place(1, b"y"), one=True)


def test_what_was_seen_since_is_lost_no_more() -> None:
    """
    A consumer was given it, or a duplicate was answered with its place: it is owed again.
    """
    seen, repeated = _told(one=True, committed=1), _told(one=True, committed=1)
    seen.show(TP, 1, _log(b"x")[0])
    repeated.acknowledge(_place(1, b"x"), one=True)

    assert [seen.may_be_lost(_place(1, b"x")), repeated.may_be_lost(_place(1, b"x"))] == [False] * 2


def test_what_the_agent_called_gone_is_not_there() -> None:
    """
    An answer that says that a batch is not in the log is held against the log.
    """
    oracle = _told(one=True, committed=1)
    oracle.is_gone(_place(1, b"x"))

    oracle.check(TP, _log(b"a", b"y"))
    with pytest.raises(_BrokenError, match="said it is not"):
        oracle.check(TP, _log(b"a", b"x"))
    oracle.disk_is_back()
    oracle.check(TP, _log(b"a", b"x"))
