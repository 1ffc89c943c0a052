"""Membership of a group of KIP-848: how each heartbeat changes the group.

    heartbeat ──▶ find member ──▶ update subscription ──changed──▶ group epoch + 1
                                                                         │
       answer ◀── reconcile: revoke, then assign ◀── compute target ◀────┘

A decision changes the `ConsumerGroupState` at once.  `consumer/machine` holds its answer until the
change is stored, and undoes the change if the write fails.  It also undoes the changes of a
decision that raises `RefusedError`.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager#consumerGroupHeartbeat and the
methods that it calls (4.3).
Pure.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from driftlog_agents.configs.group_settings import ConsumerSettings
from driftlog_agents.groups.consumer.assignors import ASSIGNORS, MemberSpec, Partition
from driftlog_agents.groups.consumer.messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    ResolveRegexes,
)
from driftlog_agents.groups.consumer.reconciliation import Owned, reconciled
from driftlog_agents.groups.consumer.state import (
    ConsumerGroupMember,
    ConsumerGroupState,
    Head,
    MemberState,
)
from driftlog_agents.groups.consumer.timers import Timer, TimerKind, Timers
from driftlog_agents.groups.sizes import texts_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

_REGEX_MIN_INTERVAL_MS: Final = 10_000
"""Least time between two matchings of patterns (Kafka: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS)."""

_MAX_PATTERNS: Final = 100
"""Most patterns of a group: each is matched with the names of all topics.  Members of one group
usually have the same one."""

_LAST_EPOCH: Final = 2**31 - 1_000_000
"""The epoch after which a group restarts at 1; no single write raises it by the million that
remains."""

_NONE: Final[frozenset[Partition]] = frozenset()


class Membership:
    """See the module."""

    def __init__(self, group_id: str, settings: ConsumerSettings, topics: ClusterTopics) -> None:
        self.group_id: Final = group_id
        self.settings = settings
        self.state: Final = ConsumerGroupState()
        self.timers: Final = Timers()
        self.topics = topics
        self._hashed: ClusterTopics | None = None
        """The topics of the last comparison with the head's hash."""
        self._resolving: tuple[ClusterTopics, int] | None = None
        """Topics and start (ms) of the matching in progress."""
        self._resolved: tuple[ClusterTopics, int] | None = None
        """Topics and start (ms) of the last matching of the head's patterns."""
        self._matched: tuple[object, int] = (None, 0)
        """The head's regexes, and the memory of the names that they match; a cache."""
        self._targeted: tuple[object, int] = (None, 0)
        """The head's target, and its number of partitions; a cache."""
        self._subscribed: tuple[tuple[object, ...], int] = ((), 0)
        """Topics, subscriptions and patterns, and the partitions of what they name; a cache."""
        self.downgrading: bool | None = None
        """None: no downgrade.  Else the group becomes a classic one; True: which rebalances."""

    # ── Heartbeats ──

    def heartbeat(
        self, request: ConsumerHeartbeat, now_ms: int
    ) -> tuple[ConsumerHeartbeatResponse, ResolveRegexes | None]:
        """Apply a heartbeat; return the answer, and patterns to match, if any.

        Raises:
            RefusedError: the heartbeat is refused; the caller undoes its changes.
        """
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request), None
        self.refuse_if_full(request.member_id)
        old = self._member_of(request)
        member = _updated(old, request)
        self.state.put(member)
        resolve = self.match_patterns(old, member, now_ms)
        regex_changed = old.topic_regex != member.topic_regex
        names_changed = old.topic_names != member.topic_names
        regex_resolved = regex_changed and (
            not member.topic_regex or member.topic_regex in self.state.head.regexes
        )
        self.raise_epoch(names_changed or regex_resolved)
        self.assign(now_ms)
        member = self.reconcile(
            member, subscription_changed=names_changed or regex_changed, owned=request.owned
        )
        self._watch_revocation(old, member, now_ms)
        self.timers.set(
            TimerKind.SESSION, member.member_id, now_ms + self.settings.session_timeout_ms
        )
        tells = (
            request.member_epoch == JOIN_EPOCH or request.is_full or member.assigned != old.assigned
        )
        response = ConsumerHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            assignment=by_topic(member.assigned) if tells else None,
        )
        return response, resolve

    @property
    def size_bytes(self) -> int:
        """Bytes that the group keeps from its members, with the names that patterns match."""
        regexes = self.state.head.regexes
        if self._matched[0] is not regexes:
            self._matched = regexes, sum(map(texts_bytes, regexes.values()))
        return self.state.size_bytes + self._matched[1]

    @property
    def assigned(self) -> int:
        """Partitions of the target, and of what members have."""
        target = self.state.head.target
        if self._targeted[0] is not target:
            self._targeted = target, sum(map(len, target.values()))
        return self.state.owned + self._targeted[1]

    @property
    def subscribed(self) -> int:
        """Partitions of the topics that members subscribe to."""
        key = (self.topics, self.state.subscriptions, self.state.head.regexes)
        known, count = self._subscribed
        if not known or known[1] != key[1] or known[0] is not key[0] or known[2] is not key[2]:
            found = map(self.topics.by_name.get, self.state.subscribed_names())
            count = sum(topic.partitions for topic in found if topic is not None)
            self._subscribed = key, count
        return count

    def new_partitions(self, names: Iterable[str], regex: str | None, topics: ClusterTopics) -> int:
        """Partitions of *topics* that no member before has subscribed to by *names* or *regex*, at
        most."""
        if regex and not self.state.subscribers_of(regex):
            return topics.partitions
        there = (name for name in names if name in topics.by_name)
        return sum(topics.by_name[name].partitions for name in self.state.unsubscribed(there))

    def refuse_if_full(self, member_id: str) -> None:
        """Refuse a new member of a group that has `max_size` members.

        Raises:
            RefusedError: GROUP_MAX_SIZE_REACHED.
        """
        most = self.settings.max_size
        if len(self.state.members) >= most and member_id not in self.state.members:
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def member(self, member_id: str) -> ConsumerGroupMember:
        """The member with this id.

        Raises:
            RefusedError: UNKNOWN_MEMBER_ID.
        """
        member = self.state.members.get(member_id)
        if member is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def _member_of(self, request: ConsumerHeartbeat) -> ConsumerGroupMember:
        """The sender: an existing member, a new one, or the successor of a static member."""
        joins = request.member_epoch == JOIN_EPOCH
        if request.instance_id is None:
            if joins:
                new = ConsumerGroupMember(member_id=request.member_id)
                member = self.state.members.get(request.member_id, new)
            else:
                member = self.member(request.member_id)
        elif joins:
            return self.static_successor(request.member_id, request.instance_id)
        else:
            member = self.static_member(request.member_id, request.instance_id)
        _refuse_epoch(member, request.member_epoch, request.owned)
        return member

    def static_successor(
        self, member_id: str, instance_id: str, *, is_classic: bool = False
    ) -> ConsumerGroupMember:
        """A static member that joins: new, or the successor of its previous member id.

        Raises:
            RefusedError: UNRELEASED_INSTANCE_ID: another member has the instance id.
        """
        existing = self.state.static_member(instance_id)
        if existing is None:
            return self.state.members.get(member_id, ConsumerGroupMember(member_id=member_id))
        released = existing.epoch == STATIC_LEAVE_EPOCH or is_classic or existing.classic
        if not released:
            raise RefusedError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {existing.member_id} member.",
            )
        member = replace(existing, member_id=member_id, epoch=0, previous_epoch=0)
        head = self.state.head
        target = dict(head.target)
        inherited = target.pop(existing.member_id, _NONE)
        self.state.remove(existing.member_id)
        if existing.member_id != member_id:
            self.timers.cancel_all(existing.member_id)
        self.state.put(member)
        self.state.head = replace(head, target=target | {member_id: inherited})
        return member

    def static_member(self, member_id: str, instance_id: str) -> ConsumerGroupMember:
        """The static member with this id and instance id.

        Raises:
            RefusedError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID: another member has the instance id.
        """
        member = self.state.static_member(instance_id)
        if member is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
            )
        if member.member_id != member_id:
            raise RefusedError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        return member

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        if request.instance_id is None:
            member = self.member(request.member_id)
        else:
            member = self.static_member(request.member_id, request.instance_id)
        if request.instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
            self.state.put(replace(member, epoch=STATIC_LEAVE_EPOCH, pending={}))
        else:
            self.remove([member])
        return ConsumerHeartbeatResponse(
            member_id=member.member_id, member_epoch=request.member_epoch
        )

    # ── Members that leave ──

    def remove(self, members: Iterable[ConsumerGroupMember]) -> None:
        """Remove members; the next heartbeat of another member computes a target without them.

        If only classic members are left, and the settings allow it, the group becomes classic.
        """
        gone = list(members)
        head = self.state.head
        target = dict(head.target)
        if self.may_downgrade(but={member.member_id for member in gone}):
            self.downgrading = True
        for member in gone:
            self.state.remove(member.member_id)
            self.timers.cancel_all(member.member_id)
            target.pop(member.member_id, None)
        self.state.head = replace(head, target=target)
        if self.downgrading is None:
            self._forget_patterns()
            self.raise_epoch(bump=True)

    def may_downgrade(self, but: Collection[str] = ()) -> bool:
        """Whether all members *but* some are classic, and the settings allow a classic group."""
        settings = self.settings
        left = len(self.state.members) - len(but)
        allowed = settings.migration_policy in ("downgrade", "bidirectional")
        return allowed and 0 < left <= settings.classic_max_size and self.is_classic(but)

    def is_classic(self, but: Collection[str] = ()) -> bool:
        """Whether all members *but* some use the classic protocol."""
        members = self.state.members.items()
        return all(one.classic is not None for member_id, one in members if member_id not in but)

    def ring(self, timers: Iterable[Timer]) -> None:
        """Remove, at once, the members of expired timers.  A rebalance timer of a member that has
        revoked its partitions, or is away, removes nothing."""
        gone: dict[str, ConsumerGroupMember] = {}
        for timer in timers:
            member = self.state.members.get(timer.member_id)
            if member is None:
                continue
            is_away = member.epoch == STATIC_LEAVE_EPOCH
            is_done = member.state is not MemberState.UNREVOKED
            if timer.kind is not TimerKind.REBALANCE or not (is_done or is_away):
                gone[member.member_id] = member
        if gone:
            self.remove(gone.values())

    def rearm(self, now_ms: int) -> None:
        """Set the missing timers of all members, after a restore or an undo."""
        self._hashed = self._resolved = None
        for member in self.state.members.values():
            if not self.timers.is_set(TimerKind.SESSION, member.member_id):
                timeout_ms = self.session_timeout_ms(member)
                self.timers.set(TimerKind.SESSION, member.member_id, now_ms + timeout_ms)
            if member.state is MemberState.UNREVOKED and not self.timers.is_set(
                TimerKind.REBALANCE, member.member_id
            ):
                self._start_revocation(member, now_ms)

    def session_timeout_ms(self, member: ConsumerGroupMember) -> int:
        """The session timeout of a member; classic members choose it themselves."""
        classic = member.classic
        return classic.session_timeout_ms if classic else self.settings.session_timeout_ms

    def _start_revocation(self, member: ConsumerGroupMember, now_ms: int) -> None:
        if member.classic is None:
            at_ms = now_ms + member.rebalance_timeout_ms
            self.timers.set(TimerKind.REBALANCE, member.member_id, at_ms)

    def _watch_revocation(
        self, old: ConsumerGroupMember, member: ConsumerGroupMember, now_ms: int
    ) -> None:
        """Start or cancel the member's rebalance timer, by whether it must revoke partitions."""
        if member == old:
            return
        if member.state is not MemberState.UNREVOKED:
            self.timers.cancel(TimerKind.REBALANCE, member.member_id)
        elif member.pending != old.pending or member.epoch != old.epoch:
            self._start_revocation(member, now_ms)

    # ── Epoch and target ──

    def begin_epochs_again_if_used_up(self) -> None:
        """After `_LAST_EPOCH`, reset the group and remove its members: epochs are int32."""
        if self.state.head.epoch > _LAST_EPOCH:
            for member_id in list(self.state.members):
                self.state.remove(member_id)
                self.timers.cancel_all(member_id)
            self.state.head = Head()
            self._hashed = self._resolved = None

    def raise_epoch(self, bump: bool) -> None:
        """Increase the group epoch if *bump*, or if the subscribed topics have changed."""
        head = self.state.head
        if not bump and self._hashed is self.topics:
            return
        self._hashed = self.topics
        metadata_hash = self.state.hash_of_topics(self.topics)
        if bump or metadata_hash != head.metadata_hash:
            self.state.head = replace(head, epoch=head.epoch + 1, metadata_hash=metadata_hash)

    def assign(self, now_ms: int) -> None:
        """Compute the target of the group epoch, if it is newer and the interval has passed."""
        head = self.state.head
        interval = self.settings.assignment_interval_ms
        last = head.assigned_at_ms
        if head.epoch <= head.assignment_epoch or (last is not None and now_ms < last + interval):
            return
        assignor = ASSIGNORS[self.state.assignor(self.settings.assignors[0])]
        specs = {
            member.member_id: MemberSpec(
                topics=self.topics.ids(self.state.names_of(member)),
                previous=head.target.get(member.member_id, _NONE),
                instance_id=member.instance_id,
            )
            for member in self.state.members.values()
        }
        subscribed = frozenset[UUID]().union(*(spec.topics for spec in specs.values()))
        partitions = {id_: self.topics.by_id[id_].partitions for id_ in subscribed}
        self.state.head = replace(
            head,
            target=assignor(specs, partitions),
            assignment_epoch=head.epoch,
            assigned_at_ms=now_ms,
        )

    def reconcile(
        self, member: ConsumerGroupMember, *, subscription_changed: bool, owned: Owned
    ) -> ConsumerGroupMember:
        """Apply the member's next step towards the target, if any; return the member."""
        head = self.state.head
        if not subscription_changed and member.is_reconciled_to(head.assignment_epoch):
            return member
        step = reconciled(
            member,
            target_epoch=head.assignment_epoch,
            target=head.target.get(member.member_id, _NONE),
            topics=self.topics.ids(self.state.names_of(member)),
            subscription_changed=subscription_changed,
            owned=owned,
            is_free=lambda p: self.state.owner_of(p) in (None, member.member_id),
        )
        if step != member:
            self.state.put(step)
        return step

    # ── Patterns ──

    def match_patterns(
        self, old: ConsumerGroupMember, member: ConsumerGroupMember, now_ms: int
    ) -> ResolveRegexes | None:
        """The patterns to match after *member* has replaced *old*, if any are due.

        Raises:
            RefusedError: GROUP_MAX_SIZE_REACHED: the group has too many patterns.
        """
        brings = bool(member.topic_regex) and member.topic_regex != old.topic_regex
        if brings and len(self.state.patterns) > _MAX_PATTERNS:
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The members of the group already subscribe to {_MAX_PATTERNS} patterns.",
            )
        is_new = brings and self.state.subscribers_of(member.topic_regex) == 1
        if old.topic_regex != member.topic_regex:
            self._forget_patterns()
        patterns = self.state.patterns
        if not patterns or self._resolving is not None:
            return None
        if self._resolved is not None and self.state.head.regexes:
            topics, at_ms = self._resolved
            if now_ms <= at_ms + _REGEX_MIN_INTERVAL_MS:
                return None
            old_enough = now_ms > at_ms + self.settings.regex_refresh_interval_ms
            is_current = topics is self.topics and not old_enough
        else:
            is_current = False
        if is_current and not is_new and patterns == self.state.head.regexes.keys():
            return None
        self._resolving = (self.topics, now_ms)
        return ResolveRegexes(patterns, self.topics)

    def regexes_resolved(self, resolved: Mapping[str, frozenset[str]] | None) -> None:
        """Apply matched patterns; None: the matching failed, and a later heartbeat repeats it."""
        resolving, self._resolving = self._resolving, None
        if resolved is None or resolving is None:
            return
        head = self.state.head
        regexes = dict(head.regexes)
        bump = False
        for pattern, names in resolved.items():
            if self.state.subscribers_of(pattern):
                bump |= regexes.get(pattern, frozenset()) != names
                regexes[pattern] = names
        self._resolved = resolving
        self.state.head = replace(head, regexes=regexes)
        if self.state.members:
            self._hashed = None
            self.raise_epoch(bump)

    def _forget_patterns(self) -> None:
        """Remove patterns without a subscriber."""
        head = self.state.head
        kept = {p: names for p, names in head.regexes.items() if self.state.subscribers_of(p)}
        if len(kept) != len(head.regexes):
            self.state.head = replace(head, regexes=kept)

    # ── Description ──

    def describe(self) -> DescribedConsumerGroup:
        """The current state of the group."""
        head = self.state.head
        members = self.state.members.values()
        return DescribedConsumerGroup(
            state=self.state.name,
            group_epoch=head.epoch,
            assignment_epoch=head.assignment_epoch,
            assignor=self.state.assignor(self.settings.assignors[0]),
            members=tuple(_described(m, head.target.get(m.member_id, _NONE)) for m in members),
            topics=self.topics,
        )


