"""A leader that sends a range slowly loses its turn, and no other one does."""

import pytest

from driftlog_agents.log.segments.segment_request import RangeBudget
from driftlog_metadata.stores.errors import CorruptError

MIB = 1024**2


def test_a_sender_has_its_silence_and_a_second_for_each_mib() -> None:
    """
    What the receiver does between two frames takes none of it.
    """
    budget = RangeBudget(60.0)
    assert 60.0 == budget.left_s
    budget.add(4 * MIB, 2.0)
    assert 62.0 == budget.left_s
    for _ in range(12):
        budget.add(MIB // 2, 5.0)
    assert 8.0 == budget.left_s


def test_a_range_that_no_segment_holds_is_refused() -> None:
    """
    At more than 2.5 GiB.
    """
    budget = RangeBudget(60.0)
    for _ in range(10):
        budget.add(256 * MIB, 0.0)
    with pytest.raises(CorruptError, match="a range of more than"):
        budget.add(1, 0.0)
