"""Converts groups with members between the protocols.

    classic group ──a member of KIP-848 joins──▶ group of KIP-848 with classic members
    group of KIP-848 ──its last member of KIP-848 leaves──▶ classic group, which rebalances

In both directions the generation equals the group epoch, and each member keeps its partitions.

Source: org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroup#fromClassicGroup,
org.apache.kafka.coordinator.group.classic.ClassicGroup#fromConsumerGroup,
GroupMetadataManager#validateOnlineUpgrade (4.3).
Pure.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from driftlog_agents.groups.classic import members as classic_members
from driftlog_agents.groups.classic.facts import ClassicFacts
from driftlog_agents.groups.classic.messages import Protocol
from driftlog_agents.groups.classic.stored_value import LAST_GENERATION, UNTOLD, ClassicValue
from driftlog_agents.groups.consumer.assignors import Partition
from driftlog_agents.groups.consumer.classic_members import assignment_bytes
from driftlog_agents.groups.consumer.membership import Membership, by_topic
from driftlog_agents.groups.consumer.state import (
    ClassicMember,
    ConsumerGroupMember,
    ConsumerGroupState,
)
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
)
from driftlog_agents.protocol.errors import (
    CorruptFrameError,
    ErrorCode,
    OverLimitError,
    RefusedError,
)

_MAX_ELEMENTS: Final = 200_000
"""Topics, and partitions that they own, of all members of a group that is converted: the event loop
reads so many in less than a tenth of a second."""


def upgrade(classic: ClassicFacts, group: Membership) -> None:
    """Fill *group*, a new one, with the members of *classic*.

    Raises:
        RefusedError: GROUP_ID_NOT_FOUND with the reason: it cannot be converted.
    """
    settings = group.settings
    what = f"Cannot upgrade classic group {classic.group_id} to consumer group because"
    if settings.migration_policy not in ("upgrade", "bidirectional"):
        raise _refused(f"{what} online upgrade is disabled.")
    if classic.protocol_type != PROTOCOL_TYPE:
        raise _refused(f"{what} the group does not use the consumer embedded protocol.")
    if len(classic.members) > settings.max_size:
        raise _refused(f"{what} the group size exceeds the consumer group maximum size.")
    target: dict[str, frozenset[Partition]] = {}
    taken: set[Partition] = set()
    left = _MAX_ELEMENTS
    try:
        for member in classic.members:
            subscription = _subscription(member, classic, left)
            left -= len(subscription.topics)
            left -= sum(1 + len(owned.partitions) for owned in subscription.owned_partitions)
            assigned = _assigned(member.assignment, group.topics) - taken
            taken |= assigned
            target[member.member_id] = assigned
            group.state.put(_from_classic(member, classic.generation, subscription, assigned))
    except OverLimitError:
        raise _refused(f"{what} its members subscribe to too many topics.") from None
    except CorruptFrameError:
        raise _refused(f"{what} the embedded consumer protocol is malformed.") from None
    except _CustomAssignorError:
        raise _refused(
            f"{what} an unsupported custom assignor is in use. Please refer to the documentation "
            "or switch to a default assignor before re-attempting the upgrade."
        ) from None
    group.state.head = replace(
        group.state.head,
        epoch=classic.generation,
        assignment_epoch=classic.generation,
        target=target,
        metadata_hash=group.state.hash_of_topics(group.topics),
    )


def downgraded(
    state: ConsumerGroupState,
    topics: ClusterTopics,
    members: Iterable[ConsumerGroupMember],
    now_ms: int,
) -> ClassicValue:
    """A classic group of *members*, all of them classic, with their target assignments."""
    head = state.head
    generation = head.epoch if head.epoch <= LAST_GENERATION else 1
    classic = [_to_classic(member) for member in members]
    protocol = classic_members.Members(classic).choose()
    for member in classic:
        assigned = by_topic(head.target.get(member.member_id, frozenset()))
        member.assignment = assignment_bytes(assigned, member.metadata(protocol), topics)
    return ClassicValue(
        generation=generation,
        reserved=generation + UNTOLD,
        protocol_type=PROTOCOL_TYPE,
        protocol=protocol,
        leader=classic[0].member_id,
        state_since_ms=now_ms,
        members=tuple(classic),
    )


class _CustomAssignorError(Exception):
    """A client's own assignor sent user data, which a conversion would lose."""


def _assigned(assignment: bytes, topics: ClusterTopics) -> frozenset[Partition]:
    if not assignment:
        return frozenset()
    said = decode_assignment(assignment)
    if said.user_data:
        raise _CustomAssignorError
    found: set[Partition] = set()
    for topic in said.assigned_partitions:
        info = topics.by_name.get(topic.topic)
        if info is not None:  # The leader's client chose the partitions: any int32.
            found |= {(info.topic_id, p) for p in topic.partitions if 0 <= p < info.partitions}
    return frozenset(found)


def _subscription(
    member: classic_members.ClassicGroupMember, group: ClassicFacts, max_elements: int
) -> ConsumerProtocolSubscription:
    # Before its first generation a group has no protocol; all protocols of a member have the same
    # subscription.  A member that is about to rejoin may not support the group's protocol any more.
    spoken = [protocol.name for protocol in member.protocols]
    protocol = group.protocol if group.protocol in spoken else spoken[0]
    return decode_subscription(member.metadata(protocol), max_elements)


def _from_classic(
    member: classic_members.ClassicGroupMember,
    generation: int,
    subscription: ConsumerProtocolSubscription,
    assigned: Iterable[Partition],
) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=frozenset(subscription.topics),
        epoch=generation,
        previous_epoch=generation,
        assigned=dict.fromkeys(sorted(assigned), generation),
        classic=ClassicMember(
            session_timeout_ms=member.session_timeout_ms,
            protocols=tuple((p.name, p.metadata) for p in member.protocols),
        ),
    )


def _to_classic(member: ConsumerGroupMember) -> classic_members.ClassicGroupMember:
    assert member.classic is not None
    return classic_members.ClassicGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple(Protocol(name, metadata) for name, metadata in member.classic.protocols),
    )


def _refused(why: str) -> RefusedError:
    return RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, why)
