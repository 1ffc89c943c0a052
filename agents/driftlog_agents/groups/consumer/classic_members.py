"""Classic members in a group of KIP-848, for a migration between the protocols.

    JoinGroup  ──▶ its generation, at once: the member's epoch
    SyncGroup  ──▶ its assignment: the coordinator assigns, no member does
    Heartbeat  ──▶ REBALANCE_IN_PROGRESS: join again, to revoke or get partitions
    LeaveGroup ──▶ as for any member

A generation is the epoch of one member.  A JoinGroup reports the partitions that the member owns;
these count as not revoked, so no other member gets a partition too early.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager#classicGroupJoinToConsumerGroup,
#classicGroupSyncToConsumerGroup, #classicGroupHeartbeatToConsumerGroup (4.3).
Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from driftlog_agents.groups.classic.messages import (
    ID_REQUIRED_VERSION,
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from driftlog_agents.groups.consumer.membership import Membership, by_topic
from driftlog_agents.groups.consumer.messages import ResolveRegexes
from driftlog_agents.groups.consumer.reconciliation import Owned
from driftlog_agents.groups.consumer.state import ClassicMember, ConsumerGroupMember, MemberState
from driftlog_agents.groups.consumer.timers import TimerKind
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.consumer_protocol import (
    LATEST_VERSION,
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from driftlog_agents.protocol.errors import CorruptFrameError, ErrorCode, RefusedError


class ClassicSide:
    """See the module.  Every method may raise `RefusedError`; the caller undoes its changes."""

    def __init__(self, group: Membership, new_member_id: Callable[[str], str]) -> None:
        self._group = group
        self._new_member_id = new_member_id

    def join(self, request: JoinRequest, now_ms: int) -> tuple[JoinResponse, ResolveRegexes | None]:
        """JoinGroup; the caller has checked `refuse_join`."""
        group = self._group
        if group.settings.migration_policy == "disabled":
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_new = request.member_id == UNKNOWN_MEMBER_ID
        member_id = self._new_member_id(request.client_id) if is_new else request.member_id
        group.refuse_if_full(member_id)
        subscription = self._subscription(request)
        if is_new and request.instance_id is None and request.version >= ID_REQUIRED_VERSION:
            return JoinResponse(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id), None
        replaced = group.state.static_member(request.instance_id)
        old = self._member_of(request, member_id)
        member = _updated(old, request, subscription)
        group.state.put(member)
        resolve = group.match_patterns(old, member, now_ms)
        changed = (old.topic_names, old.topic_regex) != (member.topic_names, "")
        group.raise_epoch(changed)
        stale = group.state.head.epoch > group.state.head.assignment_epoch
        is_last = replaced is not None and replaced.classic is None
        downgrades = is_last and group.may_downgrade()
        if not downgrades:
            group.assign(now_ms)
        if not downgrades or not stale:
            member = group.reconcile(
                member, subscription_changed=changed, owned=_owned(subscription, group.topics)
            )
        if downgrades:
            group.downgrading = stale
        group.timers.cancel(TimerKind.JOIN, member_id)
        self._alive(member, now_ms)
        group.timers.set(TimerKind.SYNC, member_id, now_ms + member.rebalance_timeout_ms)
        response = JoinResponse(
            generation=member.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol=request.protocols[0].name,
            member_id=member_id,
        )
        return response, resolve

    def sync(self, request: SyncRequest, now_ms: int) -> tuple[SyncResponse, None]:
        """SyncGroup; the caller has checked `refuse_sync`."""
        group = self._group
        member, classic = self._known(request.member_id, request.instance_id, request.generation)
        name, metadata = classic.protocols[0]
        other_type = request.protocol_type not in (None, PROTOCOL_TYPE)
        if other_type or request.protocol not in (None, name):
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_behind = member.epoch < group.state.head.assignment_epoch
        if is_behind and member.state is not MemberState.UNREVOKED:
            self._must_join(member, now_ms)
            raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.timers.cancel(TimerKind.SYNC, member.member_id)
        self._alive(member, now_ms)
        response = SyncResponse(
            protocol_type=request.protocol_type,
            protocol=request.protocol,
            assignment=assignment_bytes(by_topic(member.assigned), metadata, group.topics),
        )
        return response, None

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> tuple[HeartbeatResponse, None]:
        """Heartbeat; the caller has checked `refuse_group_id`."""
        member, _ = self._known(request.member_id, request.instance_id, request.generation)
        self._alive(member, now_ms)
        if self._group.is_classic():
            # No heartbeat of a KIP-848 member would update the target; Kafka never does here.
            self._group.raise_epoch(bump=False)
            self._group.assign(now_ms)
        if not self._has_to_join(member):
            return HeartbeatResponse(), None
        self._must_join(member, now_ms)
        return HeartbeatResponse(error=ErrorCode.REBALANCE_IN_PROGRESS), None

    def leave(self, request: LeaveRequest, _now_ms: int) -> tuple[LeaveResponse, None]:
        """LeaveGroup; the caller has checked `refuse_group_id`."""
        gone: dict[str, ConsumerGroupMember] = {}
        left: list[LeftMember] = []
        for leaving in request.members:
            error = ErrorCode.NONE
            try:
                member = self._leaving(leaving)
                gone[member.member_id] = member
            except RefusedError as refused:
                error = refused.code
            left.append(
                LeftMember(
                    member_id=leaving.member_id, instance_id=leaving.instance_id, error=error
                )
            )
        if gone:
            self._group.remove(gone.values())
        return LeaveResponse(members=tuple(left)), None

    # ── Identity ──

    def _member_of(self, request: JoinRequest, member_id: str) -> ConsumerGroupMember:
        group = self._group
        if request.instance_id is None:
            return group.state.members.get(member_id, ConsumerGroupMember(member_id=member_id))
        if request.member_id == UNKNOWN_MEMBER_ID:
            return group.static_successor(member_id, request.instance_id, is_classic=True)
        return group.static_member(member_id, request.instance_id)

    def _known(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerGroupMember, ClassicMember]:
        group = self._group
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = group.static_member(member_id, instance_id)
        if member.classic is None:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.epoch != generation:
            raise RefusedError(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    def _leaving(self, leaving: LeavingMember) -> ConsumerGroupMember:
        group = self._group
        if leaving.instance_id is None:
            return group.member(leaving.member_id)
        if leaving.member_id != UNKNOWN_MEMBER_ID:
            return group.static_member(leaving.member_id, leaving.instance_id)
        member = group.state.static_member(leaving.instance_id)
        if member is None:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _subscription(self, request: JoinRequest) -> ConsumerProtocolSubscription:
        """The subscription of the first protocol; all protocols of a member have the same one.

        Raises:
            RefusedError: INCONSISTENT_GROUP_PROTOCOL: the classic members share no protocol with
                it, or the subscription is malformed, or another protocol has none.
        """
        classic = [m.classic for m in self._group.state.members.values() if m.classic]
        known = Counter(name for one in classic for name in {name for name, _ in one.protocols})
        speaks = any(known[protocol.name] == len(classic) for protocol in request.protocols)
        if request.protocol_type != PROTOCOL_TYPE or not speaks:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            for protocol in request.protocols:
                decode_version(protocol.metadata)
            return decode_subscription(request.protocols[0].metadata)
        except CorruptFrameError as error:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None

    # ── Timers and rejoins ──

    def _has_to_join(self, member: ConsumerGroupMember) -> bool:
        if member.epoch < self._group.state.head.assignment_epoch:
            return True
        match member.state:
            case MemberState.STABLE:
                return False
            case MemberState.UNREVOKED:
                return True
            case MemberState.UNRELEASED:
                state = self._group.state
                missing = state.head.target.get(member.member_id, frozenset()) - set(
                    member.assigned
                )
                return all(state.owner_of(partition) is None for partition in missing)

    def _must_join(self, member: ConsumerGroupMember, now_ms: int) -> None:
        timers = self._group.timers
        if not timers.is_set(TimerKind.JOIN, member.member_id):
            at_ms = now_ms + member.rebalance_timeout_ms
            timers.set(TimerKind.JOIN, member.member_id, at_ms)

    def _alive(self, member: ConsumerGroupMember, now_ms: int) -> None:
        at_ms = now_ms + self._group.session_timeout_ms(member)
        self._group.timers.set(TimerKind.SESSION, member.member_id, at_ms)


def assignment_bytes(
    partitions: dict[UUID, tuple[int, ...]], metadata: bytes, topics: ClusterTopics
) -> bytes:
    """An assignment in the format of the classic protocol, in the version of *metadata*; in
    version 0 if *metadata* has none: a member may bring any bytes into a classic group."""
    try:
        version = min(decode_version(metadata), LATEST_VERSION)
    except CorruptFrameError:
        version = 0
    return encode_assignment(
        version,
        ConsumerProtocolAssignment(
            assigned_partitions=[
                TopicPartition(topic=topics.by_id[topic].name, partitions=list(numbers))
                for topic, numbers in partitions.items()
                if topic in topics.by_id
            ]
        ),
    )


def _owned(subscription: ConsumerProtocolSubscription, topics: ClusterTopics) -> Owned:
    owned: dict[UUID, set[int]] = defaultdict(set)
    for topic in subscription.owned_partitions:
        info = topics.by_name.get(topic.topic)
        if info is not None:
            owned[info.topic_id].update(topic.partitions)
    return {topic_id: frozenset(numbers) for topic_id, numbers in owned.items()}


def _updated(
    member: ConsumerGroupMember, request: JoinRequest, subscription: ConsumerProtocolSubscription
) -> ConsumerGroupMember:
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.session_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=frozenset(subscription.topics),
        topic_regex="",
        classic=ClassicMember(
            session_timeout_ms=request.session_timeout_ms,
            protocols=tuple((p.name, p.metadata) for p in request.protocols),
        ),
    )
