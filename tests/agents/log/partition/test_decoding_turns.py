"""If it failed: large batches would be decoded beyond their budget, or one would wait for ever."""

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.partition.decoding_turns import DecodingTurns


def test_turns_begin_in_the_order_of_arrival() -> None:
    """
    A small batch that would fit does not overtake a large one that waits.
    """
    turns = DecodingTurns[str](10)
    began = [turns.take("a", 6), turns.take("b", 6), turns.take("c", 2)]
    after = turns.give(6)

    assert ([True, False, False], ["b", "c"], 8) == (began, after, turns.held_bytes)


def test_one_that_is_abandoned_lets_those_behind_it_begin() -> None:
    """
    Whether it waits, or has begun and its caller does not know that yet.
    """
    turns = DecodingTurns[str](10)
    turns.take("a", 6)
    turns.take("b", 6)
    turns.take("c", 4)

    assert ["c"] == turns.abandon("b", 6)
    turns.take("d", 6)
    assert ["d"] == turns.abandon("a", 6)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10)), max_size=60))
def test_the_budget_is_kept_and_the_first_that_waits_never_fits(
    steps: list[tuple[int, int]],
) -> None:
    """
    After any calls: so nothing waits in vain.
    """
    turns = DecodingTurns[int](10)
    sizes: dict[int, int] = {}
    running: list[int] = []
    waiting: list[int] = []
    for number, (kind, size) in enumerate(steps):
        if kind < 2:
            sizes[number] = size
            (running if turns.take(number, size) else waiting).append(number)
            continue
        source = running if kind == 2 else waiting
        if not source:
            continue
        turn = source.pop(size % len(source))
        found = turns.give(sizes[turn]) if kind == 2 else turns.abandon(turn, sizes[turn])
        assert found == waiting[: len(found)]
        running += found
        del waiting[: len(found)]
        assert turns.held_bytes == sum(sizes[turn] for turn in running) <= 10
        assert not waiting or turns.held_bytes + sizes[waiting[0]] > 10
