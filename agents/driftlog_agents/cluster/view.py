"""The cluster as one agent sees it: live agents, sessions, topics, configs, leaders.

    /agents  /sessions  /topics  /configs  /leaders ──watches──▶ ClusterView ──▶ Metadata answers,
    /deleted: its bytes only                                                     placement, claims

The view may be behind the store: each prefix has the revision of its own watch.  So every decision
that depends on it is checked again in the store: a claim compares the revisions of the view.

Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar
from uuid import UUID

from driftlog_agents.cluster.placement import ranked
from driftlog_metadata.schema.codec import (
    decode_agent,
    decode_at,
    decode_configs,
    decode_leader,
    decode_live_session,
    decode_topic,
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
    leader_key,
    parse_agent_key,
    parse_configs_key,
    parse_deleted_key,
    parse_leader_key,
    parse_session_key,
    parse_topic_key,
    session_key,
)
from driftlog_metadata.schema.model import (
    Agent,
    ConfigsOwner,
    Leader,
    LiveSession,
    Role,
    SessionStage,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue, PutEvent, WatchEvent

PREFIXES: Final = (
    AGENTS_PREFIX,
    SESSIONS_PREFIX,
    TOPICS_PREFIX,
    DELETED_PREFIX,
    CONFIGS_PREFIX,
    LEADERS_PREFIX,
)
"""The watched prefixes."""

_COUNTED: Final = frozenset({TOPICS_PREFIX, DELETED_PREFIX, CONFIGS_PREFIX})
"""Those of `ClusterView.stored_bytes`."""

_SLICE_KEYS: Final = 500
"""Keys that are applied between two yields to the loop.  Fewer: a large read takes longer; more:
the loop is blocked for more than some milliseconds."""

_SLICE_BYTES: Final = 64 * 1024
"""The same of their bytes: a topic's configs may have 16 KB, and a group's name 32 KB."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A live session."""

    session_id: str
    said: LiveSession
    create_revision: int


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic and the revisions of its key."""

    topic: Topic
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class LeaderEntry:
    """A partition's leader and the revision of its key."""

    leader: Leader
    mod_revision: int


def placement_order(topics: Iterable[TopicEntry]) -> list[tuple[UUID, int]]:
    """(topic id, partitions) of *topics* in the order of their creation."""
    entries = sorted(topics, key=lambda e: (e.create_revision, e.topic.topic_id.int))
    return [(e.topic.topic_id, e.topic.partitions) for e in entries]


TopicChange = tuple[TopicEntry | None, TopicEntry | None]
"""A topic before and after a change; None: it did not, or does not, exist."""


