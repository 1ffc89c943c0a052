"""DeleteRecords: moves the log start of partitions; −1 is the high watermark.

The answer is sent once the log start is stored: it never moves back, whichever agent leads next
(`sealing/record_deletion`).  Source: kafka.server.KafkaApis#handleDeleteRecordsRequest,
ReplicaManager#deleteRecordsOnLocalLog, kafka.cluster.Partition#deleteRecordsOnLeader.

Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import each_within, sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import led_partition, not_led
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError

HIGH_WATERMARK: Final = -1

_LEAST_WAIT_S: Final = 5.0
"""With less time than that, a request waits that long.  Kafka's leader deletes before it looks at
the timeout, which is for the followers; here a write of the metadata store stands for both.
Longer: a client waits longer than it asked for where the store is slow; shorter: it is told of a
timeout, and its records are deleted or not."""

_MAX_WAIT_S: Final = 60.0
_INVALID_LOW_WATERMARK: Final = -1

_AT_ONCE: Final = 32
"""Partitions whose keys are written at the same time: one client's share of the metadata store."""


async def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Answer *request*; the last offset counts for a partition that is named twice.

    Partitions that are not done when the timeout passes get REQUEST_TIMED_OUT.
    """
    deadline_s = min(max(request.timeout_ms / 1000, _LEAST_WAIT_S), _MAX_WAIT_S)
    wanted: dict[str, dict[int, int]] = {}
    async for topic in sliced(request.topics):
        offsets = wanted.setdefault(topic.name, {})
        async for partition in sliced(topic.partitions):
            offsets[partition.partition_index] = partition.offset
    topics: list[DeleteRecordsTopicResult] = []
    moves: list[tuple[str, int, DeleteRecordsPartitionResult]] = []
    async for name, offsets in sliced(wanted.items()):
        results: list[DeleteRecordsPartitionResult] = []
        topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
        async for number, offset in sliced(offsets.items()):
            result = DeleteRecordsPartitionResult(
                partition_index=number,
                low_watermark=_INVALID_LOW_WATERMARK,
                error_code=ErrorCode.REQUEST_TIMED_OUT,
            )
            results.append(result)
            try:
                _checked(broker, name, number, offset)
            except RefusedError as refused:
                result.error_code = refused.code
            else:
                moves.append((name, offset, result))
    await each_within(deadline_s, moves, lambda move: _move(broker, *move), _AT_ONCE)
    return DeleteRecordsResponse(topics=topics)


async def _move(
    broker: Broker, name: str, offset: int, result: DeleteRecordsPartitionResult
) -> None:
    try:
        engine, log, offset = _checked(broker, name, result.partition_index, offset)
        start = await engine.deletion.delete_to(log, offset)
    except RefusedError as refused:
        result.error_code = refused.code
    except (FencedError, UnavailableError):
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    except CorruptError:  # one of its keys; sealing logs it
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        result.low_watermark, result.error_code = start, ErrorCode.NONE


def _checked(
    broker: Broker, name: str, partition: int, offset: int
) -> tuple[Engine, PartitionLog, int]:
    """The partition, and the offset where its log is to start.

    Raises:
        RefusedError: this agent does not lead the partition, or its log cannot start there.
    """
    topic = broker.topics.by_name.get(name)
    if not_led(broker, topic, partition) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    engine, log = led_partition(broker, name, partition, -1)
    limits = broker.topics.limits.get(name)
    if limits is not None and not limits.deletes_records:
        raise RefusedError(ErrorCode.POLICY_VIOLATION)
    if offset == HIGH_WATERMARK:
        offset = log.high_watermark
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return engine, log, offset
