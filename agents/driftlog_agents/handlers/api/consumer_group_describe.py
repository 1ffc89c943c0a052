"""ConsumerGroupDescribe: members of KIP-848 groups, with their current and target assignments.

Source: org.apache.kafka.coordinator.group.GroupMetadataManager#consumerGroupDescribe (4.3).
Shell.
"""

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from driftlog_agents.foundation.loop_slices import each, sliced
from driftlog_agents.groups.consumer.messages import DescribedConsumer, DescribedConsumerGroup
from driftlog_agents.groups.coordinator import consumer_requests
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import NOT_ASKED
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import (
    DESCRIBED_AT_ONCE,
    GROUP_OPERATIONS,
    as_message,
    coordinating,
)
from driftlog_agents.protocol.api import message_bytes
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CONSUMER, _CLASSIC = 1, 0
"""Member types.  Source: ConsumerGroupDescribeResponse.json."""


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Answer *request*."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    wanted = dict.fromkeys(request.group_ids)
    found = await each(
        wanted, lambda group_id: _described(broker, group_id, context), DESCRIBED_AT_ONCE
    )
    for group in found:
        if not group.error_code:
            group.authorized_operations = operations
    described = dict(zip(wanted, found, strict=True))
    named = Counter(request.group_ids)
    async for group_id, times in sliced(named.items()):
        if times > 1:
            context.answer.add((times - 1) * message_bytes(described[group_id]))
    # Kafka describes a group as often as it is named.
    return ConsumerGroupDescribeResponse(groups=[described[name] for name in request.group_ids])


async def _described(broker: Broker, group_id: str, context: RequestContext) -> DescribedGroup:
    try:
        said = await consumer_requests.describe(coordinating(broker), group_id, context.room)
    except RefusedError as error:
        group = DescribedGroup(
            group_id=group_id, error_code=error.code, error_message=as_message(error.message)
        )
        context.answer.add(message_bytes(group))
        return group
    group = DescribedGroup(
        error_code=said.error,
        error_message=as_message(said.message),
        group_id=group_id,
        group_state=said.state,
        group_epoch=said.group_epoch,
        assignment_epoch=said.assignment_epoch,
        assignor_name=said.assignor,
    )
    context.answer.add(message_bytes(group))
    async for described in sliced(said.members):
        member = _member(described, said)
        context.answer.add(message_bytes(member))
        group.members.append(member)
    return group


def _member(member: DescribedConsumer, said: DescribedConsumerGroup) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(member.assignment, said.topics),
        target_assignment=_assignment(member.target, said.topics),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _assignment(partitions: Mapping[UUID, tuple[int, ...]], topics: ClusterTopics) -> Assignment:
    """With the topics' names; topics that are deleted by now are left out."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(
                topic_id=topic_id, topic_name=topics.by_id[topic_id].name, partitions=list(numbers)
            )
            for topic_id, numbers in partitions.items()
            if topic_id in topics.by_id
        ]
    )
