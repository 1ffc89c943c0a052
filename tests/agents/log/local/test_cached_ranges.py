"""
If this fails, the range cache takes the bytes of another range for right, or more than its budget.
"""

import pytest

from driftlog_agents.log.local.cached_ranges import (
    CachedRanges,
    decode_entry,
    encode_entry,
    name_of,
)


def stored(key: str = "a", start: int = 3, body: bytes = b"bytes") -> bytes:
    return b"".join(encode_entry(key, start, start + len(body), body))


def test_an_entry_has_the_bytes_of_its_range() -> None:
    """
    What was stored of a range comes back.
    """
    assert decode_entry(stored(), "a", 3, 8) == b"bytes"


@pytest.mark.parametrize(("key", "start", "end"), [("b", 3, 8), ("a", 2, 7), ("a", 3, 7)])
def test_an_entry_of_another_range_does_not_count(key: str, start: int, end: int) -> None:
    """
    Two ranges may have the same size; only the one that was stored is read.
    """
    assert decode_entry(stored(), key, start, end) is None


def test_a_damaged_entry_does_not_count() -> None:
    """
    Each byte of an entry is covered, and so is its length.
    """
    entry = stored()
    damaged = [bytes((*entry[:i], entry[i] ^ 1, *entry[i + 1 :])) for i in range(len(entry))]

    found = [decode_entry(one, "a", 3, 8) for one in (*damaged, entry[:-1], entry + b"x")]

    assert set(found) == {None}


def test_the_entry_that_was_not_read_for_longest_goes_first() -> None:
    """
    A read moves an entry behind the others, and entries go until there is room.
    """
    ranges = CachedRanges(30)
    for name in ("a", "b", "c"):
        ranges.add(name, 10)
    ranges.was_read("a")

    gone: list[str] = []
    while (oldest := ranges.to_delete(15)) is not None:
        ranges.forget(oldest)
        gone.append(oldest)

    assert (["b", "c"], 10) == (gone, ranges.used_bytes)


def test_an_entry_larger_than_the_budget_empties_nothing() -> None:
    """
    It is not stored; and one that is there is not stored twice.
    """
    ranges = CachedRanges(30)
    ranges.add("a", 10)

    assert [True, False, False] == [
        ranges.fits("b", 30),
        ranges.fits("b", 31),
        ranges.fits("a", 10),
    ]


def test_all_entries_of_an_object_are_found() -> None:
    """
    A damaged object is dropped with each range of it, and no other object is.
    """
    ranges = CachedRanges(30)
    names = [name_of("a", 0, 5), name_of("a", 5, 9), name_of("b", 0, 5)]
    for name in names:
        ranges.add(name, 1)

    assert names[:2] == ranges.of_object("a")
