"""A gap is a hole exactly where neither compaction nor an accepted loss explains it.

If it failed: a lost record would pass for a compacted one, or an accepted loss would be reported
each week.
"""

from hypothesis import given
from hypothesis import strategies as st

from driftlog_tiering.verification.findings import OffsetGap, PartitionReport
from driftlog_tiering.verification.rules import gap, holes
from tests.support.sealed_topics import SealedTopic

_offsets = st.integers(0, 60)
_ranges = st.lists(st.tuples(_offsets, st.integers(1, 20)), max_size=8)


def _gaps(ranges: list[tuple[int, int]]) -> list[OffsetGap]:
    return [one for base, length in ranges for one in gap(base, base + length, "key")]


@given(missing=_ranges, accepted=_ranges)
def test_holes_are_the_gaps_without_what_was_accepted(
    missing: list[tuple[int, int]], accepted: list[tuple[int, int]]
) -> None:
    """
    Offset by offset, whatever overlaps.
    """
    lost = [(base, base + length) for base, length in accepted]
    gaps = _gaps(missing)

    found = holes(gaps, lost, compacted=False)

    given_up = {offset for base, end in lost for offset in range(base, end)}
    expected = {offset for one in gaps for offset in range(one.base, one.end)} - given_up
    assert expected == {o for one in found for o in range(one.base, one.end or 0)}
    assert [] == holes(gaps, lost, compacted=True)


def test_a_gap_of_which_only_the_number_is_known() -> None:
    """
    It is explained by as many accepted offsets within it.
    """
    gaps = [OffsetGap(10, 30, 5, "key")]

    assert [(10, 30)] == [(one.base, one.end) for one in holes(gaps, [], compacted=False)]
    assert [(10, 30)] == [(one.base, one.end) for one in holes(gaps, [(12, 16)], compacted=False)]
    assert [] == holes(gaps, [(12, 17)], compacted=False)


def test_a_report_counts_gaps_in_the_range_only() -> None:
    """
    What is below log start, or above the end of a look, is not missing.
    """
    report = PartitionReport(topic="t", topic_id=SealedTopic("", "t").topic_id, partition=0)

    report.add_gaps(
        [OffsetGap(0, 10, 10, "a"), OffsetGap(20, 30, 4, "b"), OffsetGap(40, 50, 10, "c")], 5, 45
    )

    assert 5 + 4 + 5 == report.gap_offsets
    assert [(5, 10), (20, 30), (40, 45)] == [(one.base, one.end) for one in report.gaps]
