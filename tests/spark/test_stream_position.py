"""A position says where the logs of a stream ended at least, with a tail and without one.

If it failed: a log that lost records would be read on behind them, or a whole log would be refused.
"""

import pytest

from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.source.stream_position import (
    UNRESOLVED,
    Position,
    decode,
    encode,
    sealed_behind,
)

P0, P1 = (NamedPartition("t", p) for p in range(2))


def position(
    offsets: dict[NamedPartition, int],
    sealed: dict[NamedPartition, int],
    ends: dict[NamedPartition, int],
    before: Position | None = None,
) -> Position:
    """What a query logs at *offsets*."""
    logs = {named: LogEnds(0, end) for named, end in ends.items()}
    behind = sealed_behind(offsets, sealed, logs, before or Position({}))
    return decode(encode(Position(offsets, {"t": "id"}, sealed=behind)))


@pytest.mark.parametrize(("has_tail", "expected"), [(True, 9), (False, 4)])
def test_what_was_read_of_a_tail_is_sealed_later(has_tail: bool, expected: int) -> None:
    """
    A query without the tail sees the sealed end only; the offset is behind that, and not its loss.
    """
    found = position({P0: 9, P1: 3}, {P0: 4, P1: 3}, {P0: 9, P1: 3})

    assert {P0: expected, P1: 3} == found.least_ends(has_tail=has_tail)


def test_the_sealed_end_is_kept_while_the_tail_is_not_read() -> None:
    """
    As far as it has come.
    """
    with_tail = position({P0: 9, P1: 3}, {P0: 4, P1: 3}, {P0: 9, P1: 3})
    without = position({P0: 9, P1: 8}, {P0: 6, P1: 8}, {P0: 6, P1: 8}, with_tail)

    assert {P0: 6, P1: 8} == without.least_ends(has_tail=False)
    assert {P0: 9, P1: 8} == without.least_ends(has_tail=True)


@pytest.mark.parametrize("has_tail", [True, False])
def test_a_start_that_is_not_reached_says_nothing_of_the_log(has_tail: bool) -> None:
    """
    Also after batches of other partitions.
    """
    first = position({P0: 9, P1: 3}, {P0: 4, P1: 3}, {P0: 5, P1: 3})
    after = position({P0: 9, P1: 6}, {P0: 5, P1: 6}, {P0: 6, P1: 6}, first)

    assert {P1: 6} == after.least_ends(has_tail=has_tail)


def test_a_checkpoint_of_sparks_kafka_source_does_not_say_what_is_sealed() -> None:
    """
    Its offsets are high watermarks.
    """
    found = decode({"t": {"0": 9}})

    assert {} == found.least_ends(has_tail=False)
    assert {P0: 9} == found.least_ends(has_tail=True)


@pytest.mark.parametrize("has_tail", [True, False])
def test_a_checkpoint_of_an_earlier_build_says_nothing_of_the_log(has_tail: bool) -> None:
    """
    Its offsets may be of a tail, or a start that the log had not reached.  That build reads what
    this one logs, too: it takes each name without a slash for a topic.
    """
    found = decode({"t": {"0": 9}, "/ids": {"t": "id"}})

    assert {} == found.least_ends(has_tail=has_tail)
    assert {"t", "/ids"} == encode(position({P0: 9}, {P0: 4}, {P0: 9})).keys()


def test_what_is_beside_the_offsets_begins_with_a_slash() -> None:
    """
    A listener of a query's progress tells topics by that, as docs/spark.md says.
    """
    offsets = {P0: 9, P1: 3}
    full = Position(offsets, {"t": "id"}, is_first=True, start={P0: 2}, sealed={P0: 4})

    found = {name: of for name, of in encode(full).items() if not name.startswith("/")}

    assert {"t": {"0": 9, "1": 3}} == found
    assert full == decode(encode(full))
    assert all(name.startswith("/") for name in UNRESOLVED)
