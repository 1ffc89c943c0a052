"""If it failed: an agent would work on partitions of others, or miss what was sealed."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.cluster.view import ClusterView, LeaderEntry, TopicEntry
from driftlog_agents.log.delegated.delegated_partitions import DelegatedPartitions
from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.codec import encode_partition_state
from driftlog_metadata.schema.keys import PARTITIONS_PREFIX, partition_key
from driftlog_metadata.schema.model import (
    ALL_ROLES,
    Leader,
    PartitionState,
    Role,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.store import DeleteEvent, KeyValue, PutEvent
from tests.agents.cluster.test_roles import view_of

T = UUID(int=7, version=4)
SERVE, SEAL = frozenset({Role.SERVE}), frozenset({Role.SEAL})


def key_of(partition: int, version: int, sealed_end: int = 0) -> KeyValue:
    """The key of a partition whose manifest has *version*; 0: it cannot be read."""
    state = PartitionState(sealed_end=sealed_end, manifest_version=version)
    value = encode_partition_state(state) if version else b"damaged"
    return KeyValue(partition_key(TopicPartition(T, partition)), value, 1, 1)


def led_by(leader: int, roles: dict[int, frozenset[Role]], count: int = 1) -> ClusterView:
    """A topic of *count* partitions; the members change with the leader's roles alone."""
    view = view_of(roles)
    view.topics[T] = TopicEntry(Topic(name="t", topic_id=T, partitions=count), 1, 1)
    for number in range(count):
        tp = TopicPartition(T, number)
        view.leaders[tp] = LeaderEntry(Leader(f"{leader:032x}", 1), 1)
    return view


def test_a_partition_is_this_agents_while_the_rule_says_so() -> None:
    """
    Not when its leader does it, nor when there is no leader; its topic may be gone.
    """
    view = led_by(1, {1: SERVE, 2: SEAL, 3: ALL_ROLES})
    found = DelegatedPartitions(view, 2)
    found.reset([key_of(0, 1, 5)])
    (partition,) = found.all()
    other = DelegatedPartitions(view, 3)
    other.reset([key_of(0, 1, 5)])
    states = [partition.state, other.all()[0].state]
    assert [State.CLOSED, State.ONLINE] == sorted(states, key=lambda state: state.name)
    assert ("t", 5, 1) == (partition.topic, partition.sealed_end, partition.manifest_version)

    view.leaders[partition.tp] = LeaderEntry(Leader(f"{3:032x}", 2), 2)
    assert {State.CLOSED} == {partition.state, other.all()[0].state}
    view.leaders[partition.tp] = LeaderEntry(Leader(None, 2), 3)
    assert {State.CLOSED} == {partition.state, other.all()[0].state}


def test_the_partition_of_a_deleted_topic_keeps_its_name_and_is_nobodys() -> None:
    """
    A rewrite that has begun builds keys of it; before the topic is known nothing is done.
    """
    view = led_by(1, {1: SERVE, 2: SEAL})
    topics = dict(view.topics)
    view.topics.clear()
    found = DelegatedPartitions(view, 2)
    found.reset([key_of(0, 1)])
    (partition,) = found.all()
    before = partition.topic, partition.state
    view.topics |= topics
    known = partition.topic, partition.state
    view.topics.clear()

    assert ("", State.CLOSED) == before
    assert ("t", State.ONLINE) == known
    assert ("t", State.CLOSED) == (partition.topic, partition.state)


def test_another_agent_takes_over_when_the_members_change() -> None:
    """
    The answer of before is not kept.
    """
    view = led_by(1, {1: SERVE, 2: SEAL})
    found = DelegatedPartitions(view, 2)
    found.reset([key_of(0, 1)])
    (partition,) = found.all()
    before = partition.state, found.are_needed()
    view.agents[1] = view_of({1: ALL_ROLES}).agents[1]
    view.members_version += 1

    assert (State.ONLINE, True) == before
    assert (State.CLOSED, False) == (partition.state, found.are_needed())


def test_what_was_edited_is_told_once_and_only_of_ones_own() -> None:
    """
    By a newer version or another log start in the key, or by an edit of this agent; not by the
    first read.
    """
    view = led_by(1, {1: SERVE, 2: SEAL}, 3)
    found = DelegatedPartitions(view, 2)
    found.reset([key_of(0, 1), key_of(1, 1), key_of(2, 1)])
    assert [] == found.take_edited()
    found.apply([PutEvent(key_of(0, 2)), PutEvent(key_of(1, 1, 9)), PutEvent(key_of(2, 2))])
    view.leaders[TopicPartition(T, 2)] = LeaderEntry(Leader(None, 2), 2)

    assert [0] == [each.partition for each in found.take_edited()]
    moved = PartitionState(manifest_version=2, log_start=4)
    found.apply([PutEvent(replace(key_of(0, 2), value=encode_partition_state(moved)))])
    assert [0] == [each.partition for each in found.take_edited()], "segments below it are garbage"
    found.edited(found.all()[1])
    assert [1] == [each.partition for each in found.take_edited()]
    assert [] == found.take_edited()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 4)), max_size=20), st.data())
def test_the_watch_says_what_a_read_would(
    changes: Sequence[tuple[int, int]], data: st.DataObject
) -> None:
    """
    Keys are put, deleted (-1) and damaged (0); a read may come at any time; strange keys are
    passed over.
    """
    view = led_by(1, {1: SERVE, 2: SEAL}, 4)
    found, keys = DelegatedPartitions(view, 2), dict[str, KeyValue]()
    keys["strange"] = KeyValue(f"{PARTITIONS_PREFIX}strange", b"", 1, 1)
    found.reset(keys.values())
    for number, version in changes:
        kv = key_of(number, max(version, 0))
        if version >= 0:
            keys[kv.key] = kv
            found.apply([PutEvent(kv)])
        else:
            keys.pop(kv.key, None)
            found.apply([DeleteEvent(kv.key, 1)])
        if data.draw(st.booleans()):
            found.reset(keys.values())
    fresh = DelegatedPartitions(view, 2)
    fresh.reset(keys.values())

    assert {p.tp: p.said for p in fresh.all()} == {p.tp: p.said for p in found.all()}
