"""The assignors give what Kafka's give, and move no more partitions than they must."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_agents.groups.consumer.assignors import MemberSpec, Partition, Target, range_, uniform

TOPICS = [UUID(int=i) for i in range(1, 5)]
A, B, C, D = TOPICS


def specs(members: dict[str, set[UUID]], previous: Target | None = None) -> dict[str, MemberSpec]:
    return {
        name: MemberSpec(frozenset(topics), (previous or {}).get(name, frozenset()))
        for name, topics in members.items()
    }


def all_of(topics: set[UUID], sizes: dict[UUID, int]) -> set[Partition]:
    return {(topic, p) for topic in topics for p in range(sizes[topic])}


def moved(before: Target, after: Target) -> int:
    """How many partitions somebody lost."""
    return sum(len(had - after.get(name, frozenset())) for name, had in before.items())


def numbers(target: Target, topic: UUID) -> dict[str, list[int]]:
    return {name: sorted(p for t, p in assigned if t == topic) for name, assigned in target.items()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, set[UUID]], dict[UUID, int]]:
    sizes = {topic: draw(st.integers(0, 12)) for topic in TOPICS}
    count = draw(st.integers(1, 6))
    members = {
        f"m{i}": set(draw(st.lists(st.sampled_from(TOPICS), max_size=4))) for i in range(count)
    }
    return members, sizes


@st.composite
def equal_groups(draw: st.DrawFn) -> tuple[dict[str, set[UUID]], dict[UUID, int]]:
    sizes = {topic: draw(st.integers(0, 12)) for topic in TOPICS}
    topics = set(draw(st.lists(st.sampled_from(TOPICS), max_size=4)))
    return {f"m{i}": topics for i in range(draw(st.integers(1, 8)))}, sizes


def check_complete(target: Target, members: dict[str, set[UUID]], sizes: dict[UUID, int]) -> None:
    """Each partition of a topic that anybody subscribes to is one subscriber's."""
    assert target.keys() == members.keys()
    given_out = [partition for assigned in target.values() for partition in assigned]
    assert len(given_out) == len(set(given_out)), "a partition is two members'"
    assert set(given_out) == all_of(set().union(*members.values()), sizes)
    for name, assigned in target.items():
        assert {topic for topic, _ in assigned} <= members[name]


@given(groups(), groups())
def test_uniform_gives_every_partition_to_one_subscriber(
    first: tuple[dict[str, set[UUID]], dict[UUID, int]],
    second: tuple[dict[str, set[UUID]], dict[UUID, int]],
) -> None:
    """
    Whatever the target was before: members, subscriptions and topics may all be others.
    """
    before = uniform(specs(first[0]), first[1])
    after = uniform(specs(second[0], before), second[1])

    check_complete(before, *first)
    check_complete(after, *second)


@given(groups())
def test_range_gives_every_partition_to_one_subscriber(
    group: tuple[dict[str, set[UUID]], dict[UUID, int]],
) -> None:
    """
    Members may subscribe to different topics.
    """
    check_complete(range_(specs(group[0]), group[1]), *group)


@given(equal_groups(), equal_groups())
def test_uniform_is_balanced_where_all_subscribe_to_the_same(
    first: tuple[dict[str, set[UUID]], dict[UUID, int]],
    second: tuple[dict[str, set[UUID]], dict[UUID, int]],
) -> None:
    """
    Two members differ by one partition at most, whatever was before.
    """
    before = uniform(specs(first[0]), first[1])
    after = uniform(specs(second[0], before), second[1])
    sizes = [len(assigned) for assigned in after.values()]

    assert max(sizes) - min(sizes) <= 1


@given(groups(), groups())
def test_uniform_leaves_no_topic_out_of_balance(
    first: tuple[dict[str, set[UUID]], dict[UUID, int]],
    second: tuple[dict[str, set[UUID]], dict[UUID, int]],
) -> None:
    """
    Among a topic's subscribers nobody has a partition of it that another one, with two or more
    less in all, could have.
    """
    before = uniform(specs(first[0]), first[1])
    members, sizes = second
    after = uniform(specs(members, before), sizes)

    for assigned in after.values():
        for topic in {t for t, _ in assigned}:
            others = [len(after[m]) for m in members if topic in members[m]]
            assert len(assigned) - min(others) <= 1


