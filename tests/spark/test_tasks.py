"""The tasks of a query together are its records, each once and in order.

If it failed: a query would read records twice or not at all, or a task would be too large.
"""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_spark_reader.source.tasks import SegmentSlice, plan_tasks, segment_slices, tail_tasks
from driftlog_spark_reader.tail.port import TailRange
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef


def segment(partition: int, base: int, end: int, size_bytes: int = 100) -> SegmentRef:
    """One record per offset."""
    tp = TopicPartition(UUID(int=1), partition)
    return SegmentRef(
        key=layout.segment_key("t", tp, base, end, "n"),
        base=base,
        end=end,
        size_bytes=size_bytes,
        records=end - base,
        raw_bytes=1,
    )


segments = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 500)), max_size=5)


@given(
    st.lists(segments, min_size=1, max_size=4),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 15),
    st.integers(1, 800),
)
def test_tasks_are_the_slices_in_order(
    sizes: list[list[tuple[int, int]]],
    min_tasks: int | None,
    max_records: int | None,
    task_bytes: int,
) -> None:
    """
    Whatever their number and size: every offset once, no empty task, no task with too many.
    """
    slices = []
    for partition, of_partition in enumerate(sizes):
        base = 0
        for records, size_bytes in of_partition:
            part = segment(partition, base, base + records, size_bytes)
            slices.append(SegmentSlice(part, base, base + records))
            base += records

    tasks = plan_tasks(slices, min_tasks=min_tasks, max_records=max_records, task_bytes=task_bytes)

    assert _offsets(slices) == _offsets([piece for task in tasks for piece in task])
    assert all(tasks)
    if max_records is not None:
        assert all(len(_offsets(task)) <= max_records for task in tasks)


def _offsets(slices: list[SegmentSlice] | tuple[SegmentSlice, ...]) -> list[tuple[str, int]]:
    return [(piece.segment.key, o) for piece in slices for o in range(piece.start, piece.end)]


@pytest.mark.parametrize("min_tasks", [1, 2, 7, 40, 100])
def test_there_are_as_many_tasks_as_asked_for(min_tasks: int) -> None:
    """
    One large segment is cut, as is one of many.
    """
    for slices in (
        [SegmentSlice(segment(0, 0, 1_000), 0, 1_000)],
        [SegmentSlice(segment(p, 0, 200), 0, 200) for p in range(5)],
    ):
        assert min_tasks <= len(plan_tasks(slices, min_tasks=min_tasks)) <= min_tasks + 5


def test_small_segments_share_a_task_and_large_ones_do_not() -> None:
    """
    A task has about its bytes.
    """
    small = [SegmentSlice(segment(p, 0, 10, 10), 0, 10) for p in range(100)]
    large = [SegmentSlice(segment(p, 0, 10, 500), 0, 10) for p in range(4)]

    assert 10 == len(plan_tasks(small, task_bytes=100))
    assert 4 == len(plan_tasks(large, task_bytes=600))


def test_slices_are_what_of_each_segment_is_asked_for() -> None:
    """
    Borders are cut; undecodable and empty segments have no slice.
    """
    raw = replace(segment(0, 20, 25), kind=SegmentKind.RAW)
    empty = replace(segment(0, 25, 30), records=0)
    held = [segment(0, 0, 10), segment(0, 10, 20), raw, empty, segment(0, 30, 40)]

    found = segment_slices([PartitionRange(NamedPartition("t", 0), 5, 33, held)])

    assert [(5, 10), (10, 20), (30, 33)] == [(piece.start, piece.end) for piece in found]


def test_pieces_of_a_partition_are_in_their_order() -> None:
    """
    However large each is: a sink that writes the last value of a key goes by it.
    """
    ends = (10, 310, 600, 880, 1_150)
    pieces = [
        TailRange("t", UUID(int=1), 0, start, end)
        for start, end in zip((0, *ends), ends, strict=False)
    ]

    tasks = tail_tasks(pieces, 4)

    assert 4 == len(tasks)
    assert any(len(task) > 1 for task in tasks)
    assert all(list(task) == sorted(task, key=lambda part: part.start) for task in tasks)


@pytest.mark.parametrize(
    ("cut", "max_records"), [(False, None), (True, None), (True, 7), (False, 7)]
)
def test_pieces_of_the_tail_are_cut_as_asked(cut: bool, max_records: int | None) -> None:
    """
    Every offset once; as many tasks as asked for, or as the limit needs.
    """
    sizes = (100, 3, 40)
    pieces = [TailRange("t", UUID(int=1), p, 10, 10 + size) for p, size in enumerate(sizes)]

    tasks = tail_tasks(pieces, 8, cut=cut, max_records=max_records)

    found = sorted(
        (part.partition, offset)
        for task in tasks
        for part in task
        for offset in range(part.start, part.end)
    )
    assert [(p, 10 + i) for p, size in enumerate(sizes) for i in range(size)] == found
    most = max(sum(part.end - part.start for part in task) for task in tasks)
    if max_records is not None:
        assert most <= max_records
    elif cut:
        assert 8 == len(tasks)
