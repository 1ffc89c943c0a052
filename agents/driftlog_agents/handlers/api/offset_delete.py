"""OffsetDelete: a group deletes its offsets of topics that no member subscribes to (KIP-496).

Source: kafka.server.KafkaApis#handleOffsetDeleteRequest, OffsetMetadataManager#deleteOffsets.
Shell.
"""

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.stored.repair import UnreadableGroupError
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from driftlog_metadata.schema.model import TopicPartition


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


async def _deleted(broker: Broker, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    group = await _group(broker, request)
    if group is None:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND)
    refused = ErrorCode.NONE if group.classic is None else group.classic.refuse_offset_delete()
    if refused:
        raise RefusedError(refused)
    subscribed = await group.subscribed([asked.name for asked in request.topics])
    response = OffsetDeleteResponse()
    wanted: list[TopicPartition] = []
    async for asked in sliced(request.topics):
        topic = broker.topics.by_name.get(asked.name)
        code = ErrorCode.NONE
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif group.is_used(asked.name, subscribed):
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            wanted += [
                TopicPartition(topic.topic_id, partition.partition_index)
                for partition in asked.partitions
            ]
        response.topics.append(
            OffsetDeleteResponseTopic(
                name=asked.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    async for partition in sliced(asked.partitions)
                ],
            )
        )
    await group.store(group.offsets.forget(wanted))
    return response
