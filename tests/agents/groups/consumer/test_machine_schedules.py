"""A KIP-848 group keeps its promises under every order of events that Hypothesis finds.

Members are as clients are: they report what they have, give back what an answer no longer names,
and take what it names anew.  Some speak the classic protocol, cooperatively.  Answers get lost,
writes fail or take long, and the group moves to another agent whenever it likes; the new one knows
what was stored, and nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.configs.group_settings import ConsumerSettings
from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from driftlog_agents.groups.consumer.assignors import Partition
from driftlog_agents.groups.consumer.events import ConsumerEffect
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import ConsumerHeartbeatResponse
from driftlog_agents.groups.consumer.stored_value import HEAD, decode_head
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.consumer_protocol import decode_assignment
from driftlog_agents.protocol.errors import ErrorCode
from tests.agents.groups.consumer_group import Group, join_request, topics

NAMES = ("orders", "clicks", "other")
SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"names": ["orders"]},
    {"names": ["orders", "clicks"]},
    {"names": ["other", "missing"]},
    {"names": [], "topic_regex": "o.*"},
    {"names": ["clicks"], "topic_regex": "orders|missing"},
]


@dataclass
class Client:
    """A member, as it sees itself."""

    member_id: str
    instance_id: str | None
    subscription: dict[str, Any]
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    is_full: bool = True

    def request(self) -> dict[str, Any]:
        owned: dict[UUID, set[int]] = {}
        for topic, partition in self.owned:
            owned.setdefault(topic, set()).add(partition)
        said: dict[str, Any] = {"owned": owned, "instance_id": self.instance_id}
        if self.is_full or self.epoch == 0:
            said |= {"rebalance_timeout_ms": 30_000, "topic_regex": "", **self.subscription}
        return said

    def hear(self, response: ConsumerHeartbeatResponse) -> None:
        match response.error:
            case ErrorCode.NONE:
                self.epoch = response.member_epoch
                self.is_full = False
                if response.assignment is not None:
                    self.owned = {
                        (topic, p)
                        for topic, numbers in response.assignment.items()
                        for p in numbers
                    }
            case (
                ErrorCode.FENCED_MEMBER_EPOCH
                | ErrorCode.UNKNOWN_MEMBER_ID
                | ErrorCode.FENCED_INSTANCE_ID
            ):
                self.epoch, self.owned = 0, set()
            case _:
                self.is_full = True


@dataclass
class ClassicClient(Client):
    """A member that joins, syncs and heartbeats; its epoch is its generation, 0: it has to join."""

    synced: bool = False
    names: dict[str, UUID] = field(default_factory=dict)
    """Ids of the topics that it has partitions of."""

    def event(self, group: Group) -> Callable[[int], Iterable[ConsumerEffect]]:
        """What it asks next."""
        now_ms = group.now_ms
        if self.epoch <= 0:
            owned: dict[str, set[int]] = {}
            for name, topic in self.names.items():
                owned[name] = {p for t, p in self.owned if t == topic}
            join = join_request(self.member_id, self.subscription["names"], owned)
            return lambda id_: group.machine.join(id_, join, now_ms)
        if not self.synced:
            sync = SyncRequest(version=3, generation=self.epoch, member_id=self.member_id)
            return lambda id_: group.machine.sync(id_, sync, now_ms)
        beat = HeartbeatRequest(generation=self.epoch, member_id=self.member_id)
        return lambda id_: group.machine.heartbeat(id_, beat, now_ms)

    def heard(self, response: object, cluster: ClusterTopics) -> None:
        match response:
            case JoinResponse(error=ErrorCode.NONE):
                self.epoch, self.synced = response.generation, False
            case SyncResponse(error=ErrorCode.NONE):
                found = decode_assignment(response.assignment).assigned_partitions
                self.names = {t.topic: cluster.by_name[t.topic].topic_id for t in found}
                self.owned = {(self.names[t.topic], p) for t in found for p in t.partitions}
                self.synced = True
            case HeartbeatResponse(error=ErrorCode.NONE) | LeaveResponse():
                pass
            case (
                SyncResponse(error=ErrorCode.REBALANCE_IN_PROGRESS)
                | HeartbeatResponse(error=ErrorCode.REBALANCE_IN_PROGRESS)
                | JoinResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
                | SyncResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
                | HeartbeatResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            ):
                self.epoch = 0
            case _:  # Its generation is over, or the group does not know it: all is lost.
                self.epoch, self.owned = 0, set()


class LongGroup(ConsumerGroup):
    """A thread makes each of its decisions."""

    long_partitions = -1


class ConsumerGroupMachine(RuleBasedStateMachine):
    kind: type[ConsumerGroup] = ConsumerGroup

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(
            topics(orders=3, clicks=2, other=1),
            # Going down is held to by `test_consumer_migration`: here the group stays what it is.
            ConsumerSettings(assignment_interval_ms=1_000, migration_policy="upgrade"),
            self.kind,
        )
        self.group.holds = True
        self.clients: dict[str, Client] = {}
        self.asked: dict[int, Client] = {}
        """Requests that were not answered yet."""
        self.made = 0
        self.told_epoch: dict[str, int] = {}
        self.stored_epoch = (0, 0)

    # ── Members ──

    @rule(subscription=st.sampled_from(SUBSCRIPTIONS), instance=st.sampled_from([None, "i", "j"]))
    @precondition(lambda self: len(self.clients) < 5)
    def joins(self, subscription: dict[str, Any], instance: str | None) -> None:
        self.made += 1
        client = Client(f"m{self.made}", instance, subscription)
        self.clients[client.member_id] = client
        self._send(client)

    @rule(subscription=st.sampled_from([s for s in SUBSCRIPTIONS if "topic_regex" not in s]))
    @precondition(lambda self: len(self.clients) < 5)
    def joins_as_of_old(self, subscription: dict[str, Any]) -> None:
        self.made += 1
        client = ClassicClient(f"k{self.made}", None, subscription)
        self.clients[client.member_id] = client
        self._send(client)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def beats(self, data: st.DataObject) -> None:
        self._send(self._one(data))

    @rule()
    def all_beat(self) -> None:
        for client in list(self.clients.values()):
            self._send(client)

    @rule(data=st.data(), subscription=st.sampled_from(SUBSCRIPTIONS))
    @precondition(lambda self: self.clients)
    def subscribes_anew(self, data: st.DataObject, subscription: dict[str, Any]) -> None:
        client = self._one(data)
        if not self._waits(client) and not isinstance(client, ClassicClient):
            client.subscription = subscription
            client.is_full = True
            self._send(client)

    @rule(data=st.data(), epoch=st.sampled_from([-1, -2]))
    @precondition(lambda self: self.clients)
    def leaves(self, data: st.DataObject, epoch: int) -> None:
        client = self._one(data)
        if not self._waits(client):
            del self.clients[client.member_id]
            if isinstance(client, ClassicClient):
                leave = LeaveRequest(members=(LeavingMember(member_id=client.member_id),))
                machine, now_ms = self.group.machine, self.group.now_ms
                left = self.group.send(lambda id_: machine.leave(id_, leave, now_ms))
                self.asked[left] = client
                return
            epoch = -1 if client.instance_id is None else epoch
            self._ask(client, epoch, {"instance_id": client.instance_id})

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def dies(self, data: st.DataObject) -> None:
        del self.clients[self._one(data).member_id]

    # ── The world ──

    @rule()
    def stores(self) -> None:
        if self.group.to_store:
            persist = self.group.to_store[0]
            self.group.holds = True
            self.group.to_store = []
            self.group.apply(persist)
            self.group.perform(self.group.machine.persisted(persist.token, self.group.now_ms))
        self._hear()

    @rule()
    @precondition(lambda self: self.group.to_decide)
    def decides(self) -> None:
        """The thread has made a long decision."""
        self.group.decide()
        self._hear()

    @rule()
    @precondition(lambda self: self.group.to_store)
    def cannot_store(self) -> None:
        self.group.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._hear()

    @rule()
    def loses_answers(self) -> None:
        for id_ in list(self.group.answers):
            client = self.asked.pop(id_)
            client.is_full = True
            if isinstance(client, ClassicClient):
                client.epoch = 0
            del self.group.answers[id_]

    @rule(stored=st.booleans())
    def moves(self, stored: bool) -> None:
        """To another agent; what was being stored is, or is not, and nobody knows."""
        if stored and self.group.to_store:
            self.group.apply(self.group.to_store[0])
        for client in self.asked.values():
            client.is_full = True
            if isinstance(client, ClassicClient):
                client.epoch = 0
        self.asked = {}
        self.group.answers = {}
        if "" in self.group.stored:
            self.group.restart()
        else:
            self.group.to_store, self.group.to_resolve, self.group.to_decide = [], [], None
            self.group.machine = type(self.group.machine)(
                "g", self.group.settings, self.group.cluster, self.group.new_member_id
            )

    @rule()
    def patterns_are_matched(self) -> None:
        self.group.resolve()

    @rule(sizes=st.tuples(*(st.integers(0, 4) for _ in NAMES)), again=st.booleans())
    def topics_change(self, sizes: tuple[int, ...], again: bool) -> None:
        known = self.group.cluster.by_name
        found: list[tuple[str, UUID, int]] = []
        for i, (name, size) in enumerate(zip(NAMES, sizes, strict=True)):
            old = known.get(name)
            if old is None or again:
                id_ = UUID(int=self.group.cluster.version * 10 + i + 1_000)
                found += [(name, id_, size)] if size else []
            else:
                found.append((name, old.topic_id, max(size, old.partitions)))
        self.group.change_topics(ClusterTopics(self.group.cluster.version + 1, found))

    @rule(ms=st.sampled_from([1, 900, 5_000, 11_000, 29_000, 46_000]))
    def time_passes(self, ms: int) -> None:
        self.group.pass_time(ms)
        self._hear()

    # ── What must hold ──

    @invariant()
    def no_partition_is_two_members(self) -> None:
        """In what the group knows, and in what members that it knows were told."""
        seen: dict[Partition, str] = {}
        for member in self.group.machine.members.values():
            for partition in [*member.assigned, *member.pending]:
                assert partition not in seen
                seen[partition] = member.member_id
        holders: dict[Partition, str] = {}
        for client in self.clients.values():
            known = self.group.machine.members.get(client.member_id)
            if known is not None and known.epoch == client.epoch != 0:
                for partition in client.owned:
                    assert partition not in holders, (partition, client, self.clients)
                    holders[partition] = client.member_id

    @invariant()
    def epochs_never_go_back(self) -> None:
        if "" in self.group.stored and not self.group.to_store:
            head = decode_head(self.group.stored[HEAD])
            assert (head.epoch, head.assignment_epoch) >= self.stored_epoch
            assert head.assignment_epoch >= self.stored_epoch[1]
            self.stored_epoch = (head.epoch, head.assignment_epoch)

    def teardown(self) -> None:
        """Left alone, members come to share all that they subscribe to."""
        self.group.holds = False
        self.group.decide()
        self.group.store()
        self.group.resolve()
        self._hear()
        assert {} == self.asked, "a request was never answered"
        for client in self.clients.values():
            client.is_full = True
        for _ in range(30):
            self.group.pass_time(5_000)
            for client in list(self.clients.values()):
                for _ in range(3 if isinstance(client, ClassicClient) else 1):
                    self._send(client)
                    self.group.resolve()
                    self._hear()
        self._check_all_assigned()

    def _check_all_assigned(self) -> None:
        cluster = self.group.cluster
        alive = [c for c in self.clients.values() if c.epoch > 0]
        wanted: set[Partition] = set()
        for client in alive:
            pattern = client.subscription.get("topic_regex", "")
            matched = {"o.*": {"orders", "other"}, "orders|missing": {"orders"}}.get(pattern, set())
            for name in {*client.subscription["names"], *matched} & cluster.by_name.keys():
                topic = cluster.by_name[name]
                wanted |= {(topic.topic_id, p) for p in range(topic.partitions)}
        has = [partition for client in alive for partition in client.owned]
        assert sorted(wanted) == sorted(has)
        assert self.group.machine.state in ("Stable", "Empty")
        blocked = {c.instance_id for c in self.clients.values() if c.epoch <= 0}
        assert blocked <= {c.instance_id for c in alive}, "nobody gets in"

    # ── Requests ──

    def _one(self, data: st.DataObject) -> Client:
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    def _waits(self, client: Client) -> bool:
        return any(asked is client for asked in self.asked.values())

    def _send(self, client: Client) -> None:
        if not self._waits(client):
            if isinstance(client, ClassicClient):
                self.asked[self.group.send(client.event(self.group))] = client
            else:
                self._ask(client, client.epoch, client.request())
            self._hear()

    def _ask(self, client: Client, epoch: int, said: dict[str, Any]) -> None:
        if epoch == 0:
            said["owned"] = {}
        id_ = self.group.heartbeat(client.member_id, epoch, **said)
        self.asked[id_] = client

    def _hear(self) -> None:
        for id_ in list(self.group.answers):
            client = self.asked.pop(id_)
            response = self.group.answers.pop(id_)
            if isinstance(client, ClassicClient):
                client.heard(response, self.group.cluster)
            else:
                assert isinstance(response, ConsumerHeartbeatResponse)
                client.hear(response)


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestConsumerGroup = ConsumerGroupMachine.TestCase


class LongDecisionsMachine(ConsumerGroupMachine):
    kind = LongGroup


LongDecisionsMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=60, deadline=None
)
TestLongDecisions = LongDecisionsMachine.TestCase