@given(equal_groups())
def test_uniform_moves_nothing_that_need_not(
    group: tuple[dict[str, set[UUID]], dict[UUID, int]],
) -> None:
    """
    The same group again moves nothing; one member more moves its share, and nobody else's
    partitions; one member less moves what that one had.
    """
    members, sizes = group
    topics = members["m0"]
    before = uniform(specs(members), sizes)
    joined = uniform(specs({**members, "new": topics}, before), sizes)
    left = uniform(specs(members, joined), sizes)

    assert before == uniform(specs(members, before), sizes)
    assert len(joined["new"]) == moved(before, joined)
    assert 0 == moved({m: joined[m] for m in members}, left)


def test_uniform_leaves_the_larger_share_where_it_is() -> None:
    """
    Whoever has one more than the others keeps it.
    """
    before = {
        "a": frozenset({(A, 0)}),
        "b": frozenset({(A, 1)}),
        "c": frozenset({(A, 2), (A, 3)}),
    }

    assert before == uniform(specs({"a": {A}, "b": {A}, "c": {A}}, before), {A: 4})


def test_uniform_spreads_new_partitions() -> None:
    """
    A topic that grows moves nothing of what is assigned.
    """
    before = uniform(specs({"a": {A}, "b": {A}, "c": {A}}), {A: 4})
    after = uniform(specs({"a": {A}, "b": {A}, "c": {A}}, before), {A: 9})

    assert 0 == moved(before, after)
    assert [3, 3, 3] == [len(assigned) for assigned in after.values()]


def test_uniform_evens_out_members_of_different_topics() -> None:
    """
    Whoever subscribes to what nobody else does gets less of the rest.
    """
    target = uniform(specs({"a": {A, B}, "b": {B}, "c": {B}}), {A: 3, B: 6})

    assert {"a": 3, "b": 3, "c": 3} == {name: len(assigned) for name, assigned in target.items()}
    assert [0, 1, 2] == numbers(target, A)["a"]


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 400))
def test_uniform_is_balanced_for_many_members(count: int, partitions: int) -> None:
    """
    Also when more members come than there are partitions.
    """
    target = uniform(specs({f"m{i}": {A} for i in range(count)}), {A: partitions})
    sizes = [len(assigned) for assigned in target.values()]

    assert partitions == sum(sizes)
    assert max(sizes) - min(sizes) <= 1


def test_range_gives_runs_and_the_first_members_one_more() -> None:
    """
    As Kafka's: 7 partitions over 3 members are 3, 2 and 2.
    """
    target = range_(specs({"b": {A}, "a": {A}, "c": {A}}), {A: 7})

    assert {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]} == numbers(target, A)


def test_range_gives_the_same_partitions_of_topics_of_the_same_size() -> None:
    """
    So that joins of two topics by partition find both sides at one member.
    """
    target = range_(specs({"a": {A, B}, "b": {A, B}}), {A: 5, B: 5})

    assert numbers(target, A) == numbers(target, B)


def test_range_takes_static_members_first_by_instance_id() -> None:
    """
    Their member ids change with every start; the runs that they get do not.
    """
    members = {
        "x": MemberSpec(frozenset({A}), instance_id="2"),
        "y": MemberSpec(frozenset({A}), instance_id="1"),
        "a": MemberSpec(frozenset({A})),
    }

    assert {"y": [0], "x": [1], "a": [2]} == numbers(range_(members, {A: 3}), A)


def test_a_group_without_members_or_topics_gets_nothing() -> None:
    """
    A member that subscribes to nothing is in the target all the same.
    """
    assert {} == uniform({}, {A: 3})
    assert {"a": frozenset()} == uniform(specs({"a": set()}), {A: 3})
    assert {"a": frozenset()} == range_(specs({"a": set()}), {A: 3})
