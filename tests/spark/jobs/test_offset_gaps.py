"""Gaps between offsets are named exactly, whatever blocks they cross.

If it failed: an audit would miss lost records, or name records that are there.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from driftlog_spark_reader.jobs.offset_gaps import BITS, Block, Gap, gaps, missing_bits

OFFSETS = st.sets(
    st.one_of(
        st.integers(0, 40), st.integers(BITS - 20, BITS + 20), st.integers(4 * BITS, 5 * BITS)
    )
)


def blocks(offsets: set[int]) -> list[Block]:
    """Those that have records, as Spark's bitmaps."""
    found: list[Block] = []
    for number in sorted({offset // BITS for offset in offsets}):
        bits = sum(1 << offset % BITS for offset in offsets if offset // BITS == number)
        previous = found[-1].number if found else None
        found.append(Block(number, previous, bits.to_bytes(BITS // 8, "little")))
    return found


@given(OFFSETS)
def test_gaps_and_records_are_all_offsets(offsets: set[int]) -> None:
    """
    Gaps are in order, do not touch, and hold no record.
    """
    end = 6 * BITS
    found = gaps(0, end, min(offsets, default=None), max(offsets, default=None), blocks(offsets))

    assert sorted(found) == found
    assert all(a.end < b.start for a, b in pairwise(found))
    assert end - len(offsets) == sum(gap.end - gap.start for gap in found)
    assert not [o for o in offsets for gap in found if gap.start <= o < gap.end]


def test_runs_of_bits() -> None:
    """
    The lowest bit of the first byte comes first.
    """
    assert [Gap(0, 1), Gap(3, 9), Gap(15, 16)] == list(missing_bits(bytes([0b110, 0b01111110])))
    assert [] == list(missing_bits(b"\xff" * 4))


def test_nothing_is_one_gap() -> None:
    """
    Of all offsets; none where there are none.
    """
    assert [Gap(3, 9)] == gaps(3, 9, None, None, [])
    assert [] == gaps(3, 3, None, None, [])
