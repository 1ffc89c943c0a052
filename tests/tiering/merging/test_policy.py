"""Which segments are merged: wrong, files multiply, bytes are copied often, or records stay."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_tiering.batches.batch_limits import SEGMENT_WORK_BYTES
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    SegmentListRef,
    SegmentRef,
    TombstoneHorizon,
)
from driftlog_tiering.merging.policy import (
    MOST_MERGES,
    MergePolicy,
    joined_horizons,
    may_have_small,
    next_merge,
    runs,
    span_ms,
    young_from,
)
from tests.tiering.merging.segments import joined, segment

POLICY = MergePolicy(segment_bytes=4_000, span_ms=1_000, factor=3)
END = 1_000


def chosen(
    *segments: SegmentRef,
    policy: MergePolicy = POLICY,
    log_start: int = 0,
    cleaned_end: int = 0,
    end: int = END,
    follows: bool = False,
) -> list[int]:
    """The base offsets of what is merged next."""
    found = next_merge(
        segments,
        policy,
        log_start=log_start,
        cleaned_end=cleaned_end,
        end=end,
        follows=follows,
    )
    return [each.base for each in found]


def smalls(count: int, base: int = 0, **fields: int) -> list[SegmentRef]:
    """Neighbours of one offset each."""
    return [segment(base + i, base + i + 1, **fields) for i in range(count)]


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], []),
        (smalls(2), []),
        (smalls(3), [0, 1, 2]),
        ([*smalls(1, merges=1), *smalls(3, base=1)], [1, 2, 3]),
        ([*smalls(2, merges=1), *smalls(2, base=2)], []),
        ([*smalls(3, merges=1), *smalls(2, base=3)], [0, 1, 2, 3, 4]),
        (smalls(3, merges=1), [0, 1, 2]),
        (smalls(3, merges=2), []),
        (smalls(5, size=1_000), []),
        (smalls(2, size=999), []),
    ],
    ids=[
        *("none", "fewer than the factor", "as many as the factor", "those merged less often"),
        *("fewer of each", "those merged once, and what is behind them"),
        *("those that were merged once", "merged as often as may be"),
        *("a quarter is not small", "room for more"),
    ],
)
def test_the_last_run_waits_for_as_many_as_the_factor(
    segments: list[SegmentRef], expected: list[int]
) -> None:
    assert chosen(*segments) == expected


def test_what_takes_long_to_decode_is_not_merged() -> None:
    """
    Zeros of kilobytes as received may be gigabytes of records, and a merge decodes all of them.
    """
    most = SEGMENT_WORK_BYTES

    def of(*raw_bytes: int) -> list[SegmentRef]:
        return [
            replace(each, raw_bytes=size)
            for each, size in zip(smalls(len(raw_bytes)), raw_bytes, strict=True)
        ]

    assert [0, 1, 2] == chosen(*of(most // 5, most // 5, most // 5))
    assert [0, 1, 2, 3, 4] == chosen(*of(*[most // 5] * 6))
    assert [] == chosen(*of(1, most // 4, 1, 1))


@pytest.mark.parametrize(
    "next_one",
    [
        segment(2, 3, size=1_000),
        replace(segment(2, 3), kind=SegmentKind.RAW),
        segment(2, 3, merges=MOST_MERGES),
        replace(segment(2, 3), records=0),
        segment(2, 3, oldest_ms=1_001, newest_ms=1_001),
    ],
    ids=["large", "undecodable", "merged as often as may be", "empty", "too late"],
)
def test_a_run_that_nothing_can_join_is_merged_whole(next_one: SegmentRef) -> None:
    assert chosen(*smalls(2, oldest_ms=0, newest_ms=1), next_one) == [0, 1]
    assert chosen(*smalls(1, oldest_ms=0, newest_ms=1), next_one) == []


def test_a_run_has_at_most_the_bytes_of_a_segment() -> None:
    segments = smalls(5, size=999)
    assert chosen(*segments) == [0, 1, 2, 3]


def test_a_run_ends_where_other_segments_follow() -> None:
    assert chosen(*smalls(2), follows=True) == [0, 1]
    assert chosen(*smalls(1), follows=True) == []


def test_a_merge_does_not_cross_cleaned_end() -> None:
    assert chosen(*smalls(6), cleaned_end=2) == [0, 1]
    assert chosen(*smalls(6), cleaned_end=1) == [1, 2, 3, 4, 5]


def test_a_merge_does_not_cross_the_end() -> None:
    """
    A dirty end that moves on does not close a run: else two segments would be merged each time.
    """
    assert chosen(*smalls(6), end=4) == [0, 1, 2, 3]
    assert chosen(*smalls(6), end=2) == []


def test_a_segment_that_log_start_is_in_stays() -> None:
    segments = [segment(0, 5), *smalls(3, base=5)]
    assert chosen(*segments, log_start=3) == [5, 6, 7]
    assert chosen(*segments, log_start=0) == [0, 5, 6, 7]


def test_segments_without_timestamps_are_merged_only_where_time_sets_no_limit() -> None:
    segments = smalls(3, oldest_ms=-1, newest_ms=-1)
    assert chosen(*segments) == []
    assert chosen(*segments, policy=replace(POLICY, span_ms=None)) == [0, 1, 2]


def test_tombstones_get_no_horizon_of_another_segment() -> None:
    half = replace(segment(0, 10), horizons=(TombstoneHorizon(5, 77),))
    whole = replace(segment(10, 20), horizons=(TombstoneHorizon(20, 88),))
    later = segment(20, 30)
    assert [len(run.segments) for run in found_runs(half, whole, later)] == [1, 2]
    done = replace(half, horizons=(TombstoneHorizon(10, 77),))
    assert chosen(done, whole, later) == [0, 10, 20]
    assert joined_horizons((done, whole, later)) == (
        TombstoneHorizon(10, 77),
        TombstoneHorizon(20, 88),
    )


def found_runs(*segments: SegmentRef) -> list:  # type: ignore[type-arg]
    """The runs of *segments*."""
    return list(runs(segments, POLICY, log_start=0, cleaned_end=0, end=END))


def test_equal_horizons_are_not_joined() -> None:
    pair = [
        replace(segment(at, at + 1), horizons=(TombstoneHorizon(at + 1, 5),)) for at in range(2)
    ]
    assert joined_horizons(pair) == (TombstoneHorizon(1, 5), TombstoneHorizon(2, 5))


def test_the_longest_span_is_that_of_retention_or_of_a_segment() -> None:
    assert span_ms(3_600_000, 7 * 86_400_000) == 60_480_000
    assert span_ms(3_600_000, 3_600_000) == 3_600_000
    assert span_ms(3_600_000, None) is None


def test_young_segments_of_a_compacted_topic_wait() -> None:
    policy = replace(POLICY, min_lag_ms=100)
    segments = [segment(0, 1, newest_ms=899), segment(1, 2, newest_ms=950)]
    assert young_from(segments, policy, 1_000) == (1, 1_050)
    assert young_from(segments, policy, 1_050) is None
    assert young_from(segments, POLICY, 0) is None


def test_a_list_is_opened_if_its_segments_are_small_on_average() -> None:
    def ref(segments: int, size: int) -> SegmentListRef:
        return SegmentListRef(
            key="l",
            level=1,
            base=0,
            end=10,
            segments=segments,
            size_bytes=size,
            records=1,
            raw_bytes=size,
            min_timestamp_ms=0,
            max_timestamp_ms=0,
        )

    assert may_have_small(ref(2, 1_999), POLICY)
    assert not may_have_small(ref(2, 2_000), POLICY)
    assert not may_have_small(ref(1, 1), POLICY)


@given(
    sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=120),
    gaps=st.lists(st.integers(0, 400), min_size=120, max_size=120),
    factor=st.integers(2, 6),
    limited=st.booleans(),
    cleaned=st.integers(0, 120),
)
def test_each_byte_is_written_twice_at_most_and_few_small_segments_stay(
    sizes: list[int], gaps: list[int], factor: int, *, limited: bool, cleaned: int
) -> None:
    """
    Segments come one by one, and all merges are made: sizes, spans and cuts are kept; the log's
    offsets stay covered; of the last run fewer than the factor stay of each number of merges.
    """
    policy = replace(POLICY, factor=factor, span_ms=1_000 if limited else None)
    log: list[SegmentRef] = []
    written, now_ms = 0, 0
    for base, size in enumerate(sizes):
        now_ms += gaps[base]
        log.append(segment(base, base + 1, size=size, oldest_ms=now_ms, newest_ms=now_ms))
        cleaned_end = cleaned if cleaned <= base else 0
        cut = partial(next_merge, policy=policy, log_start=0, cleaned_end=cleaned_end, end=base + 1)
        while found := cut(log):
            at = log.index(found[0])
            assert log[at : at + len(found)] == list(found)
            log[at : at + len(found)] = [merged := joined(found)]
            written += merged.received_bytes
            assert merged.received_bytes <= policy.segment_bytes
            assert merged.merges <= MOST_MERGES
            assert not limited or merged.max_timestamp_ms - merged.min_timestamp_ms <= 1_000
            assert not merged.base < cleaned_end < merged.end
    assert written <= MOST_MERGES * sum(sizes)
    assert [each.base for each in log] == [0, *(each.end for each in log[:-1])]
    for run in runs(log, policy, log_start=0, cleaned_end=cleaned_end, end=len(sizes)):
        if run.is_closed:
            assert len(run.segments) == 1
        else:
            assert len(run.segments) < MOST_MERGES * factor


def test_a_slow_topic_without_retention_has_few_segments_after_a_year() -> None:
    """
    One kilobyte an hour: 34 merged segments, and less than the factor of each kind before.
    """
    policy = MergePolicy(segment_bytes=128 * 1024 * 1024, span_ms=None)
    log: list[SegmentRef] = []
    for hour in range(365 * 24):
        at = hour * 3_600_000
        log.append(segment(hour, hour + 1, size=1_000, oldest_ms=at, newest_ms=at))
        while found := next_merge(log, policy, log_start=0, cleaned_end=0, end=hour + 1):
            log[log.index(found[0]) :] = [joined(found)]
    assert len(log) == 34 + 3 + 8, [each.merges for each in log]
