"""A scan has the files that hold its records, and no other, against a plain filter."""

import re
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader.native.plan import plan_scans
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import MAX_CUT_PARTITIONS, PartitionRange
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import SegmentRef

EVERYTHING = TimeRange(None, None)


def segment(partition: int, base: int, end: int, shift_ms: int = 0) -> SegmentRef:
    """One record per offset; its timestamp is its offset, shifted."""
    tp = TopicPartition(UUID(int=1), partition)
    return SegmentRef(
        key=layout.segment_key("t", tp, base, end, "n"),
        base=base,
        end=end,
        size_bytes=1,
        records=end - base,
        raw_bytes=1,
        min_timestamp_ms=base + shift_ms,
        max_timestamp_ms=end - 1 + shift_ms,
    )


def rows(condition: str | None, partition: int, offset: int, timestamp_ms: int) -> bool:
    """Evaluate a scan's condition for one record."""
    if condition is None:
        return True
    python = re.sub(r"timestamp_millis\((-?\d+)L\)", r"\1", condition)
    python = re.sub(r"(\d)L", r"\1", python).replace(" = ", " == ")
    python = python.replace("AND", "and").replace("OR", "or")
    names = {"partition": partition, "offset": offset, "timestamp": timestamp_ms}
    return bool(eval(python, {}, names))


bounds = st.none() | st.integers(-5, 60)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
    bounds,
    bounds,
    st.integers(-10, 10),
)
def test_scans_give_each_record_that_is_asked_for_once(
    asked: list[tuple[int, int]], start_ms: int | None, end_ms: int | None, shift_ms: int
) -> None:
    """
    Whole, cut or left out: together the scans are the plain filter of the records.
    """
    time = TimeRange(start_ms, end_ms)
    held = [[segment(p, b, b + 10, shift_ms) for b in range(0, 40, 10)] for p in range(len(asked))]
    ranges = [
        PartitionRange(
            NamedPartition("flights", p),
            start,
            end,
            [s for s in held[p] if s.base < end and start < s.end],
        )
        for p, (start, end) in enumerate(asked)
    ]

    found = [
        (partition, offset)
        for scan in plan_scans(ranges, time)
        for partition, segments in enumerate(held)
        for s in segments
        if s in scan.segments
        for offset in range(s.base, s.end)
        if rows(scan.condition, partition, offset, offset + shift_ms)
    ]

    assert sorted(found) == [
        (partition, offset)
        for partition, (start, end) in enumerate(asked)
        for offset in range(start, end)
        if (start_ms is None or offset + shift_ms >= start_ms)
        and (end_ms is None or offset + shift_ms < end_ms)
    ]


def test_a_thousand_cut_partitions_are_several_small_filters() -> None:
    """
    No condition grows with the number of partitions; whole files stay one scan.
    """
    ranges = [
        PartitionRange(
            NamedPartition("flights", p), 5, 30, [segment(p, b, b + 10) for b in (0, 10, 20)]
        )
        for p in range(1_000)
    ]

    whole, *cut = plan_scans(ranges, EVERYTHING)

    assert (None, 2_000) == (whole.condition, len(whole.segments))
    assert 16 == len(cut)
    assert max((scan.condition or "").count(" OR ") for scan in cut) == MAX_CUT_PARTITIONS - 1
