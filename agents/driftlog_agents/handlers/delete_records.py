"""DeleteRecords: the log starts later; −1 is the high watermark.

What is answered is stored: log start never goes back, whoever leads next (`log.deletion`).
Source: kafka.server.KafkaApis#handleDeleteRecordsRequest, ReplicaManager#deleteRecordsOnLocalLog,
kafka.cluster.Partition#deleteRecordsOnLeader.
Shell.
"""

import asyncio
from typing import Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers.cluster import INTERNAL_TOPICS, led_partition, not_led
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from driftlog_metadata.errors import CorruptError, FencedError, UnavailableError

HIGH_WATERMARK: Final = -1

_MAX_WAIT_S: Final = 60.0
_INVALID_LOW_WATERMARK: Final = -1

_AT_ONCE: Final = 32
"""Partitions whose keys are written at once: one client's share of the metadata store."""


async def handle(
    broker: Broker,
    request: DeleteRecordsRequest,
    context: RequestContext,  # noqa: ARG001 - as all handlers
) -> DeleteRecordsResponse:
    """Answer *request*; of a partition that is named twice the last offset counts."""
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            wanted.setdefault(topic.name, {})[partition.partition_index] = partition.offset
    limit = asyncio.Semaphore(_AT_ONCE)
    deadline_s = min(max(request.timeout_ms, 0) / 1000, _MAX_WAIT_S)

    async def delete(name: str, partition: int, offset: int) -> DeleteRecordsPartitionResult:
        async with limit:
            return await _delete(broker, name, partition, offset)

    topics: list[DeleteRecordsTopicResult] = []
    async with asyncio.TaskGroup() as tasks:
        running = [
            (
                name,
                {
                    number: tasks.create_task(delete(name, number, offset))
                    for number, offset in offsets.items()
                },
            )
            for name, offsets in wanted.items()
        ]
        every = [task for _, started in running for task in started.values()]
        if every:
            _, late = await asyncio.wait(every, timeout=deadline_s)
            for task in late:
                task.cancel()
    for name, started in running:
        results = [
            DeleteRecordsPartitionResult(
                partition_index=number,
                low_watermark=_INVALID_LOW_WATERMARK,
                error_code=ErrorCode.REQUEST_TIMED_OUT,
            )
            if task.cancelled()
            else task.result()
            for number, task in started.items()
        ]
        topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    broker: Broker, name: str, partition: int, offset: int
) -> DeleteRecordsPartitionResult:
    try:
        start, error = await _moved(broker, name, partition, offset), ErrorCode.NONE
    except RefusedError as refused:
        start, error = _INVALID_LOW_WATERMARK, refused.code
    except (FencedError, UnavailableError):
        start, error = _INVALID_LOW_WATERMARK, ErrorCode.NOT_LEADER_OR_FOLLOWER
    except CorruptError:  # one of its keys; sealing says so
        start, error = _INVALID_LOW_WATERMARK, ErrorCode.KAFKA_STORAGE_ERROR
    return DeleteRecordsPartitionResult(
        partition_index=partition, low_watermark=start, error_code=error
    )


async def _moved(broker: Broker, name: str, partition: int, offset: int) -> int:
    topic = broker.topics.by_name.get(name)
    if not_led(broker, topic, partition) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if name in INTERNAL_TOPICS:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    engine, log = led_partition(broker, name, partition, -1)
    limits = broker.topics.limits.get(name)
    policies = "" if topic is None else topic.configs.get("cleanup.policy", "")
    if limits is not None and limits.compacted and "delete" not in policies:
        raise RefusedError(ErrorCode.POLICY_VIOLATION)
    if offset == HIGH_WATERMARK:
        offset = log.high_watermark
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return await engine.deletion.delete_to(log, offset)
