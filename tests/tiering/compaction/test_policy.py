"""When a partition is compacted and up to where: wrong, it is never compacted, or too young."""

from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.compaction.policy import (
    CompactionPolicy,
    busy_ms,
    clean_until,
    dirtiness,
    due_ms,
    groups,
    horizon_at,
    horizons,
    is_due,
    measure,
    tombstones_end,
)
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Busy, SegmentRef, TombstoneHorizon, empty_manifest

TP = TopicPartition(UUID(int=1), 0)
NOW_MS = 1_000_000
POLICY = CompactionPolicy()


def segment(
    base: int, end: int, *, size: int = 100, oldest_ms: int = 1, newest_ms: int = 1
) -> SegmentRef:
    """A segment; its records have times between *oldest_ms* and *newest_ms*."""
    return SegmentRef(
        key=f"{base}-{end}",
        base=base,
        end=end,
        size_bytes=size,
        records=end - base,
        raw_bytes=size,
        min_timestamp_ms=oldest_ms,
        max_timestamp_ms=newest_ms,
    )


def raw(base: int, end: int) -> SegmentRef:
    """A segment that cannot be decoded."""
    return replace(segment(base, end), kind=SegmentKind.RAW)


def test_a_partition_is_due_when_more_than_the_ratio_is_dirty() -> None:
    found = measure([segment(10, 20)], 100, 20, POLICY, NOW_MS)
    assert (found.ratio, found.dirty_end) == (0.5, 20)
    assert not is_due(found, POLICY, NOW_MS)
    assert is_due(found, replace(POLICY, min_dirty_ratio=0.49), NOW_MS)
    assert is_due(measure([segment(10, 20)], 99, 20, POLICY, NOW_MS), POLICY, NOW_MS)
    assert not is_due(measure([], 0, 20, POLICY, NOW_MS), replace(POLICY, min_dirty_ratio=0), 0)


def test_what_ends_above_log_start_is_clean_up_to_the_cleaned_end_and_dirty_above() -> None:
    """
    Deleted segments are neither.
    """
    manifest = replace(
        empty_manifest("t", TP),
        version=1,
        end=30,
        cleaned_end=20,
        segments=(segment(0, 10, size=50), segment(10, 20, size=50), segment(20, 30)),
    )
    dirty = manifest.segments[2:]
    whole = dirtiness(manifest, dirty, 30, POLICY, NOW_MS)
    moved = dirtiness(replace(manifest, log_start=10), dirty, 30, POLICY, NOW_MS)

    assert (100 / 200, 100 / 150) == (whole.ratio, moved.ratio)
    assert [20, 25] == [clean_until(m) for m in (manifest, replace(manifest, log_start=25))]


def test_a_record_older_than_the_longest_lag_makes_it_due() -> None:
    policy = replace(POLICY, max_lag_ms=1_000)
    found = measure([segment(0, 5, oldest_ms=NOW_MS - 1_000)], 10_000, 5, policy, NOW_MS)
    assert not is_due(found, policy, NOW_MS)
    assert due_ms(found, policy) == NOW_MS + 1
    assert is_due(found, policy, NOW_MS + 1)
    assert due_ms(found, POLICY) is None


def test_the_dirty_part_ends_at_the_first_segment_that_is_too_young() -> None:
    policy = replace(POLICY, min_lag_ms=500)
    old, young, late = segment(0, 5), segment(5, 9, newest_ms=NOW_MS - 400), segment(9, 12)
    found = measure([old, young, late], 0, 12, policy, NOW_MS)
    assert (found.dirty_end, found.dirty_bytes) == (5, 100)
    assert due_ms(found, policy) == NOW_MS + 100
    assert measure([old, young, late], 0, 12, policy, NOW_MS + 100).dirty_end == 12


def test_nothing_above_the_sealed_end_is_dirty() -> None:
    found = measure([segment(0, 5), segment(5, 9)], 0, 5, POLICY, NOW_MS)
    assert (found.dirty_end, found.dirty_bytes) == (5, 100)
    assert measure([segment(0, 9)], 0, 5, POLICY, NOW_MS).dirty_bytes == 0


def test_neighbours_become_one_up_to_the_size_of_a_segment() -> None:
    refs = [segment(0, 1), segment(1, 2), segment(2, 3, size=250), raw(3, 4), segment(4, 5)]
    found = [[ref.base for ref in group] for group in groups(refs, 200)]
    assert found == [[0, 1], [2], [3], [4]]


def test_tombstones_go_up_to_the_first_horizon_that_is_too_young() -> None:
    refs = [
        segment(0, 5),
        replace(segment(5, 9), horizons=(TombstoneHorizon(7, 10), TombstoneHorizon(9, 30))),
        replace(segment(9, 12), horizons=(TombstoneHorizon(12, 20),)),
    ]
    assert tombstones_end(refs, 9) == 0
    assert tombstones_end(refs, 29) == 7
    assert tombstones_end(refs, 30) == 12


def test_tombstones_without_a_horizon_end_those_that_go() -> None:
    first = replace(segment(0, 5), horizons=(TombstoneHorizon(3, 10),))
    second = replace(segment(5, 9), horizons=(TombstoneHorizon(9, 10),))
    assert tombstones_end([first, second], 10) == 3


def test_horizons_are_kept_and_equal_neighbours_become_one() -> None:
    known = replace(segment(0, 5), horizons=(TombstoneHorizon(2, 10), TombstoneHorizon(5, 30)))
    fresh = segment(5, 9)
    assert horizons([(known, 2), (fresh, 1)], end=9, gone=0, at_ms=30) == (
        TombstoneHorizon(2, 10),
        TombstoneHorizon(9, 30),
    )
    assert horizons([(known, 2), (fresh, 0)], end=9, gone=2, at_ms=40) == (TombstoneHorizon(9, 30),)
    assert horizons([(known, 0), (fresh, 0)], end=9, gone=0, at_ms=40) == ()
    assert horizons([(fresh, 1)], end=5, gone=0, at_ms=40) == ()
    assert horizons([(fresh, 1)], end=7, gone=0, at_ms=40) == (TombstoneHorizon(7, 40),)


@pytest.mark.parametrize(("at_ms", "expected"), [(1, 1_000), (1_000, 1_000), (1_001, 2_000)])
def test_a_horizon_is_never_earlier_than_its_edit(at_ms: int, expected: int) -> None:
    assert horizon_at(at_ms, replace(POLICY, delete_retention_ms=16_000)) == expected


def test_busy_counts_until_its_time_and_not_for_ever() -> None:
    manifest = replace(empty_manifest("t", TP), busy=Busy("job", 1_000))
    assert busy_ms(manifest, 999, 500) == 1
    assert busy_ms(manifest, 500, 500) == 500
    assert busy_ms(manifest, 1_000, 500) == 0
    assert busy_ms(manifest, 499, 500) == 0
    assert busy_ms(replace(manifest, busy=None), 999, 500) == 0
