"""A stream's batches follow each other without a gap, and say what they lost.

If it failed: a stream would skip or repeat records, or end without reaching its end.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_spark_reader.common.errors import DataLossError, OffsetOutOfRangeError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.source.stream_offsets import batch_ranges, limited_ends, new_offsets

P0, P1, P2 = (NamedPartition("t", p) for p in range(3))


def ends(*of: tuple[int, int]) -> dict[NamedPartition, LogEnds]:
    """Log start and end of each partition."""
    return {NamedPartition("t", p): LogEnds(*pair) for p, pair in enumerate(of)}


def no_segments(_: NamedPartition, __: int, ___: int) -> list[int]:
    """Segments end nowhere."""
    return []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1, max_size=4),
    st.integers(1, 60),
    st.lists(st.integers(1, 250), unique=True).map(sorted),
)
def test_limited_batches_reach_the_end(
    logs: list[tuple[int, int]], most: int, marks: list[int]
) -> None:
    """
    Each batch goes on where the one before ended, has about the limit, and the last ends the log.
    """
    there = ends(*((start, start + size) for start, size in logs))
    start: dict[NamedPartition, int] = {}
    for _ in range(1_000):
        end = limited_ends(
            start, there, most, lambda _, first, last: [m for m in marks if first < m <= last]
        )
        begun = {named: start.get(named, log.start) for named, log in there.items()}
        assert all(begun[named] <= end[named] <= log.end for named, log in there.items())
        assert sum(end[named] - begun[named] for named in there) <= most + len(there)
        if end == start:
            break
        start = end

    assert {named: log.end for named, log in there.items()} == start


def test_a_batch_ends_with_a_segment_where_one_ends_in_it() -> None:
    """
    The last one that does; otherwise at the limit.
    """
    there = ends((0, 100), (0, 100))

    found = limited_ends({}, there, 60, lambda named, _, __: [10, 25] if named == P0 else [])

    assert {P0: 25, P1: 30} == found


def test_a_small_partition_is_not_starved() -> None:
    """
    It gives one offset at least.
    """
    assert {P0: 9, P1: 1} == limited_ends({}, ends((0, 10_000), (0, 1)), 10, no_segments)


def test_new_offsets_count_from_where_the_stream_is() -> None:
    """
    And from the log start of a partition that it has not seen.
    """
    assert 5 + 7 == new_offsets({P0: 15}, ends((10, 20), (3, 10)))


def test_a_new_partition_is_read_from_its_first_record() -> None:
    """
    It is no loss if that is offset 0.
    """
    found = batch_ranges({P0: 5}, {P0: 9, P1: 4}, ends((0, 9), (0, 4)), fail_on_data_loss=True)

    assert {P0: (5, 9), P1: (0, 4)} == found


@pytest.mark.parametrize(
    ("start", "end", "log_starts", "said", "goes_on_with"),
    [
        ({P0: 5}, {P0: 9}, {P0: 7}, "offsets 5 to 6 are gone", {P0: (7, 9)}),
        ({P0: 5}, {P0: 9}, {P0: 12}, "offsets 5 to 8 are gone", {P0: (9, 9)}),
        ({P0: 5}, {P0: 3}, {P0: 0}, "deleted and made again", {P0: (3, 3)}),
        ({P0: 5, P1: 2}, {P0: 9}, {P0: 0}, "t-1: deleted", {P0: (5, 9)}),
        ({P0: 5, P1: 2}, {P0: 9, P1: 3}, {P0: 0}, "t-1: deleted", {P0: (5, 9)}),
        ({P0: 5}, {P0: 9, P1: 8}, {P0: 0, P1: 6}, "t-1: offsets 0 to 5", {P0: (5, 9), P1: (6, 8)}),
    ],
)
def test_lost_records_fail_the_query_unless_it_may_lose_them(
    start: dict[NamedPartition, int],
    end: dict[NamedPartition, int],
    log_starts: dict[NamedPartition, int],
    said: str,
    goes_on_with: dict[NamedPartition, tuple[int, int]],
) -> None:
    """
    The error says which are gone; with failOnDataLoss=false the rest is read.
    """
    logs = {named: LogEnds(log_start, 12) for named, log_start in log_starts.items()}

    with pytest.raises(DataLossError, match=said):
        batch_ranges(start, end, logs, fail_on_data_loss=True)
    assert goes_on_with == batch_ranges(start, end, logs, fail_on_data_loss=False)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_batch_that_cannot_be_read_to_its_end_is_never_cut(fail_on_data_loss: bool) -> None:
    """
    Its last records are in the tail, which the query does not read any more.
    """
    with pytest.raises(OffsetOutOfRangeError, match="includeTail"):
        batch_ranges({P0: 0}, {P0: 10}, ends((0, 3)), fail_on_data_loss=fail_on_data_loss)


def test_a_partition_without_new_records_stops_no_batch() -> None:
    """
    The query is further than what can be read of it, and the batch has records of another one.
    """
    found = batch_ranges(
        {P0: 10, P1: 0}, {P0: 10, P1: 4}, ends((0, 8), (0, 4)), fail_on_data_loss=True
    )

    assert {P0: (10, 10), P1: (0, 4)} == found


def test_a_topic_that_is_made_again_starts_at_its_first_record() -> None:
    """
    However far the query was in the one before.
    """
    logs = ends((2, 9))

    with pytest.raises(DataLossError, match="t-0: the topic was deleted and made again"):
        batch_ranges({P0: 5}, {P0: 9}, logs, [P0], fail_on_data_loss=True)
    assert {P0: (2, 9)} == batch_ranges({P0: 5}, {P0: 9}, logs, [P0], fail_on_data_loss=False)
