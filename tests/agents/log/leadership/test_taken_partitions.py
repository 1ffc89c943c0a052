"""Restoring a log from slices: if it failed, offsets would be given twice, or a gap be served."""

from typing import Any, cast
from uuid import UUID

import pytest

from driftlog_agents.log.leadership.taken_partitions import gap_before
from driftlog_agents.log.partition.partition import PartitionLog, TailSlice


@pytest.mark.parametrize(
    ("sealed_end", "end", "base", "follows"),
    [
        (10, 10, 10, True),
        (10, 10, 7, True),
        (10, 10, 11, False),
        (10, 20, 20, True),
        (10, 20, 21, False),
        (10, 20, 19, False),
        (0, 0, 1, False),
    ],
)
def test_a_slice_follows_what_is_there_and_the_first_may_begin_below_the_sealed_end(
    sealed_end: int, end: int, base: int, follows: bool
) -> None:
    """
    A sealed end may be in the middle of a flush; otherwise slices neither overlap nor leave a gap.
    """
    log = PartitionLog(
        topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0, sealed_end=sealed_end
    )
    log.high_watermark = log.log_end = end
    tail = TailSlice(base, base + 30, cast(Any, None), 0, 1, 1, cast(Any, None))

    why = gap_before(log, tail)

    assert follows is (why == "")
    assert follows or f"[{base}, {base + 30}) follows {end}" in why
