"""OffsetDelete: a group deletes its offsets of topics that no member subscribes to (KIP-496).

Source: kafka.server.KafkaApis#handleOffsetDeleteRequest, OffsetMetadataManager#deleteOffsets.
Shell.
"""

from uuid import UUID

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.groups.classic.messages import refuse_group_id
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.stored.repair import UnreadableGroupError
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating, newest_topic
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from driftlog_metadata.schema.model import Topic, TopicPartition


async def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Answer *request*."""
    try:
        return await _deleted(broker, request)
    except RefusedError as error:
        return OffsetDeleteResponse(error_code=error.code)


async def _group(broker: Broker, request: OffsetDeleteRequest) -> ServedGroup | None:
    groups = coordinating(broker)
    try:
        return await groups.group(request.group_id)
    except UnreadableGroupError:
        wanted = [
            TopicPartition(topic.topic_id, partition.partition_index)
            for asked in request.topics
            if (topic := broker.topics.by_name.get(asked.name)) is not None
            for partition in asked.partitions
        ]
        await groups.forget(request.group_id, wanted)
        return await groups.group(request.group_id)


async def _topic(
    broker: Broker, asked: OffsetDeleteRequestTopic, newest: dict[UUID, Topic]
) -> Topic | None:
    topic = broker.topics.by_name.get(asked.name)
    if topic is None:
        return None
    return await newest_topic(broker, topic, (p.partition_index for p in asked.partitions), newest)


async def _deleted(broker: Broker, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    refused = refuse_group_id(request.group_id)
    if refused:
        raise RefusedError(refused)
    newest: dict[UUID, Topic] = {}
    topics = [await _topic(broker, asked, newest) async for asked in sliced(request.topics)]
    group = await _group(broker, request)
    if group is None:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND)
    refused = ErrorCode.NONE if group.classic is None else group.classic.refuse_offset_delete()
    if refused:
        raise RefusedError(refused)
    subscribed = await group.subscribed([asked.name for asked in request.topics])
    response = OffsetDeleteResponse()
    wanted: list[TopicPartition] = []
    async for asked, topic in sliced(zip(request.topics, topics, strict=True)):
        answer = OffsetDeleteResponseTopic(name=asked.name)
        is_used = group.is_used(asked.name, subscribed)
        async for partition in sliced(asked.partitions):
            index = partition.partition_index
            code = ErrorCode.NONE
            if topic is None or not 0 <= index < topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_used:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                wanted.append(TopicPartition(topic.topic_id, index))
            answer.partitions.append(
                OffsetDeleteResponsePartition(partition_index=index, error_code=code)
            )
        response.topics.append(answer)
    await group.store(group.offsets.forget(wanted))
    return response
