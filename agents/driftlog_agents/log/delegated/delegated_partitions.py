"""The partitions whose upkeep is delegated to this agent, as the metadata store has them.

    /partitions ──watch──▶ sealed end, manifest version, log start of every partition
    view: leaders, roles ──▶ `cluster/roles` ──▶ this agent is the first for it: ONLINE, else CLOSED

A change of a partition's key is what tells that something was sealed: an idle partition costs no
request.  Two agents whose views differ may work on one partition for a moment, or its leader and
one of them: the first edit makes the other's void, as beside a Spark job.

Pure.
"""

from collections.abc import Iterable, Iterator
from uuid import UUID

from driftlog_agents.cluster.placement import ranked
from driftlog_agents.cluster.roles import has_own_policy, sealing_agents
from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.codec import decode_at, decode_partition_state
from driftlog_metadata.schema.keys import parse_partition_key
from driftlog_metadata.schema.model import PartitionState, Role, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue, PutEvent, WatchEvent


class DelegatedPartition:
    """A `SealedLog` of another agent; its leader alone writes the key that it follows."""

    __slots__ = ("_mine", "_rule", "_topic", "partition", "said", "topic_id", "tp")

    def __init__(self, tp: TopicPartition, rule: "_Rule") -> None:
        self.tp = tp
        self.topic_id: UUID = tp.topic_id
        self.partition = tp.partition
        self.said = PartitionState()
        """Its key."""
        self._rule = rule
        self._topic = ""
        self._mine: tuple[int, str | None, bool] = (-1, None, False)
        """Whether it is delegated to this agent, for a version of the members and a leader."""

    @property
    def topic(self) -> str:
        """Its topic's name, which stays when that is deleted; empty: it is not known yet."""
        if not self._topic and (entry := self._rule.view.topics.get(self.topic_id)) is not None:
            self._topic = entry.topic.name
        return self._topic

    @property
    def has_own_policy(self) -> bool:
        """Whether the topic's own configs say how it is cleaned."""
        return has_own_policy(self._rule.view, self.topic_id)

    def has_topic(self, topic: KeyValue | None) -> bool:
        """Whether the view has its topic as *topic*, the topic's key, has it now."""
        entry = self._rule.view.topics.get(self.topic_id)
        return topic is not None and entry is not None and entry.mod_revision == topic.mod_revision

    @property
    def sealed_end(self) -> int:
        """As `SealedLog.sealed_end`."""
        return self.said.sealed_end

    @property
    def log_start(self) -> int:
        """As `SealedLog.log_start`."""
        return self.said.log_start

    @property
    def manifest_version(self) -> int:
        """As `SealedLog.manifest_version`."""
        return self.said.manifest_version

    @property
    def state(self) -> State:
        """ONLINE: this agent does its upkeep; CLOSED: another one does, or its topic is gone."""
        view = self._rule.view
        if self.topic_id not in view.topics:
            return State.CLOSED
        entry = view.leaders.get(self.tp)
        leader = None if entry is None else entry.leader.session_id
        version, of, is_mine = self._mine
        if (version, of) != (view.members_version, leader):
            is_mine = self._rule.is_mine(self.tp, leader)
            self._mine = view.members_version, leader, is_mine
        return State.ONLINE if is_mine else State.CLOSED


class _Rule:
    """`cluster/roles.upkeep_agents`, of many partitions: the agents that seal are looked for once
    for a version of the members."""

    def __init__(self, view: ClusterView, node_id: int) -> None:
        self.view = view
        self._node_id = node_id
        self._version = -1
        self._sealing: list[int] = []

    def is_mine(self, tp: TopicPartition, leader: str | None) -> bool:
        """Whether the upkeep of *tp* is delegated to this agent.  What has no leader waits for the
        next one."""
        agent = self.view.agent_of(leader)
        if agent is None or Role.SEAL in agent.roles:
            return False
        if self._version != self.view.members_version:
            self._version = self.view.members_version
            self._sealing = sealing_agents(self.view)
        return ranked(tp, self._sealing, 1) == [self._node_id]


class DelegatedPartitions:
    """All partitions of the cluster; see the module."""

    def __init__(self, view: ClusterView, node_id: int) -> None:
        self._view = view
        self._rule = _Rule(view, node_id)
        self._known: dict[TopicPartition, DelegatedPartition] = {}
        self._edited: dict[DelegatedPartition, None] = {}

    def are_needed(self) -> bool:
        """Whether a live agent lacks the role `seal`."""
        return any(Role.SEAL not in agent.roles for agent in self._view.agents.values())

    def all(self) -> list[DelegatedPartition]:
        """The partitions that have keys; only those that are ONLINE are delegated to this agent."""
        return list(self._known.values())

    def edited(self, partition: DelegatedPartition) -> None:
        """Its manifest was edited."""
        self._edited[partition] = None

    def take_edited(self) -> list[DelegatedPartition]:
        """The delegated partitions that were edited since the last call, by whomever."""
        edited, self._edited = self._edited, {}
        return [each for each in edited if each.state is State.ONLINE]

    # ── Updates from the watch ──

    def reset(self, kvs: Iterable[KeyValue]) -> None:
        """Replace all keys by *kvs*."""
        for _ in self.resetting(kvs):
            pass

    def resetting(self, kvs: Iterable[KeyValue]) -> Iterator[None]:
        """As `reset`, key by key: the caller may yield to the loop in between."""
        there: set[TopicPartition] = set()
        for kv in kvs:
            if (tp := self._put(kv)) is not None:
                there.add(tp)
            yield
        for tp in self._known.keys() - there:
            del self._known[tp]

    def apply(self, events: Iterable[WatchEvent]) -> None:
        """Apply the events of the watch, in order."""
        for event in events:
            if isinstance(event, PutEvent):
                self._put(event.kv)
            elif (tp := _parsed(event.key)) is not None:
                self._known.pop(tp, None)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self._edited.clear()

    def _put(self, kv: KeyValue) -> TopicPartition | None:
        """The partition of the key; None: it is unknown or damaged, and nothing is done for it."""
        tp = _parsed(kv.key)
        if tp is None:
            return None
        try:
            said = decode_at(kv.key, kv.value, decode_partition_state)
        except CorruptError:
            self._known.pop(tp, None)  # its leader tells that
            return None
        found = self._known.get(tp)
        if found is None:
            found = self._known[tp] = DelegatedPartition(tp, self._rule)
        elif (found.said.manifest_version, found.said.log_start) != (
            said.manifest_version,
            said.log_start,
        ):
            self.edited(found)
        found.said = said
        return tp


def _parsed(key: str) -> TopicPartition | None:
    try:
        return parse_partition_key(key)
    except ValueError:
        return None
