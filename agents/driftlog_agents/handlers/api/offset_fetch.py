"""OffsetFetch: how far groups have read, as it is stored.

An answer comes from memory, once the store has confirmed that no other agent coordinates the
group: a consumer that gets old offsets would read again what it has committed.

Source: kafka.server.KafkaApis#handleOffsetFetchRequest, OffsetMetadataManager#fetchOffsets.
Shell.
"""

from typing import Final
from uuid import UUID

from driftlog_agents.foundation.loop_slices import each, sliced
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.offsets import Committed
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from driftlog_metadata.schema.model import TopicPartition

_NOTHING: Final = Committed(offset=-1)

_AT_ONCE: Final = 64
"""Groups of one request that are looked up at once."""


async def handle(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    """Answer *request*."""
    version = context.api_version
    if version >= 8:
        return OffsetFetchResponse(groups=await _groups(broker, request.groups, context))
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            async for topic in sliced(request.topics)
        ]
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    found = await _fetched(broker, asked, context)
    context.answer.add(await _bytes(found))
    return await _alone(asked, found, version)


async def _groups(
    broker: Broker, asked: list[OffsetFetchRequestGroup], context: RequestContext
) -> list[OffsetFetchResponseGroup]:
    """A group whose offsets are all requested again is looked up once, and answered again."""
    whole: dict[tuple[str, str | None, int], int] = {}
    lookups: list[OffsetFetchRequestGroup] = []
    answers: list[int] = []
    async for group in sliced(asked):
        number = len(lookups)
        if group.topics is None:
            number = whole.setdefault((group.group_id, group.member_id, group.member_epoch), number)
        if number == len(lookups):
            lookups.append(group)
        answers.append(number)

    async def fetched(group: OffsetFetchRequestGroup) -> tuple[OffsetFetchResponseGroup, int]:
        found = await _fetched(broker, group, context)
        size = await _bytes(found)
        context.answer.add(size)
        return found, size

    found = await each(lookups, fetched, _AT_ONCE)
    said: set[int] = set()
    async for number in sliced(answers):
        if number in said:
            context.answer.add(found[number][1])
        said.add(number)
    return [found[number][0] for number in answers]


async def _bytes(group: OffsetFetchResponseGroup) -> int:
    size = 16
    async for topic in sliced(group.topics):
        size += 16 + len(topic.name)
        async for partition in sliced(topic.partitions):
            size += 24 + len(partition.metadata or "")
    return size


async def _alone(
    asked: OffsetFetchRequestGroup, found: OffsetFetchResponseGroup, version: int
) -> OffsetFetchResponse:
    """The answer of versions that ask for one group; version 1 has errors of partitions only."""
    if found.error_code and version < 2:
        code = ErrorCode(found.error_code)
        found.topics = [await _failed(topic, code) async for topic in sliced(asked.topics or ())]
    return OffsetFetchResponse(
        error_code=found.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    async for partition in sliced(topic.partitions)
                ],
            )
            async for topic in sliced(found.topics)
        ],
    )


async def _fetched(
    broker: Broker, asked: OffsetFetchRequestGroup, context: RequestContext
) -> OffsetFetchResponseGroup:
    try:
        return await _offsets(broker, asked, context)
    except RefusedError as error:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)


async def _offsets(
    broker: Broker, asked: OffsetFetchRequestGroup, context: RequestContext
) -> OffsetFetchResponseGroup:
    groups = coordinating(broker)
    if not broker.topics.known:
        raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    group = await groups.group(asked.group_id)
    if group is not None:
        await groups.confirm(group)
        await group.settled()
        if group.consumer is not None:
            refused = group.consumer.validate_fetch(asked.member_id, asked.member_epoch)
            if refused:
                raise RefusedError(refused)
    if asked.topics is None:
        topics = []
        if group is not None:
            # The answer's objects and bytes take less than the offsets themselves.
            await context.room(group.offsets.size_bytes)
            topics = await _all(broker, group)
    else:
        version = context.api_version
        topics = [
            await _topic(broker, group, topic, version) async for topic in sliced(asked.topics)
        ]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


async def _all(broker: Broker, group: ServedGroup) -> list[OffsetFetchResponseTopics]:
    found: dict[UUID, OffsetFetchResponseTopics] = {}
    async for tp, committed in sliced(list(group.offsets.items())):
        topic = broker.topics.by_id.get(tp.topic_id)
        if topic is None:
            continue  # The topic is deleted, and its offsets will be.
        answer = found.get(tp.topic_id)
        if answer is None:
            answer = OffsetFetchResponseTopics(name=topic.name, topic_id=tp.topic_id)
            found[tp.topic_id] = answer
        answer.partitions.append(_partition(tp.partition, committed))
    return list(found.values())


async def _topic(
    broker: Broker, group: ServedGroup | None, asked: OffsetFetchRequestTopics, version: int
) -> OffsetFetchResponseTopics:
    topics = broker.topics
    topic = topics.by_id.get(asked.topic_id) if version >= 10 else topics.by_name.get(asked.name)
    if topic is None and version >= 10:
        return await _failed(asked, ErrorCode.UNKNOWN_TOPIC_ID)

    def committed(partition: int) -> Committed:
        if topic is None or group is None or partition < 0:
            return _NOTHING
        return group.offsets.get(TopicPartition(topic.topic_id, partition)) or _NOTHING

    return OffsetFetchResponseTopics(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[
            _partition(partition, committed(partition))
            async for partition in sliced(asked.partition_indexes)
        ],
    )


async def _failed(asked: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    answer = OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id)
    async for partition in sliced(asked.partition_indexes):
        failed = _partition(partition, _NOTHING)
        failed.error_code = code
        answer.partitions.append(failed)
    return answer


def _partition(partition: int, committed: Committed) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
