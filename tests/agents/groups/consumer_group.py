"""A consumer group under a test's hand: what it stores is stored at once, or when the test says."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from driftlog_agents.configs.group_settings import ConsumerSettings
from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    Protocol,
    SyncRequest,
    SyncResponse,
)
from driftlog_agents.groups.consumer.events import ConsumerEffect
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DecideLong,
    DescribedConsumerGroup,
    Downgrade,
    ResolveRegexes,
)
from driftlog_agents.groups.consumer.regex import PatternMatches
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_assignment,
    encode_subscription,
)
from driftlog_agents.protocol.errors import ErrorCode

ORDERS = UUID(int=0xA)
CLICKS = UUID(int=0xB)
AT_ONCE = ConsumerSettings(assignment_interval_ms=0)

Owned = Mapping[UUID, Iterable[int]]


def topics(version: int = 1, **sizes: int) -> ClusterTopics:
    """`orders` and `clicks` of those sizes; others get ids of their own."""
    ids = {"orders": ORDERS, "clicks": CLICKS}
    found = [
        (name, ids.get(name, UUID(bytes=name[:16].ljust(16).encode())), n)
        for name, n in sizes.items()
    ]
    return ClusterTopics(version, found)


def join_request(
    member_id: str,
    names: Iterable[str] = ("orders",),
    owned: Mapping[str, Iterable[int]] | None = None,
    protocols: Iterable[str] = ("range",),
    **said: Any,
) -> JoinRequest:
    """Of a member of the classic protocol, without a word of what needs none."""
    subscription = encode_subscription(
        1,
        ConsumerProtocolSubscription(
            topics=list(names),
            owned_partitions=[
                TopicPartition(topic=topic, partitions=sorted(numbers))
                for topic, numbers in (owned or {}).items()
            ],
        ),
    )
    fields: dict[str, Any] = {
        "version": 3,
        "protocol_type": "consumer",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        **said,
    }
    return JoinRequest(
        client_id="classic",
        client_host="/127.0.0.1",
        member_id=member_id,
        protocols=tuple(Protocol(name, subscription) for name in protocols),
        **fields,
    )


def resolve(
    patterns: Iterable[str],
    topics: ClusterTopics,
    most_ms: float = 5_000,
    now_ms: Callable[[], float] = lambda: 0.0,
) -> dict[str, frozenset[str]]:
    """What is found in all turns."""
    matches = PatternMatches(patterns, topics, most_bytes=1 << 30, most_ms=most_ms, now_ms=now_ms)
    while matches.go_on():
        pass
    return matches.found


class Group:
    """See the module."""

    def __init__(
        self,
        cluster: ClusterTopics | None = None,
        settings: ConsumerSettings = AT_ONCE,
        kind: type[ConsumerGroup] = ConsumerGroup,
    ) -> None:
        self.kind = kind
        self.settings = settings
        self.cluster = cluster or topics(orders=6)
        self._made = 0
        self.machine = kind("g", settings, self.cluster, self.new_member_id)
        self.now_ms = 1_000
        self.stored: dict[str, bytes] = {}
        self.answers: dict[int, object] = {}
        self.to_resolve: list[ResolveRegexes] = []
        self.to_store: list[Persist] = []
        self.to_decide: DecideLong | None = None
        self.downgrades: list[Downgrade] = []
        self.holds = False
        self.requests = 0

    # ── Requests ──

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: Owned | None = None,
        names: Iterable[str] | None = None,
        **said: Any,
    ) -> int:
        request = ConsumerHeartbeat(
            member_id=member_id,
            member_epoch=epoch,
            owned=None if owned is None else {t: frozenset(ps) for t, ps in owned.items()},
            topic_names=None if names is None else tuple(names),
            client_id="client",
            client_host="/127.0.0.1",
            **said,
        )
        self.requests += 1
        self.perform(self.machine.heartbeat(self.requests, request, self.now_ms))
        return self.requests

    def beat(self, member_id: str, epoch: int, **said: Any) -> ConsumerHeartbeatResponse:
        """A heartbeat, and its answer."""
        response = self.answers.pop(self.heartbeat(member_id, epoch, **said))
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    def join(self, member_id: str, **said: Any) -> ConsumerHeartbeatResponse:
        """A full heartbeat with epoch 0."""
        said = {"rebalance_timeout_ms": 60_000, "owned": {}, "names": ["orders"]} | said
        return self.beat(member_id, 0, **said)

    # ── Members of the classic protocol ──

    def enter(self, member_id: str, **said: Any) -> JoinResponse:
        """JoinGroup, and its answer."""
        request = join_request(member_id, **said)
        response = self._asked(lambda id_: self.machine.join(id_, request, self.now_ms))
        assert isinstance(response, JoinResponse)
        return response

    def sync(
        self, member_id: str, generation: int, **said: Any
    ) -> dict[str, list[int]] | ErrorCode:
        """SyncGroup: what the member is to have, or why not."""
        request = SyncRequest(version=3, generation=generation, member_id=member_id, **said)
        response = self._asked(lambda id_: self.machine.sync(id_, request, self.now_ms))
        assert isinstance(response, SyncResponse)
        if response.error:
            return response.error
        assigned = decode_assignment(response.assignment).assigned_partitions
        return {topic.topic: topic.partitions for topic in assigned}

    def lives(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """Heartbeat."""
        request = HeartbeatRequest(
            generation=generation, member_id=member_id, instance_id=instance_id
        )
        response = self._asked(lambda id_: self.machine.heartbeat(id_, request, self.now_ms))
        assert isinstance(response, HeartbeatResponse)
        return response.error

    def leave(self, *members: LeavingMember) -> list[ErrorCode]:
        """LeaveGroup."""
        request = LeaveRequest(members=members)
        response = self._asked(lambda id_: self.machine.leave(id_, request, self.now_ms))
        assert isinstance(response, LeaveResponse)
        return [member.error for member in response.members]

    def send(self, event: Callable[[int], Iterable[ConsumerEffect]]) -> int:
        """A request of either protocol; its id."""
        self.requests += 1
        self.perform(event(self.requests))
        return self.requests

    def _asked(self, event: Callable[[int], Iterable[ConsumerEffect]]) -> object:
        return self.answers.pop(self.send(event))

    def error_of(self, request_id: int) -> ErrorCode:
        """What a heartbeat was refused with."""
        response = self.answers[request_id]
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response.error

    def describe(self) -> DescribedConsumerGroup:
        self.requests += 1
        self.perform(self.machine.describe(self.requests, self.now_ms))
        response = self.answers.pop(self.requests)
        assert isinstance(response, DescribedConsumerGroup)
        return response

    # ── The world ──

    def pass_time(self, ms: int) -> None:
        """Time passes, and the group is woken whenever it wants to be."""
        end = self.now_ms + ms
        while (at := self.machine.deadline_ms) is not None and at <= end:
            self.now_ms = max(at, self.now_ms)
            self.perform(self.machine.tick(self.now_ms))
        self.now_ms = end

    def change_topics(self, cluster: ClusterTopics) -> None:
        self.cluster = self.machine.topics = cluster

    def resolve(self) -> None:
        """Patterns that were to be matched are."""
        while self.to_resolve:
            effect = self.to_resolve.pop()
            resolved = resolve(effect.patterns, effect.topics)
            self.perform(self.machine.regexes_resolved(resolved, self.now_ms))

    def decide(self) -> None:
        """The long decision that was held back is made."""
        effect, self.to_decide = self.to_decide, None
        if effect is not None:
            self.perform(self.machine.decided(effect.decide(), self.now_ms))

    def store(self) -> None:
        """What was held back is stored."""
        while self.to_store:
            persist = self.to_store.pop()
            self.apply(persist)
            self.perform(self.machine.persisted(persist.token, self.now_ms))

    def fail(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """What was held back cannot be stored."""
        persist = self.to_store.pop()
        self.perform(self.machine.not_persisted(persist.token, error, self.now_ms))

    def restart(self) -> None:
        """Another agent coordinates the group from what is stored."""
        self.to_store = []
        self.to_resolve = []
        self.to_decide = None
        self.machine = self.kind.restore(
            "g", self.stored, self.settings, self.cluster, self.new_member_id, self.now_ms
        )

    def perform(self, effects: Iterable[ConsumerEffect]) -> None:
        for effect in effects:
            match effect:
                case Answer(request_id, response):
                    assert request_id not in self.answers, "answered twice"
                    self.answers[request_id] = response
                case Persist():
                    assert not self.to_store, "two writes at a time"
                    self.to_store.append(effect)
                case Downgrade():
                    assert not self.to_store, "two writes at a time"
                    self.downgrades.append(effect)
                case ResolveRegexes():
                    self.to_resolve.append(effect)
                case DecideLong():
                    assert self.to_decide is None, "two decisions at a time"
                    assert not self.to_store, "a decision beside a write"
                    self.to_decide = effect
        if not self.holds:
            self.decide()
            self.store()

    def new_member_id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}-{self._made}"

    def apply(self, persist: Persist) -> None:
        for name, value in persist.puts.items():
            if value is None:
                del self.stored[name]
            else:
                self.stored[name] = value
