"""OffsetForLeaderEpoch: where a leader epoch ended, for consumers to detect a truncated log.

Source: kafka.server.ReplicaManager#lastOffsetForLeaderEpoch, LeaderEpochFileCache#endOffsetFor.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import each_within, sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import led_partition
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from driftlog_metadata.stores.errors import UnavailableError

_DEADLINE_S: Final = 10.0
"""How long an answer waits for a partition to load from the bucket.  Shorter than clients wait for
it (Java: 30 s): a client retries after a retriable error, and disconnects without an answer."""

_AT_ONCE: Final = 64
"""Partitions that are awaited at the same time: they load with or without a waiter."""


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Answer *request*: from memory, and then from the bucket."""
    topics: list[OffsetForLeaderTopicResult] = []
    lookups: list[tuple[str, OffsetForLeaderPartition, EpochEndOffset]] = []
    async for topic in sliced(request.topics):
        answers: list[EpochEndOffset] = []
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        async for asked in sliced(topic.partitions):
            answer = EpochEndOffset(partition=asked.partition)
            answers.append(answer)
            if not _at_once(broker, topic.topic, asked, answer):
                lookups.append((topic.topic, asked, answer))
    await each_within(_DEADLINE_S, lookups, lambda lookup: _later(broker, *lookup), _AT_ONCE)
    return OffsetForLeaderEpochResponse(topics=topics)


def _at_once(
    broker: Broker, topic: str, asked: OffsetForLeaderPartition, answer: EpochEndOffset
) -> bool:
    """Answer from memory; False: a lookup is needed, and without it clients retry."""
    try:
        _, log = led_partition(broker, topic, asked.partition, asked.current_leader_epoch)
    except RefusedError as error:
        answer.error_code = error.code
        return True
    if not _is_known(log, asked.leader_epoch):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return False
    answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(asked.leader_epoch)
    return True


async def _later(
    broker: Broker, topic: str, asked: OffsetForLeaderPartition, answer: EpochEndOffset
) -> None:
    try:
        engine, log = led_partition(broker, topic, asked.partition, asked.current_leader_epoch)
        await engine.loaded(log)
        _, log = led_partition(broker, topic, asked.partition, asked.current_leader_epoch)
        if log.damage and log.state is State.LOADING and asked.leader_epoch < log.epochs[0][0]:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.damage)
    except RefusedError as error:
        answer.error_code = error.code
    except (UnavailableError, TimeoutError):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    else:
        answer.error_code = ErrorCode.NONE
        answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(asked.leader_epoch)


def _is_known(log: PartitionLog, epoch: int) -> bool:
    """Whether the end of *epoch* is known without the bucket: the tail has every epoch from its
    first on, and the start of each later one."""
    if log.state is not State.LOADING:
        return True
    return bool(log.epochs) and epoch >= log.epochs[0][0]
