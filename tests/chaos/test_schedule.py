"""The troubles of a seed: the same again, bounded at any time, and of every kind."""

from itertools import product

import pytest

from tests.chaos.schedule import AT_ONCE, MEMBERS, S3, Kind, Trouble, schedule

SEEDS = range(30)


def drawn(seed: int, agents: int = 3) -> list[Trouble]:
    return schedule(seed, 150, agents, 3)


def test_one_seed_draws_one_schedule() -> None:
    """
    Which is how a run that failed is run again.
    """
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_every_kind_is_drawn() -> None:
    """
    In a few runs of the length that CI has.
    """
    assert set(Kind) == {trouble.kind for seed in SEEDS for trouble in drawn(seed)}


@pytest.mark.parametrize("agents", [3, 5])
def test_troubles_are_bounded_at_any_time(agents: int) -> None:
    """
    At most three; one of etcd's members, one of S3; an agent has one, and another agent has none.
    """
    for seed in SEEDS:
        troubles = drawn(seed, agents)
        for now in (trouble.at_s for trouble in troubles):
            going_on = [t for t in troubles if t.at_s <= now < t.at_s + t.for_s]
            troubled = [t.agent for t in going_on if t.agent >= 0]
            assert len(going_on) <= AT_ONCE
            assert len(set(troubled)) == len(troubled) < agents
            for kinds in (MEMBERS, S3):
                assert sum(t.kind in kinds for t in going_on) <= 1


def test_all_have_ended_when_the_time_is_over() -> None:
    """
    But for processes that start again.
    """
    assert all(
        t.at_s + t.for_s <= 150 for seed, n in product(SEEDS, (3, 5)) for t in drawn(seed, n)
    )
