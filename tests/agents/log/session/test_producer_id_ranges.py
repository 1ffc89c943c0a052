"""A producer id that is given out twice, by what was seen and read, fails here.

Pure.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.session.producer_id_ranges import (
    BLOCK_SIZE,
    SKIPPED,
    SeenProducerIds,
    block_after,
)
from driftlog_agents.protocol.errors import RefusedError

IDS = st.one_of(st.integers(-1, 10**6), st.integers(2**40, 2**42), st.integers(0, 2**63 - 1))


def settle(seen: SeenProducerIds, end: int) -> tuple[int, int]:
    """The store's end after everything is settled, and how often it was raised."""
    raised = 0
    while not seen.settled:
        seen.read_end(end)
        above = seen.above_end()
        if above is not None:
            end = above + SKIPPED
            seen.raised()
            raised += 1
        assert raised < 2, "it is raised for each range"
    return end, raised


@given(st.lists(IDS), st.integers(0, 10**6))
def test_the_end_is_above_every_credible_id_that_was_seen(ids: list[int], end: int) -> None:
    """An id is credible if it is at most in the range after the one of the store's end."""
    seen = SeenProducerIds()
    for one in ids:
        seen.saw(one)
    settled, _ = settle(seen, end)

    credible = [one for one in ids if one < 2**41]
    assert all(one < settled for one in credible)
    assert settled >= end


@given(st.lists(st.integers(0, 10**6)), st.integers(0, 10**6))
def test_ids_below_the_end_raise_nothing(ids: list[int], end: int) -> None:
    """The store has given them out."""
    seen = SeenProducerIds()
    for one in ids:
        seen.saw(min(one, end - 1))

    assert (end, 0) == settle(seen, end)


@given(st.lists(IDS), st.integers(0, 2**42))
def test_one_raise_does_what_raises_one_after_the_other_do(ids: list[int], end: int) -> None:
    """What a raise makes credible is raised above as well."""
    seen = SeenProducerIds()
    for one in ids:
        seen.saw(one)
    settled, _ = settle(seen, end)

    possible = [one for one in ids if one < 2**63 - 1 - SKIPPED]
    while above := [one for one in possible if end <= one < ((end >> 40) + 2) << 40]:
        end = max(above) + SKIPPED
    assert end == settled


class CountedRange(int):
    """A range of ids that counts its comparisons."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountedRange.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        CountedRange.compared += 1
        return int(self) > int(other)


class CountedId(int):
    """An id whose range counts its comparisons."""

    def __rshift__(self, bits: int) -> int:
        return CountedRange(int(self) >> bits)


@pytest.mark.parametrize("step", [1, -1])
def test_ids_of_many_ranges_take_no_search_each(step: int) -> None:
    """A client makes up its ids; the ranges nearest to the end are kept all the same."""
    ranges = range(1, 10_001)[::step]
    CountedRange.compared = 0
    seen = SeenProducerIds()
    for number in ranges:
        seen.saw(CountedId(number << 40))
    compared = CountedRange.compared
    settled, raised = settle(seen, 0)

    assert compared < 50 * len(ranges)  # a search in a thousand ranges compares a thousand times
    assert settled >= (1_000 << 40) + SKIPPED
    assert 1 == raised


def test_a_lost_store_raises_the_end_once() -> None:
    """Later signs are of the same store."""
    seen = SeenProducerIds()
    seen.saw_a_lost_store()
    first = settle(seen, 5_000)
    seen.saw_a_lost_store()

    assert (5_000 + SKIPPED, 1) == first
    assert seen.settled


@given(st.integers(0, 2**62))
def test_blocks_begin_at_multiples_at_or_above_the_end(end: int) -> None:
    """So two blocks overlap only if they are the same."""
    block = block_after(end, BLOCK_SIZE, 1)

    assert 0 == block.first_producer_id % BLOCK_SIZE
    assert end <= block.first_producer_id < end + BLOCK_SIZE


def test_no_block_goes_beyond_the_last_id() -> None:
    """All 2^63 are used up one day."""
    with pytest.raises(RefusedError):
        block_after(2**63 - BLOCK_SIZE, BLOCK_SIZE, 1)