def by_topic(partitions: Iterable[Partition]) -> dict[UUID, tuple[int, ...]]:
    """Partitions by topic, ascending."""
    found: dict[UUID, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        found[topic].append(partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def _updated(member: ConsumerGroupMember, request: ConsumerHeartbeat) -> ConsumerGroupMember:
    """The member with the request's fields; absent fields keep their values."""
    names, timeout_ms = request.topic_names, request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=member.topic_names if names is None else frozenset(names),
        topic_regex=member.topic_regex if request.topic_regex is None else request.topic_regex,
        server_assignor=(
            member.server_assignor if request.server_assignor is None else request.server_assignor
        ),
        classic=None,
    )


def _refuse_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned) -> None:
    """Refuse an epoch that is not the member's.  The previous epoch is accepted where the answer
    with the new one may have been lost.

    Raises:
        RefusedError: FENCED_MEMBER_EPOCH.
    """
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if epoch > member.epoch:
        raise RefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known "
            f"by the group coordinator ({member.epoch}). The member must abandon all its "
            "partitions and rejoin.",
        )
    if (
        epoch != member.previous_epoch
        or owned is None
        or any((topic, p) not in member.assigned for topic, ps in owned.items() for p in ps)
    ):
        raise RefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known "
            f"by the group coordinator ({member.epoch}). The member must abandon all its "
            "partitions and rejoin.",
        )


def _described(member: ConsumerGroupMember, target: Iterable[Partition]) -> DescribedConsumer:
    return DescribedConsumer(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=tuple(sorted(member.topic_names)),
        topic_regex=member.topic_regex,
        assignment=by_topic([*member.assigned, *member.pending]),
        target=by_topic(target),
        is_classic=member.classic is not None,
    )
