"""Two records of an import get one offset, or an offset gets none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_spark_reader.bulk_import.pieces import (
    PartitionCount,
    Split,
    plan_import,
    split_large,
)

PARTITIONS = 4
times = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 2_000) | st.integers(0, 2**41)),
    max_size=200,
)


def counted(records: list[tuple[int, int]]) -> list[PartitionCount]:
    """As Spark counts them."""
    by_partition: dict[int, list[int]] = {}
    for partition, ms in records:
        by_partition.setdefault(partition, []).append(ms)
    return [PartitionCount(p, len(ms), min(ms), max(ms)) for p, ms in sorted(by_partition.items())]


def sliced(records: list[tuple[int, int]], splits: list[Split]) -> dict[tuple[int, int], int]:
    """As Spark counts the slices of time."""
    by_partition = {split.partition: split for split in splits}
    found: dict[tuple[int, int], int] = {}
    for partition, ms in records:
        if (split := by_partition.get(partition)) is not None:
            at = partition, (ms - split.least_ms) // split.width_ms
            found[at] = found.get(at, 0) + 1
    return found


@given(times, st.integers(1, 50))
def test_each_record_is_in_one_piece_and_offsets_are_dense_in_the_order_of_time(
    records: list[tuple[int, int]], piece_records: int
) -> None:
    """
    Whatever the times are: equal, far apart, of one partition.
    """
    counts = counted(records)
    splits = split_large(counts, piece_records)
    plan = plan_import(PARTITIONS, counts, splits, sliced(records, splits), piece_records)

    offsets: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    lookups = {lookup.partition: lookup for lookup in plan.lookups}
    of_pieces: dict[int, list[tuple[int, int]]] = {piece.number: [] for piece in plan.pieces}
    for partition, ms in records:
        lookup = lookups[partition]
        at = min((ms - lookup.least_ms) // lookup.width_ms, len(lookup.pieces) - 1)
        of_pieces[lookup.pieces[at]].append((partition, ms))
        assert plan.pieces[lookup.pieces[at]].task == lookup.tasks[at]
    latest = dict.fromkeys(range(PARTITIONS), -1)
    for piece in plan.pieces:
        held = of_pieces[piece.number]
        assert piece.records == len(held)
        assert {partition for partition, _ in held} <= {piece.partition}
        offsets[piece.partition] += range(piece.base, piece.base + piece.records)
        assert 0 <= piece.task < plan.tasks
        if held:
            assert latest[piece.partition] < min(ms for _, ms in held)
            latest[piece.partition] = max(ms for _, ms in held)
    for count in counts:
        assert list(range(count.records)) == offsets[count.partition]


def test_pieces_are_of_about_the_size_that_is_asked_for() -> None:
    """
    A partition of one task would be written by one core; one of very many costs more than it does.
    """
    records = [(0, ms) for ms in range(10_000)] + [(1, 5), (2, 6)]
    counts = counted(records)
    splits = split_large(counts, 1_000)
    plan = plan_import(3, counts, splits, sliced(records, splits), 1_000)

    large = [piece.records for piece in plan.pieces if piece.partition == 0]
    assert 10 <= len(large) <= 12
    assert max(large) <= 1_000
    assert [0] == [split.partition for split in splits]
    assert plan.pieces[-1].task == plan.pieces[-2].task  # small ones share a task


def test_slices_with_other_records_than_the_partition_are_refused() -> None:
    """
    The rows changed between two counts.
    """
    counts = [PartitionCount(0, 100, 0, 99)]
    splits = split_large(counts, 10)

    with pytest.raises(ValueError, match="99 and 100"):
        plan_import(1, counts, splits, {(0, 0): 99}, 10)
