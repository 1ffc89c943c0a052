"""Which agent is to lead which partition: alike for all, balanced, and with few moves."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.cluster.placement import manager_of, place, ranked
from driftlog_metadata.schema.model import TopicPartition

Order = list[tuple[UUID, int]]


def topics(partitions: int, *, each: int = 100, seed: int = 1) -> Order:
    """As many partitions, in topics of *each*."""
    rng = Random(seed)
    return [(UUID(int=rng.getrandbits(128), version=4), each) for _ in range(partitions // each)]


def cap(order: Sequence[tuple[UUID, int]], nodes: int) -> int:
    """⌈1.1 × mean⌉, in whole numbers."""
    return -(-11 * sum(count for _, count in order) // (10 * nodes))


def moved(before: dict[TopicPartition, int], after: dict[TopicPartition, int]) -> int:
    """Partitions that are placed elsewhere now."""
    return sum(after[tp] != node for tp, node in before.items())


TOPICS = st.lists(
    st.tuples(st.uuids(version=4), st.integers(1, 30)), max_size=8, unique_by=lambda topic: topic[0]
)
NODES = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=12)


@given(TOPICS, NODES, st.randoms())
def test_every_partition_is_placed_once_and_nobody_is_over_the_cap(
    order: Order, nodes: set[int], rng: Random
) -> None:
    """
    In whatever order somebody knows the agents, the result is the same.
    """
    plan = place(order, nodes)
    shuffled = sorted(nodes)
    rng.shuffle(shuffled)

    assert {TopicPartition(t, p) for t, count in order for p in range(count)} == plan.keys()
    assert set(plan.values()) <= nodes
    assert max(Counter(plan.values()).values(), default=0) <= cap(order, len(nodes))
    assert plan == place(order, shuffled)


def test_all_orders_of_agents_give_one_plan() -> None:
    """
    Every one of them, at a size where the cap decides.
    """
    order = topics(200, each=20)
    expected = place(order, (1, 2, 3, 4))

    assert all(place(order, nodes) == expected for nodes in permutations((1, 2, 3, 4)))
    assert cap(order, 4) == max(Counter(expected.values()).values())


def test_without_agents_nothing_is_placed_and_one_has_it_all() -> None:
    """
    One agent needs no cap: ⌈1.1 × mean⌉ is more than everything.
    """
    order = topics(300)

    assert {} == place(order, ())
    assert {TopicPartition(t, p): 7 for t, n in order for p in range(n)} == place(order, (7,))
    assert {} == place([], (1, 2))


@pytest.mark.parametrize("nodes", [3, 5, 10])
@pytest.mark.parametrize("each", [1, 100])
def test_an_agent_that_joins_or_leaves_moves_little_more_than_its_share(
    nodes: int, each: int
) -> None:
    """
    Of 10,000 partitions at most 1.3/n: its own, and some that the new cap pushes.
    """
    order = topics(10_000, each=each, seed=nodes)
    ids = list(range(1, nodes + 1))
    before, joined = place(order, ids), place(order, [*ids, 99])

    moves = moved(before, joined)
    assert 10_000 / (nodes + 1) * 0.9 < moves <= 1.3 * 10_000 / (nodes + 1)
    for gone in (ids[0], ids[-1]):
        left = place(order, [node for node in ids if node != gone])
        assert moved(before, left) <= 1.3 * 10_000 / nodes


@given(TOPICS, NODES, st.uuids(version=4), st.integers(1, 60))
def test_a_new_topic_moves_nothing_but_what_the_raised_cap_lets_go_home(
    order: Order, nodes: set[int], new: UUID, partitions: int
) -> None:
    """
    A partition of an older topic moves only to an agent that it suits better, and that was full.
    """
    if new in dict(order):
        return
    before, after = place(order, nodes), place([*order, (new, partitions)], nodes)
    full = {n for n, load in Counter(before.values()).items() if load == cap(order, len(nodes))}

    for tp, node in before.items():
        if after[tp] != node:
            better = ranked(tp, nodes, len(nodes))
            assert better.index(after[tp]) < better.index(node)
            assert full


def test_a_new_topic_moves_nothing_where_nobody_was_full() -> None:
    """
    What the hash alone places stays, whatever comes behind it.
    """
    order = topics(20, each=1)
    nodes = (1, 2)
    before = place(order, nodes)
    assert cap(order, 2) > max(Counter(before.values()).values())

    after = place([*order, (UUID(int=77, version=4), 500)], nodes)

    assert 0 == moved(before, after)


@pytest.mark.parametrize(("nodes", "in_all"), [(3, 49), (5, 156), (10, 138)])
def test_while_topics_come_few_partitions_of_older_ones_move(nodes: int, in_all: int) -> None:
    """
    Up to 1,000 partitions in topics of six: no more for one topic than it has itself.
    """
    order = topics(1_000, each=6, seed=5)
    ids = range(1, nodes + 1)
    plans = [place(order[:count], ids) for count in range(1, len(order) + 1)]

    moves = [moved(before, after) for before, after in pairwise(plans)]

    assert max(moves) <= 6
    assert in_all == sum(moves)


def test_what_is_ranked_first_leads_where_nobody_is_full() -> None:
    """
    So the replicas that are told are those that would lead next.
    """
    order = topics(20, each=1)
    plan = place(order, (1, 2))

    assert [[node] for node in plan.values()] == [ranked(tp, (1, 2), 1) for tp in plan]
    assert all({1, 2} == set(ranked(tp, (2, 1), 5)) for tp in plan)


@given(st.integers(0, 2**128 - 1), NODES, st.randoms())
def test_the_manager_of_a_session_is_one_for_all_and_stays_when_others_go(
    number: int, nodes: set[int], rng: Random
) -> None:
    """
    Whoever leaves or joins changes nothing but what they keep themselves.
    """
    session_id = f"{number:032x}"
    shuffled = sorted(nodes)
    rng.shuffle(shuffled)
    manager = manager_of(session_id, nodes)

    assert manager in nodes
    assert manager == manager_of(session_id, shuffled)
    for gone in nodes - {manager}:
        assert manager == manager_of(session_id, nodes - {gone})
    assert manager_of(session_id, {*nodes, 2**31}) in (manager, 2**31)
    assert manager_of(session_id, ()) is None


def test_managers_share_what_is_dead() -> None:
    """
    Of 3,000 sessions each of three keeps about a third.
    """
    rng = Random(3)
    kept = Counter(manager_of(f"{rng.getrandbits(128):032x}", (1, 2, 3)) for _ in range(3_000))

    assert {1, 2, 3} == kept.keys()
    assert min(kept.values()) > 900


def test_a_plan_is_what_it_always_was() -> None:
    """
    Agents of two versions must agree while one replaces the other: a new hash is a new format.
    """
    order = [(UUID(int=1), 6), (UUID(int=2), 2)]

    assert [1, 1, 1, 3, 2, 3, 2, 2] == list(place(order, (1, 2, 3)).values())
    assert 2 == manager_of("1" * 32, (1, 2, 3))
