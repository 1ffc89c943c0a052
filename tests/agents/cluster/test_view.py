"""The view of the cluster: what watches told it is what a fresh read would."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_agents.cluster.view import PREFIXES, ClusterView, TopicEntry, placement_order
from driftlog_metadata.schema.codec import (
    encode_agent,
    encode_configs,
    encode_leader,
    encode_live_session,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    AGENTS_PREFIX,
    CONFIGS_PREFIX,
    DELETED_PREFIX,
    LEADERS_PREFIX,
    SESSIONS_PREFIX,
    TOPICS_PREFIX,
    agent_key,
    configs_key,
    deleted_key,
    leader_key,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import (
    Agent,
    ConfigsOwner,
    Leader,
    LiveSession,
    SessionStage,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.store import DeleteEvent, KeyValue, PutEvent, WatchEvent

T = UUID(int=7, version=4)
TP = TopicPartition(T, 0)


def session_of(node: int, life: int = 0) -> str:
    """Its session id."""
    return f"{node:016x}{life:016x}"


def agent(node: int, life: int = 0) -> Agent:
    return Agent(
        node_id=node,
        session_id=session_of(node, life),
        listeners=(),
        http_address="",
        rack=None,
        started_at_ms=0,
    )


class Store:
    """Keys by prefix, and what a watch would have said of each change."""

    def __init__(self) -> None:
        self.kvs: dict[str, KeyValue] = {}
        self.revision = 0

    def put(self, key: str, value: bytes) -> WatchEvent:
        self.revision += 1
        old = self.kvs.get(key)
        created = self.revision if old is None else old.create_revision
        self.kvs[key] = KeyValue(key, value, created, self.revision)
        return PutEvent(self.kvs[key])

    def delete(self, key: str) -> WatchEvent | None:
        if key not in self.kvs:
            return None
        self.revision += 1
        del self.kvs[key]
        return DeleteEvent(key, self.revision)

    def under(self, prefix: str) -> list[KeyValue]:
        return [kv for key, kv in sorted(self.kvs.items()) if key.startswith(prefix)]


def prefix_of(key: str) -> str:
    (found,) = [prefix for prefix in PREFIXES if key.startswith(prefix)]
    return found


def fresh(store: Store) -> ClusterView:
    """Of somebody who reads everything now."""
    view = ClusterView()
    for prefix in PREFIXES:
        view.reset(prefix, store.revision, store.under(prefix))
    return view


def known(view: ClusterView) -> dict[str, Any]:
    """All that is asked of a view."""
    tps = sorted({*view.leaders, *PARTITIONS}, key=str)
    return {
        "agents": view.agents,
        "sessions": view.sessions,
        "topics": view.topics,
        "leaders": view.leaders,
        "configs": view.configs,
        "configured groups": view.configured_groups,
        "unreadable configs": [view.has_unreadable_configs(owner) for owner in OWNERS],
        "damaged": view.damaged,
        "placed": view.placed(),
        "order": placement_order(view.topics.values()),
        "controller": view.controller_id,
        "led": [(view.leader_of(tp), view.is_led(tp)) for tp in tps],
        "replicas": [view.replicas(tp, rf) for tp in tps for rf in (1, 2, 9)],
        "seen": [view.seen_by_all(n) for n in range(4)],
        "complete": view.complete,
    }


NODES, LIVES = range(3), range(2)
SESSIONS = [session_of(node, life) for node in NODES for life in LIVES]
TOPIC_IDS = [UUID(int=n + 1, version=4) for n in range(3)]
PARTITIONS = [TopicPartition(topic_id, n) for topic_id in TOPIC_IDS for n in range(2)]
OWNERS = [ConfigsOwner(), ConfigsOwner(node_id=1), ConfigsOwner(group_id="g")]
DAMAGED = st.sampled_from([b"\xa5", b"{}", b'{"v":99}'])


def configs_of(value: str) -> bytes:
    return encode_configs({"log.retention.ms": value})


def topic_values(name: str) -> st.SearchStrategy[bytes]:
    # A topic's id is its name's alone.
    ids = TOPIC_IDS[:2] if name == "a" else TOPIC_IDS[2:]
    return st.builds(
        lambda topic_id, count: encode_topic(Topic(name=name, topic_id=topic_id, partitions=count)),
        st.sampled_from(ids),
        st.integers(1, 3),
    )


def keys_and(values: Sequence[tuple[str, st.SearchStrategy[bytes]]]) -> Any:
    return [st.tuples(st.just(key), value | DAMAGED | st.none()) for key, value in values]


CHANGES = st.lists(
    st.one_of(
        keys_and(
            [
                (agent_key(n), st.sampled_from([encode_agent(agent(n, life)) for life in LIVES]))
                for n in NODES
            ]
        )
        + keys_and(
            [
                (
                    session_key(session_id),
                    st.builds(
                        lambda stage, seen, node=int(session_id[:16], 16): encode_live_session(
                            LiveSession(node_id=node, stage=stage, topics_revision=seen)
                        ),
                        st.sampled_from(SessionStage),
                        st.integers(0, 3),
                    ),
                )
                for session_id in SESSIONS
            ]
        )
        + keys_and([(topic_key(name), topic_values(name)) for name in ("a", "b")])
        + keys_and([(deleted_key(TOPIC_IDS[0]), topic_values("a"))])
        + keys_and(
            [(configs_key(owner), st.sampled_from(["1", "2"]).map(configs_of)) for owner in OWNERS]
        )
        + keys_and(
            [
                (
                    leader_key(tp),
                    st.builds(
                        lambda session_id, epoch: encode_leader(Leader(session_id, epoch)),
                        st.sampled_from([*SESSIONS, None]),
                        st.integers(0, 9),
                    ),
                )
                for tp in PARTITIONS
            ]
        )
    ),
    max_size=40,
)
"""(key, value); None: deleted."""


@given(CHANGES, st.lists(st.sampled_from(["apply", "reset", "later"]), min_size=1, max_size=9))
@settings(max_examples=300)
def test_what_watches_told_is_what_a_fresh_read_says(
    changes: list[tuple[str, bytes | None]], ways: list[str]
) -> None:
    """
    Told one by one, or many at once, or read again after a compaction; also what became of each
    topic, one change after the other, comes to what there is.
    """
    store, view = Store(), fresh(Store())
    waiting: list[WatchEvent] = []
    topics: dict[UUID, TopicEntry] = {}

    def look() -> None:
        for old, new in view.take_topic_changes():
            if old is None:
                assert new is not None
                assert new.topic.topic_id not in topics
            else:
                assert old == topics.pop(old.topic.topic_id)
                assert new is None or new.topic.topic_id == old.topic.topic_id
            if new is not None:
                topics[new.topic.topic_id] = new

    for i, (key, value) in enumerate(changes):
        event = store.delete(key) if value is None else store.put(key, value)
        if event is not None:
            waiting.append(event)
        way = ways[i % len(ways)]
        if way == "apply":
            for event in waiting:
                at = event.kv.key if isinstance(event, PutEvent) else event.key
                view.apply(prefix_of(at), [event])
            waiting.clear()
        elif way == "reset":
            for prefix in PREFIXES:
                view.reset(prefix, store.revision, store.under(prefix))
            waiting.clear()
        look()
    for prefix in PREFIXES:
        events = [e for e in waiting if _key(e).startswith(prefix)]
        view.apply(prefix, events)
    look()

    assert known(fresh(store)) == known(view)
    counted = (TOPICS_PREFIX, DELETED_PREFIX, CONFIGS_PREFIX)  # whatever can be read of them
    stored = [kv for prefix in counted for kv in store.under(prefix)]
    assert sum(len(kv.key) + len(kv.value) for kv in stored) == view.stored_bytes
    # Nobody was told that a topic is gone because its key cannot be read.
    assert view.topics.items() <= topics.items()
    hidden = {topic_key(e.topic.name) for i, e in topics.items() if i not in view.topics}
    assert hidden <= view.damaged.keys()


def test_every_change_of_configs_is_told() -> None:
    """
    A value, another one, one that cannot be read, and none: each is applied, or ignored, by what is
    there then.
    """
    view, store, owner = fresh(Store()), Store(), ConfigsOwner(node_id=1)
    key = configs_key(owner)
    said = []
    for value in (configs_of("1"), configs_of("2"), b"{}", None):
        event = store.delete(key) if value is None else store.put(key, value)
        assert event is not None
        view.apply(CONFIGS_PREFIX, [event])
        unreadable = view.has_unreadable_configs(ConfigsOwner(), owner)
        said.append((view.take_config_changes(), dict(view.configs.get(owner, {})), unreadable))

    assert [
        ([owner], {"log.retention.ms": "1"}, False),
        ([owner], {"log.retention.ms": "2"}, False),
        ([owner], {}, True),
        ([owner], {}, False),
    ] == said
    assert store.revision == view.configs_revision


def test_a_view_that_is_older_than_a_read_of_configs_is_known_by_the_keys() -> None:
    """
    A key that was written, that is damaged, or that was deleted; a later event of another key says
    that all before it came.
    """
    store = Store()
    key, other = configs_key(ConfigsOwner()), configs_key(ConfigsOwner(group_id="g"))
    view, found = fresh(store), []
    for value in (configs_of("1"), b"{}", None):
        event = store.delete(key) if value is None else store.put(key, value)
        assert event is not None
        there = 0 if value is None else store.revision
        read = [(key, there), (configs_key(ConfigsOwner(node_id=1)), 0)], store.revision + 10
        before = view.has_configs(*read)
        view.apply(CONFIGS_PREFIX, [event])
        found.append((before, view.has_configs(*read)))
    late = [(key, store.revision + 1)], store.revision + 2
    found.append((view.has_configs(*late), view.has_configs([], 10**6)))
    for _ in range(2):
        view.apply(CONFIGS_PREFIX, [store.put(other, configs_of("1"))])

    assert [(False, True)] * 4 == found
    assert view.has_configs(*late)


def _key(event: WatchEvent) -> str:
    return event.kv.key if isinstance(event, PutEvent) else event.key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (agent_key(1), encode_agent(agent(1))),
        (session_key(session_of(1)), encode_live_session(LiveSession(node_id=1))),
        (topic_key("t"), encode_topic(Topic(name="t", topic_id=T, partitions=1))),
        (leader_key(TP), encode_leader(Leader(session_of(1), 4))),
        (configs_key(ConfigsOwner(node_id=7)), configs_of("1")),
    ],
)
@pytest.mark.parametrize("damage", [b"", b"\xa5", b'{"v":99}'])
def test_what_cannot_be_read_counts_as_absent_and_is_named(
    key: str, value: bytes, damage: bytes
) -> None:
    """
    Until it is what it was, or is deleted.
    """
    store = Store()
    store.put(key, value)
    view, prefix = fresh(store), prefix_of(key)
    whole = known(view)
    view.apply(prefix, [store.put(key, damage)])

    found = known(view)
    assert [key] == list(view.damaged)
    assert view.damaged[key].startswith(key)
    assert {**known(fresh(Store())), "damaged": view.damaged} == found
    view.apply(prefix, [store.put(key, value)])
    assert {} == view.damaged
    assert whole["placed"] == known(view)["placed"]
    assert known(fresh(store)) == known(view)
    view.apply(prefix, [store.put(key, damage)])
    event = store.delete(key)
    assert event is not None
    view.apply(prefix, [event])
    assert known(fresh(Store())) == known(view)


@pytest.mark.parametrize("key", ["/driftlog/v1/topics/t/copy", topic_key("other")])
def test_a_topic_under_a_key_that_is_not_its_own_is_none(key: str) -> None:
    """
    Somebody's copy of a topic's value is no second topic of that name.
    """
    store = Store()
    store.put(topic_key("t"), encode_topic(topic()))
    store.put(key, encode_topic(topic(topic_id=UUID(int=99))))

    view = fresh(store)

    assert [T] == list(view.topics)
    assert [key] == list(view.damaged)


def test_a_key_that_is_none_of_ours_is_reported_and_harms_nobody() -> None:
    """
    Under a prefix of ours; a read that lacks it later takes the report back.
    """
    view = ClusterView()
    strange = [KeyValue(f"{prefix}what/is/this", b"{}", 1, 1) for prefix in PREFIXES]
    for prefix, kv in zip(PREFIXES, strange, strict=True):
        view.reset(prefix, 1, [kv])

    assert {kv.key for kv in strange} == view.damaged.keys()
    for prefix in PREFIXES:
        view.reset(prefix, 2, [])
    assert {} == view.damaged


# ── Topics ──


def topic(name: str = "t", topic_id: UUID = T, partitions: int = 1) -> Topic:
    return Topic(name=name, topic_id=topic_id, partitions=partitions)


def test_a_read_of_long_keys_is_applied_a_few_at_a_time() -> None:
    """
    A start applied 500 keys in one step: of groups with names of 32 KB, that took 25 s.
    """
    view, value = ClusterView(), encode_configs({"a": "b"})
    names = [f"{n:03}{'x' * 30_000}" for n in range(100)]
    kvs = [KeyValue(configs_key(ConfigsOwner(group_id=name)), value, 1, 1) for name in names]

    begun = sum(1 for _ in view.resetting(CONFIGS_PREFIX, 1, kvs))
    again = sum(1 for _ in view.resetting(CONFIGS_PREFIX, 2, kvs[:50]))

    assert [33 + 33, 16 + 33] == [begun, again]
    assert 50 == view.configured_groups


def test_a_topic_that_is_made_again_under_its_name_is_another_one() -> None:
    """
    Told as two changes, also where a read saw only the second; placed behind older topics.
    """
    store = Store()
    store.put(topic_key("t"), encode_topic(topic()))
    store.put(topic_key("u"), encode_topic(topic("u", UUID(int=8, version=4))))
    view = fresh(store)
    view.take_topic_changes()
    old = view.topics[T]
    again = topic(topic_id=UUID(int=9, version=4), partitions=3)
    store.delete(topic_key("t"))
    store.put(topic_key("t"), encode_topic(again))
    view.reset(TOPICS_PREFIX, store.revision, store.under(TOPICS_PREFIX))

    new = view.topics[again.topic_id]
    assert [(old, None), (None, new)] == view.take_topic_changes()
    assert [] == view.take_topic_changes()
    assert T not in view.topics
    assert [(UUID(int=8, version=4), 1), (again.topic_id, 3)] == placement_order(
        view.topics.values()
    )


def test_only_what_matters_for_placement_makes_another_plan() -> None:
    """
    Which topics there are and how large; configs do not, though they are told of.
    """
    store = Store()
    view = fresh(store)
    versions, changes = [view.topics_version], []
    for now in (
        topic(),
        replace(topic(), configs={"a": "b"}),
        replace(topic(), configs={"a": "b"}),
        topic(partitions=2),
    ):
        view.apply(TOPICS_PREFIX, [store.put(topic_key("t"), encode_topic(now))])
        versions.append(view.topics_version)
        changes.append(len(view.take_topic_changes()))
    event = store.delete(topic_key("t"))
    assert event is not None
    view.apply(TOPICS_PREFIX, [event])
    versions.append(view.topics_version)

    assert [0, 1, 1, 1, 2, 3] == versions
    assert [1, 1, 1, 1] == changes


def test_a_damaged_topic_is_not_told_of_until_it_is_sure_what_became_of_it() -> None:
    """
    Put back: it is as it was.  Deleted, or another one in its place: then it is gone.
    """
    store = Store()
    store.put(topic_key("t"), encode_topic(topic()))
    view = fresh(store)
    view.take_topic_changes()
    old = view.topics[T]

    view.apply(TOPICS_PREFIX, [store.put(topic_key("t"), b"?")])
    assert ([], []) == (view.take_topic_changes(), placement_order(view.topics.values()))
    version = view.topics_version
    view.apply(TOPICS_PREFIX, [store.put(topic_key("t"), encode_topic(topic()))])
    now = view.topics[T]
    assert [(old, now)] == view.take_topic_changes()
    assert version < view.topics_version
    view.apply(TOPICS_PREFIX, [store.put(topic_key("t"), b"?")])
    another = topic(topic_id=UUID(int=9, version=4))
    view.apply(TOPICS_PREFIX, [store.put(topic_key("t"), encode_topic(another))])
    other = view.topics[another.topic_id]
    assert [(now, None), (None, other)] == view.take_topic_changes()
    view.apply(TOPICS_PREFIX, [store.put(topic_key("t"), b"?")])
    store.delete(topic_key("t"))
    view.reset(TOPICS_PREFIX, store.revision, [])
    assert [(other, None)] == view.take_topic_changes()


def test_the_newest_revision_of_topics_never_goes_back() -> None:
    """
    Of a read, of a put, of a deletion; a read that is older than an event changes it not.
    """
    view = ClusterView()
    view.reset(TOPICS_PREFIX, 5, [])
    kv = KeyValue(topic_key("t"), encode_topic(topic()), 7, 7)
    seen = [view.topics_revision]
    view.apply(TOPICS_PREFIX, [PutEvent(kv)])
    seen.append(view.topics_revision)
    view.apply(TOPICS_PREFIX, [DeleteEvent(topic_key("t"), 9)])
    seen.append(view.topics_revision)
    view.reset(TOPICS_PREFIX, 8, [])
    view.reset(LEADERS_PREFIX, 99, [])
    seen.append(view.topics_revision)

    assert [5, 7, 9, 9] == seen


# ── Agents and sessions ──


def cluster(*members: tuple[int, SessionStage | None], leading: Sequence[int] = ()) -> ClusterView:
    """Agents by node id and what their sessions say; None: the session is gone.

    *leading*: nodes whose session leads a partition each.
    """
    store = Store()
    for node, stage in members:
        store.put(agent_key(node), encode_agent(agent(node)))
        if stage is not None:
            said = LiveSession(node_id=node, stage=stage, topics_revision=node)
            store.put(session_key(session_of(node)), encode_live_session(said))
    for n, node in enumerate(leading):
        tp = TopicPartition(T, n)
        store.put(leader_key(tp), encode_leader(Leader(session_of(node), n)))
    return fresh(store)


STARTING, SERVING, LEAVING = SessionStage.STARTING, SessionStage.SERVING, SessionStage.LEAVING


def test_partitions_are_placed_on_those_who_serve_and_stay() -> None:
    """
    Who starts is placed on where it leads already: it is back on its own disk.
    """
    view = cluster(
        (4, SERVING),
        (2, STARTING),
        (3, STARTING),
        (5, LEAVING),
        (1, None),
        (6, SERVING),
        leading=(3, 5, 4),
    )

    assert [3, 4, 6] == view.placed()
    assert 1 == view.controller_id


def test_who_starts_and_leads_nothing_any_more_is_not_placed_on() -> None:
    """
    Another has claimed it, it was released, or its key went with its topic.
    """
    for entry in (Leader(session_of(2), 8), Leader(None, 8), None):
        view = cluster((1, STARTING), (2, SERVING), leading=(1,))
        before = view.placed()
        kv = KeyValue(leader_key(TP), b"" if entry is None else encode_leader(entry), 9, 9)
        event = DeleteEvent(kv.key, 9) if entry is None else PutEvent(kv)
        view.apply(LEADERS_PREFIX, [event])
        assert ([1, 2], [2]) == (before, view.placed())


def test_an_agent_that_begins_another_session_stays_where_it_was() -> None:
    """
    While its old session is there and its new one has not said that it serves.
    """
    store = Store()
    store.put(agent_key(1), encode_agent(agent(1, life=1)))
    serving = LiveSession(node_id=1, stage=SERVING)
    store.put(session_key(session_of(1, 0)), encode_live_session(serving))
    store.put(session_key(session_of(1, 1)), encode_live_session(LiveSession(node_id=1)))
    view = fresh(store)
    both = view.placed()
    event = store.delete(session_key(session_of(1, 0)))
    assert event is not None
    view.apply(SESSIONS_PREFIX, [event])

    assert [1] == both
    assert [] == view.placed()


def test_a_change_is_seen_by_all_when_everybody_but_who_starts_says_so() -> None:
    """
    Also who leaves: clients ask it still.  Who starts reads the topics before it serves.
    """
    view = cluster((1, STARTING), (5, SERVING), (7, LEAVING))

    assert [True, False, False] == [view.seen_by_all(n) for n in (5, 6, 7)]
    assert [True, False] == [view.seen_by_all(n, but=session_of(5)) for n in (7, 8)]
    assert ClusterView().seen_by_all(99)


def test_a_leader_is_the_agent_whose_present_session_the_key_names() -> None:
    """
    One whose session is over leads nothing, and the epoch is known all the same.
    """
    view = cluster((1, SERVING), (2, None), leading=(1, 2))
    led, gone, never = (TopicPartition(T, n) for n in range(3))

    assert (view.agents[1], 0) == view.leader_of(led)
    assert (None, 1) == view.leader_of(gone)
    assert (None, -1) == view.leader_of(never)
    assert [True, False, False] == [view.is_led(tp) for tp in (led, gone, never)]
    view.apply(AGENTS_PREFIX, [PutEvent(KeyValue(agent_key(1), encode_agent(agent(1, 1)), 9, 9))])
    assert (None, 0) == view.leader_of(led)


@pytest.mark.parametrize("factor", [1, 2, 3, 9])
def test_replicas_are_the_leader_and_those_who_would_lead_next(factor: int) -> None:
    """
    As many as asked for and there are, each once; without a leader those who would lead.
    """
    members = [(n, SERVING) for n in (1, 2, 3)]
    found = {}
    for leader in (1, 2, 3, None):
        view = cluster(*members, leading=() if leader is None else (leader,))
        found[leader] = view.replicas(TP, factor)
        assert min(factor, 3) == len(set(found[leader])) == len(found[leader])
        if leader is not None:
            assert leader == found[leader][0]
    order = found.pop(None)
    for leader, replicas in found.items():
        if leader is not None:
            others = [node for node in order if node != leader]
            assert replicas[1:][: len(others)] == others[: factor - 1]
    assert [] == ClusterView().replicas(TP, factor)


def test_everything_was_read_once_when_each_prefix_was() -> None:
    """
    An empty one too.
    """
    view = ClusterView()
    complete = []
    for prefix in PREFIXES:
        complete.append(view.complete)
        view.reset(prefix, 1, [])

    assert ([False] * len(PREFIXES), True) == (complete, view.complete)