class ClusterView:
    """See the module.  Only `reset` and `apply` change it."""

    def __init__(self) -> None:
        self.agents: dict[int, Agent] = {}
        """Live agents by node id."""
        self.sessions: dict[str, SessionEntry] = {}
        """Live sessions by session id."""
        self.topics: dict[UUID, TopicEntry] = {}
        self.configs: dict[ConfigsOwner, Mapping[str, str]] = {}
        """The configs that are set on brokers and groups."""
        self.configured_groups = 0
        """The number of groups among them."""
        self.leaders: dict[TopicPartition, LeaderEntry] = {}
        self.loaded: set[str] = set()
        """Prefixes that were read at least once."""
        self.members_version = 0
        """Counts changes of agents and sessions."""
        self.topics_version = 0
        """Counts changes of topics that affect placement: created, deleted, more partitions."""
        self.topics_revision = 0
        """The newest revision of a topic's key, or of the read before its watch."""
        self.configs_revision = 0
        """The same of the keys of configs."""
        self._configs_revisions: dict[str, int] = {}
        """The revision of each key of configs, which may be unreadable."""
        self.damaged: dict[str, str] = {}
        """Unreadable keys and the reasons.  They count as absent, but not as deleted: no client is
        told that a topic is deleted because its key cannot be read."""
        self._hidden: dict[str, TopicEntry] = {}
        """Last readable entries of topics whose keys are damaged now, by topic key."""
        self.stored_bytes = 0
        """Bytes of the keys and values of topics, tombstones and configs in the metadata store."""
        self._stored: dict[str, int] = {}
        """The same of each key."""
        self.plan: Mapping[TopicPartition, int] = {}
        """This agent's last placement (`log/leadership/partition_claims` sets it)."""
        self._leads: dict[str, int] = {}
        """Number of partitions that name a session as leader, by session id."""
        self._unreadable_leaders: dict[TopicPartition, int] = {}
        """Revision of each leader key that is there and cannot be read."""
        self._topic_ids: dict[str, UUID] = {}
        """Topic id by topic key."""
        self._topic_changes: list[TopicChange] = []
        self._config_changes: dict[ConfigsOwner, None] = {}

    @property
    def complete(self) -> bool:
        """Whether every prefix was read at least once."""
        return len(self.loaded) == len(PREFIXES)

    # ── Queries ──

    def serving_agents(self) -> dict[int, Agent]:
        """The live agents with the role `serve`, by node id: clients see these, and only these."""
        return {node: agent for node, agent in self.agents.items() if Role.SERVE in agent.roles}

    @property
    def controller_id(self) -> int:
        """The agent that does the cluster-wide work: the lowest node id of `serving_agents`; -1:
        there are none.

        Clients get a serving agent (`handlers/common/cluster_metadata`), which may differ for
        moments.
        """
        return min(self.serving_agents(), default=-1)

    def leader_of(self, tp: TopicPartition) -> tuple[Agent | None, int]:
        """The live agent that leads *tp*, if any, and the leader epoch; -1: never led.

        An agent without the role `serve` that leads *tp* is about to release it: it only commits
        what an earlier session left on its disk.
        """
        entry = self.leaders.get(tp)
        if entry is None:
            return None, -1
        agent, epoch = self.agent_of(entry.leader.session_id), entry.leader.leader_epoch
        return (agent if agent is not None and Role.SERVE in agent.roles else None), epoch

    def heir_of(self, tp: TopicPartition) -> Agent | None:
        """The planned leader of *tp* if it was released or its leader is dead; else None."""
        entry = self.leaders.get(tp)
        if entry is None or entry.leader.session_id in self.sessions:
            return None
        return self.agents.get(self.plan.get(tp, -1))

    def agent_of(self, session_id: str | None) -> Agent | None:
        """The agent whose current session this is, if any."""
        session = self.sessions.get(session_id or "")
        if session is None:
            return None
        agent = self.agents.get(session.said.node_id)
        return agent if agent is not None and agent.session_id == session_id else None

    def leader_revision(self, tp: TopicPartition) -> int:
        """Revision of the leader key of *tp*, which may be unreadable; 0: there is none."""
        entry = self.leaders.get(tp)
        return self._unreadable_leaders.get(tp, 0) if entry is None else entry.mod_revision

    def is_led(self, tp: TopicPartition) -> bool:
        """Whether a live session leads *tp*."""
        entry = self.leaders.get(tp)
        return entry is not None and entry.leader.session_id in self.sessions

    def replicas(self, tp: TopicPartition, replication_factor: int) -> list[int]:
        """The leader, then other agents that serve by their scores: min(RF, agents) node ids.

        The bucket is the only replica; the answer names the agents that would lead next in its
        place.
        """
        leader, _ = self.leader_of(tp)
        agents = self.serving_agents()
        count = min(replication_factor, len(agents))
        if leader is not None and count == 1:
            return [leader.node_id]
        others = ranked(tp, agents, count)
        if leader is None:
            return others
        return [leader.node_id, *(node for node in others if node != leader.node_id)][:count]

    def placed(self) -> list[int]:
        """Node ids that partitions are placed on, ascending: agents with the role `serve` that are
        ready and do not leave.

        An agent that restarted on its own disk counts before its new session serves: it leads, or
        is about to lead, its previous partitions.
        """
        nodes: list[int] = []
        serving = {
            entry.said.node_id
            for entry in self.sessions.values()
            if entry.said.stage is SessionStage.SERVING
        }
        for node, agent in self.serving_agents().items():
            session = self.sessions.get(agent.session_id)
            if session is None or session.said.stage is SessionStage.LEAVING:
                continue
            if node in serving or self._leads.get(agent.session_id):
                nodes.append(node)
        return sorted(nodes)

    def seen_by_all(self, revision: int, *, but: str = "") -> bool:
        """Whether every serving or leaving session, *but* one, has seen the topics at *revision*.
        A starting session reads them before it serves.

        So have agents without the role `serve`: they compact by the policies of topics, too.
        """
        return all(
            entry.said.topics_revision >= revision
            for entry in self.sessions.values()
            if entry.said.stage is not SessionStage.STARTING and entry.session_id != but
        )

    def has_unreadable_configs(self, *owners: ConfigsOwner) -> bool:
        """Whether the configs of one of *owners* are set and cannot be read."""
        return any(configs_key(owner) in self.damaged for owner in owners)

    def has_configs(self, keys: Iterable[tuple[str, int]], read_revision: int) -> bool:
        """Whether the view is not older than a read of *keys* of configs at *read_revision*, each
        with its revision; 0: it was not there."""
        return self.configs_revision >= read_revision or all(
            self._configs_revisions.get(key, 0) == revision for key, revision in keys
        )

    # ── Updates from watches ──

    def reset(self, prefix: str, revision: int, kvs: Iterable[KeyValue]) -> None:
        """Replace *prefix* by *kvs*, all its keys at *revision*."""
        for _ in self.resetting(prefix, revision, kvs):
            pass

    def resetting(self, prefix: str, revision: int, kvs: Iterable[KeyValue]) -> Iterator[None]:
        """As `reset`, in slices: the caller may yield to the loop in between.

        Meanwhile each key has its old or its new value; nothing else may change the prefix.
        """
        there: set[str] = set()
        for kv, is_last in _in_slices(kvs, lambda kv: len(kv.key) + len(kv.value)):
            there.add(kv.key)
            self._put(prefix, kv)
            if is_last:
                yield
        gone: list[str] = []
        for key, is_last in _in_slices(self._keys(prefix), len):
            if key not in there:
                gone.append(key)
            if is_last:
                yield
        for key in sorted(set(gone)):
            self._delete(prefix, key)
        self._seen(prefix, revision)
        self.loaded.add(prefix)
        self._changed(prefix)

    def apply(self, prefix: str, events: Iterable[WatchEvent]) -> None:
        """Apply the events of a watch on *prefix*, in order."""
        for event in events:
            if isinstance(event, PutEvent):
                self._put(prefix, event.kv)
                revision = event.kv.mod_revision
            else:
                self._delete(prefix, event.key)
                revision = event.mod_revision
            self._seen(prefix, revision)
        self._changed(prefix)

    def take_topic_changes(self) -> list[TopicChange]:
        """The changes of topics since the last call, in order."""
        changes, self._topic_changes = self._topic_changes, []
        return changes

    def take_config_changes(self) -> list[ConfigsOwner]:
        """What other configs may be set on since the last call: their keys were read, damaged or
        deleted."""
        changes, self._config_changes = list(self._config_changes), {}
        return changes

    def _seen(self, prefix: str, revision: int) -> None:
        if prefix == TOPICS_PREFIX:
            self.topics_revision = max(self.topics_revision, revision)
        elif prefix == CONFIGS_PREFIX:
            self.configs_revision = max(self.configs_revision, revision)

    def _changed(self, prefix: str) -> None:
        if prefix in (AGENTS_PREFIX, SESSIONS_PREFIX):
            self.members_version += 1

    def _keys(self, prefix: str) -> Iterator[str]:
        """The known keys of *prefix*; a damaged key may appear twice."""
        damaged = [key for key in self.damaged if key.startswith(prefix)]
        if prefix == AGENTS_PREFIX:
            return chain(damaged, map(agent_key, list(self.agents)))
        if prefix == SESSIONS_PREFIX:
            return chain(damaged, map(session_key, list(self.sessions)))
        if prefix == TOPICS_PREFIX:
            return chain(damaged, list(self._topic_ids))
        if prefix == CONFIGS_PREFIX:
            return chain(damaged, map(configs_key, list(self.configs)))
        if prefix == DELETED_PREFIX:
            return chain(damaged, [key for key in self._stored if key.startswith(prefix)])
        return chain(damaged, map(leader_key, list(self.leaders)))

    def _put(self, prefix: str, kv: KeyValue) -> None:
        self.damaged.pop(kv.key, None)
        self.stored_bytes -= self._stored.pop(kv.key, 0)
        try:
            if prefix == AGENTS_PREFIX:
                self.agents[parse_agent_key(kv.key)] = decode_at(kv.key, kv.value, decode_agent)
            elif prefix == SESSIONS_PREFIX:
                session_id = parse_session_key(kv.key)
                said = decode_at(kv.key, kv.value, decode_live_session)
                self.sessions[session_id] = SessionEntry(session_id, said, kv.create_revision)
            elif prefix == TOPICS_PREFIX:
                topic = decode_at(kv.key, kv.value, decode_topic)
                if parse_topic_key(kv.key) != topic.name:
                    raise CorruptError(f"{kv.key}: it says that it is of {topic.name!r}")
                self._put_topic(kv, topic)
            elif prefix == CONFIGS_PREFIX:
                configs = decode_at(kv.key, kv.value, decode_configs)
                owner = parse_configs_key(kv.key)
                if owner not in self.configs and owner.group_id is not None:
                    self.configured_groups += 1
                self.configs[owner] = configs
                self._config_changes[owner] = None
            elif prefix == DELETED_PREFIX:
                parse_deleted_key(kv.key)
            else:
                leader = decode_at(kv.key, kv.value, decode_leader)
                self._put_leader(parse_leader_key(kv.key), LeaderEntry(leader, kv.mod_revision))
        except (CorruptError, ValueError) as error:
            if prefix == TOPICS_PREFIX:
                self._hide_topic(kv.key)
            else:
                self._delete(prefix, kv.key)
            self.damaged[kv.key] = str(error)
            if prefix == LEADERS_PREFIX:
                with suppress(ValueError):
                    self._unreadable_leaders[parse_leader_key(kv.key)] = kv.mod_revision
        if prefix == CONFIGS_PREFIX:
            self._configs_revisions[kv.key] = kv.mod_revision
        if prefix in _COUNTED:
            size_bytes = self._stored[kv.key] = len(kv.key) + len(kv.value)
            self.stored_bytes += size_bytes

    def _put_topic(self, kv: KeyValue, topic: Topic) -> None:
        hidden = self._hidden.get(kv.key)
        was = self._topic_ids.get(kv.key) if hidden is None else hidden.topic.topic_id
        if was not in (None, topic.topic_id):
            self._drop_topic(kv.key)  # recreated between two reads
        old = self.topics.get(topic.topic_id) or self._hidden.pop(kv.key, None)
        entry = TopicEntry(topic, kv.create_revision, kv.mod_revision)
        self._topic_ids[kv.key] = topic.topic_id
        self.topics[topic.topic_id] = entry
        if old is None or hidden is not None or old.topic.partitions != topic.partitions:
            self.topics_version += 1
        if old != entry:
            self._topic_changes.append((old, entry))

    def _hide_topic(self, key: str) -> None:
        topic_id = self._topic_ids.pop(key, None)
        if topic_id is not None:
            self._hidden[key] = self.topics.pop(topic_id)
            self.topics_version += 1

    def _drop_topic(self, key: str) -> None:
        self._hide_topic(key)
        hidden = self._hidden.pop(key, None)
        if hidden is not None:
            self._topic_changes.append((hidden, None))

    def _put_leader(self, tp: TopicPartition, entry: LeaderEntry) -> None:
        self._drop_leader(tp)
        self.leaders[tp] = entry
        session_id = entry.leader.session_id
        if session_id is not None:
            self._leads[session_id] = self._leads.get(session_id, 0) + 1

    def _drop_leader(self, tp: TopicPartition) -> None:
        self._unreadable_leaders.pop(tp, None)
        old = self.leaders.pop(tp, None)
        if old is None or old.leader.session_id is None:
            return
        session_id = old.leader.session_id
        self._leads[session_id] -= 1
        if not self._leads[session_id]:
            del self._leads[session_id]

    def _delete(self, prefix: str, key: str) -> None:
        self.damaged.pop(key, None)
        self._configs_revisions.pop(key, None)
        self.stored_bytes -= self._stored.pop(key, 0)
        if prefix == TOPICS_PREFIX:
            self._drop_topic(key)
            return
        try:
            if prefix == AGENTS_PREFIX:
                self.agents.pop(parse_agent_key(key), None)
            elif prefix == SESSIONS_PREFIX:
                self.sessions.pop(parse_session_key(key), None)
            elif prefix == CONFIGS_PREFIX:
                owner = parse_configs_key(key)
                if self.configs.pop(owner, None) is not None and owner.group_id is not None:
                    self.configured_groups -= 1
                self._config_changes[owner] = None
            elif prefix == LEADERS_PREFIX:
                self._drop_leader(parse_leader_key(key))
        except ValueError:
            return  # an unrecognised key, which was never added


def _in_slices(items: Iterable[_T], size_bytes: Callable[[_T], int]) -> Iterator[tuple[_T, bool]]:
    """Each of *items*, and whether it is the last of its slice."""
    count = total_bytes = 0
    for item in items:
        count += 1
        total_bytes += size_bytes(item)
        is_last = count == _SLICE_KEYS or total_bytes >= _SLICE_BYTES
        if is_last:
            count = total_bytes = 0
        yield item, is_last
