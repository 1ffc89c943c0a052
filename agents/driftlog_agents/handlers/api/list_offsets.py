"""ListOffsets: offsets by time, exact to the record in every tier, and the special ones.

    −1 latest    −2 earliest    −3 of the largest timestamp
    −4 earliest local    −5 latest tiered    −6 earliest pending upload

Offsets that memory knows are answered first; the others are looked up in the bucket, some
partitions at once, until the client's timeout, or until it leaves.  There is no tier apart from
the log: −4 is the log's start, −5 and −6 have no offset.
Source: kafka.server.ReplicaManager#fetchOffset, UnifiedLog#fetchOffsetByTimestamp.
Shell.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from driftlog_agents.foundation.loop_slices import each_within, served_client, sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import led_partition
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""First request version of each special timestamp (ListOffsetsRequest)."""

_DEADLINE_S: Final = 30.0
"""Kafka's ``remote.list.offsets.request.timeout.ms``, if the client sends no timeout."""

_AT_ONCE: Final = 100
"""Partitions of one request that are looked up at once."""

_NOTHING: Final = (-1, -1, -1)


async def handle(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Answer *request*.

    There are no transactions: committed records are stable, and both isolation levels see them.
    """
    version = context.api_version
    deadline_s = _DEADLINE_S
    if version >= 10 and request.timeout_ms > 0:
        deadline_s = min(deadline_s, request.timeout_ms / 1000)
    twice = await _named_twice(request)
    topics: list[ListOffsetsTopicResponse] = []
    lookups: list[tuple[str, ListOffsetsPartition, ListOffsetsPartitionResponse]] = []
    async for topic in sliced(request.topics):
        answers: list[ListOffsetsPartitionResponse] = []
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        async for asked in sliced(topic.partitions):
            answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            answers.append(answer)
            if (topic.name, asked.partition_index) in twice or request.isolation_level not in (
                0,
                1,
            ):
                answer.error_code = ErrorCode.INVALID_REQUEST
            elif not _at_once(broker, topic.name, asked, version, answer):
                answer.error_code = ErrorCode.REQUEST_TIMED_OUT
                lookups.append((topic.name, asked, answer))
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            gone = partial(_end, limit)
            context.on_close.add(gone)
            if served_client().left:  # while the partitions were looked at
                gone()
            try:
                await each_within(
                    deadline_s, lookups, lambda one: _later(broker, context, *one), _AT_ONCE
                )
            finally:
                context.on_close.discard(gone)
    return ListOffsetsResponse(topics=topics)


def _end(limit: asyncio.Timeout) -> None:
    """The client has left: lookups end, whatever they wait for."""
    limit.reschedule(asyncio.get_running_loop().time())


async def _named_twice(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    async for topic in sliced(request.topics):
        async for asked in sliced(topic.partitions):
            key = topic.name, asked.partition_index
            (twice if key in seen else seen).add(key)
    return twice


def _at_once(
    broker: Broker,
    topic: str,
    asked: ListOffsetsPartition,
    version: int,
    answer: ListOffsetsPartitionResponse,
) -> bool:
    """Answer from memory; False: a lookup is needed."""
    try:
        if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, 1 << 15):
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)
        _, log = led_partition(broker, topic, asked.partition_index, asked.current_leader_epoch)
    except RefusedError as error:
        answer.error_code = error.code
        return True
    if asked.timestamp == LATEST:
        _found(answer, (log.high_watermark, -1, log.leader_epoch))
    if asked.timestamp in (EARLIEST, EARLIEST_LOCAL) and log.state is State.ONLINE:
        _found(answer, (log.log_start, -1, log.epoch_at(log.log_start)))
        return True
    return asked.timestamp in (LATEST, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)


async def _later(
    broker: Broker,
    context: RequestContext,
    topic: str,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    try:
        engine, log = led_partition(
            broker, topic, asked.partition_index, asked.current_leader_epoch
        )
        _found(answer, await _lookup(broker, engine, log, asked.timestamp))
        answer.error_code = ErrorCode.NONE
    except RefusedError as error:
        answer.error_code = error.code
    except TimeoutError:
        answer.error_code = ErrorCode.REQUEST_TIMED_OUT
    except (UnavailableError, OutcomeUnknownError, CorruptError) as error:
        # Damage is logged and counted by the reader; the client may ask again in either case.
        structlog.get_logger().warning(
            "offset_lookup_failed",
            client=context.client_host,
            partition=f"{topic}-{asked.partition_index}",
            timestamp=asked.timestamp,
            error=str(error),
        )
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR


async def _lookup(
    broker: Broker, engine: Engine, log: PartitionLog, timestamp: int
) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch)."""
    await engine.loaded(log)  # Log start and epochs below the tail come with the manifest.
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start, -1, log.epoch_at(log.log_start)
    if timestamp == MAX_TIMESTAMP:
        return await broker.reader.max_timestamp(log) or _NOTHING
    return await broker.reader.find_timestamp(log, timestamp) or _NOTHING


def _found(answer: ListOffsetsPartitionResponse, found: tuple[int, int, int]) -> None:
    answer.offset, answer.timestamp, answer.leader_epoch = found
