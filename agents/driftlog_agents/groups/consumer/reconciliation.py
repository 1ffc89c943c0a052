"""From a member's current partitions to its target: revoke first, then assign.

    STABLE, UNRELEASED ──new target──▶ partitions to revoke? ──yes──▶ UNREVOKED, at its epoch
                                                │ no                      │ a heartbeat confirms
                                                ▼                         ▼
                          all of the rest free? ──yes──▶ STABLE ◀──── (checked again)
                                                └─no───▶ UNRELEASED, at the target's epoch

Source: org.apache.kafka.coordinator.group.modern.consumer.CurrentAssignmentBuilder (4.3).
Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from driftlog_agents.groups.consumer.assignors import Partition
from driftlog_agents.groups.consumer.state import (
    NOTHING,
    ConsumerGroupMember,
    MemberState,
    Partitions,
)

Owned = Mapping[UUID, frozenset[int]] | None
"""The partitions that a heartbeat reports as owned; None: unchanged."""


def reconciled(
    member: ConsumerGroupMember,
    *,
    target_epoch: int,
    target: frozenset[Partition],
    topics: frozenset[UUID],
    subscription_changed: bool,
    owned: Owned,
    is_free: Callable[[Partition], bool],
) -> ConsumerGroupMember:
    """The member after its next step towards the target, or unchanged.

    Args:
        topics: the existing topics that it subscribes to; it keeps and gets no others, whatever
            the target has.
        subscription_changed: by this heartbeat; partitions of dropped topics are revoked at once.
        is_free: whether no other member has a partition.
    """
    waits = member.state is MemberState.UNREVOKED and _still_has(member.pending, owned)
    moves = member.state is not MemberState.STABLE or member.epoch != target_epoch
    if waits or not moves:
        return _without_dropped(member, topics, owned) if subscription_changed else member
    return _next(member, target_epoch, target, topics, owned, is_free)


def _next(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: frozenset[Partition],
    topics: frozenset[UUID],
    owned: Owned,
    is_free: Callable[[Partition], bool],
) -> ConsumerGroupMember:
    wanted = {partition for partition in target if partition[0] in topics}
    kept = {p: epoch for p, epoch in member.assigned.items() if p in wanted}
    pending = {p: epoch for p, epoch in member.assigned.items() if p not in wanted}
    if pending and _still_has(pending, owned):
        return _moved(member, member.epoch, MemberState.UNREVOKED, kept, pending)
    new = wanted - kept.keys()
    # A pending partition is free: the member has revoked it, or its target has it again.
    free = {p for p in new if p in member.pending or is_free(p)}
    state = MemberState.STABLE if free == new else MemberState.UNRELEASED
    assigned = kept | dict.fromkeys(sorted(free), target_epoch)
    return _moved(member, target_epoch, state, assigned, NOTHING)


def _without_dropped(
    member: ConsumerGroupMember, topics: frozenset[UUID], owned: Owned
) -> ConsumerGroupMember:
    dropped = {p: epoch for p, epoch in member.assigned.items() if p[0] not in topics}
    if not dropped:
        return member
    kept = {p: epoch for p, epoch in member.assigned.items() if p not in dropped}
    pending = {**member.pending, **dropped}
    if _still_has(pending, owned):
        return _moved(member, member.epoch, MemberState.UNREVOKED, kept, pending)
    return _moved(member, member.epoch, member.state, kept, member.pending)


def _moved(
    member: ConsumerGroupMember,
    epoch: int,
    state: MemberState,
    assigned: Partitions,
    pending: Partitions,
) -> ConsumerGroupMember:
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        pending=pending,
    )


def _still_has(partitions: Partitions, owned: Owned) -> bool:
    if owned is None:
        return True
    return any(partition in owned.get(topic, ()) for topic, partition in partitions)
