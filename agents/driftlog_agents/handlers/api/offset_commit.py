"""OffsetCommit: stores how far a group has read, and answers once it is stored.

Each partition succeeds or fails alone, unless the group refuses all that are known.

Source: kafka.server.KafkaApis#handleOffsetCommitRequest, OffsetMetadataManager#commitOffset.
Shell.
"""

import asyncio
from collections.abc import Iterator
from itertools import repeat
from typing import Final
from uuid import UUID

from driftlog_agents.configs.limits import OFFSET_METADATA
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.offsets import Changes, Committed, as_int64, verdict
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import coordinating, newest_topic
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from driftlog_metadata.schema.model import Topic, TopicPartition

_PATIENCE_S: Final = 5.0
"""Kafka's ``offsets.commit.timeout.ms``: how long a commit waits for the store."""

_NO_RETENTION: Final = -1

_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""The group is not asked about such partitions, so its error is not theirs
(OffsetCommitResponse.Builder#merge)."""


async def handle(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Answer *request*."""
    try:
        codes = await _committed(broker, request, context.api_version)
    except RefusedError as error:
        codes = repeat(error.code)
    return await _response(request, codes)


async def _response(
    request: OffsetCommitRequest, codes: Iterator[ErrorCode]
) -> OffsetCommitResponse:
    """*codes*: one for each partition, in the order of the request."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=next(codes)
                    )
                    async for partition in sliced(topic.partitions)
                ],
            )
            async for topic in sliced(request.topics)
        ]
    )


async def _committed(
    broker: Broker, request: OffsetCommitRequest, version: int
) -> Iterator[ErrorCode]:
    groups = coordinating(broker)
    if not broker.topics.known:
        raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    newest: dict[UUID, Topic] = {}
    topics = [
        await _topic(broker, topic, version, newest) async for topic in sliced(request.topics)
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    now_ms = groups.now_ms()
    expire_ms = None
    if version <= 4 and request.retention_time_ms != _NO_RETENTION:
        expire_ms = as_int64(now_ms + request.retention_time_ms)
    codes: list[ErrorCode] = []
    changes: dict[TopicPartition, Committed] = {}
    is_any_known = False
    async for asked, topic in sliced(zip(request.topics, topics, strict=True)):
        async for partition in sliced(asked.partitions):
            if topic is None:
                code = unknown
            elif not 0 <= partition.partition_index < topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                is_any_known = True
                committed = _as_committed(partition, now_ms, expire_ms)
                code = verdict(committed, groups.settings.offset_metadata_max_bytes)
                if code:
                    broker.refusals.count(OFFSET_METADATA)
                else:
                    changes[TopicPartition(topic.topic_id, partition.partition_index)] = committed
            codes.append(code)
    if not is_any_known:
        return iter(codes)
    try:
        group = await _group(groups, request, version)
        await group.settled()
        # No await from here until the decision: what is refused now is not stored.
        refused = _refused(group, request, changes, version, now_ms)
        if not refused:
            await _store(groups, group, changes)
            return iter(codes)
    except RefusedError as error:
        refused = error.code
    except TimeoutError:
        refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return (code if code in _UNKNOWN else refused for code in codes)


async def _store(groups: GroupCoordinator, group: ServedGroup, changes: Changes) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await group.store(changes)
    groups.counted["driftlog_group_commits"] += 1
    groups.counted["driftlog_group_offsets_committed"] += len(changes)


async def _group(
    groups: GroupCoordinator, request: OffsetCommitRequest, version: int
) -> ServedGroup:
    group = await groups.group(request.group_id)
    if group is None:
        if request.generation_id_or_member_epoch < 0:  # No member: this creates a simple group.
            return await groups.made(request.group_id, CLASSIC)
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        raise RefusedError(code)
    return group


def _refused(
    group: ServedGroup,
    request: OffsetCommitRequest,
    changes: Changes,
    version: int,
    now_ms: int,
) -> ErrorCode:
    member_id, instance_id = request.member_id, request.group_instance_id
    epoch = request.generation_id_or_member_epoch
    if group.classic is not None:
        return group.classic.validate_commit(member_id, instance_id, epoch, now_ms)
    assert group.consumer is not None
    partitions = ((tp.topic_id, tp.partition) for tp in changes)
    return group.consumer.validate_commit(
        member_id, instance_id, epoch, partitions, version=version
    )


async def _topic(
    broker: Broker, asked: OffsetCommitRequestTopic, version: int, newest: dict[UUID, Topic]
) -> Topic | None:
    topics = broker.topics
    topic = topics.by_id.get(asked.topic_id) if version >= 10 else topics.by_name.get(asked.name)
    if topic is None:
        return None
    return await newest_topic(broker, topic, (p.partition_index for p in asked.partitions), newest)


def _as_committed(
    partition: OffsetCommitRequestPartition, now_ms: int, expire_ms: int | None
) -> Committed:
    return Committed(
        offset=partition.committed_offset,
        leader_epoch=max(partition.committed_leader_epoch, -1),
        metadata=partition.committed_metadata or "",
        commit_ms=now_ms,
        expire_ms=expire_ms,
    )
