"""A leader that sends a range slowly loses its turn, and no other one does."""

from uuid import UUID

import pytest

from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.segment_request import (
    RangeBudget,
    SegmentRequest,
    decode_request,
    encode_request,
)
from driftlog_metadata.schema.model import TopicPartition
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


@pytest.mark.parametrize(("partition", "is_read"), [(2**31 - 1, True), (2**31, False)])
def test_a_partition_has_a_number_of_32_bits(partition: int, is_read: bool) -> None:
    """
    A larger one was a bug in the writer of segments.
    """
    named = PartitionRange("t", TopicPartition(UUID(int=5), partition), 0, 1)
    request = SegmentRequest("c", "s", named)
    if is_read:
        assert request == decode_request(encode_request(request))
        return
    with pytest.raises(CorruptError, match="is no number of a partition"):
        decode_request(encode_request(request))
