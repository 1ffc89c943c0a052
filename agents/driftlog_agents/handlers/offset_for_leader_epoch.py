"""OffsetForLeaderEpoch: where a leader epoch ended, for consumers whose log may have been cut.

Source: kafka.server.ReplicaManager#lastOffsetForLeaderEpoch, LeaderEpochFileCache#endOffsetFor.
Shell.
"""

import asyncio
from typing import Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers.cluster import led_partition
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from driftlog_metadata.errors import UnavailableError

_DEADLINE_S: Final = 10.0
"""How long an answer waits for what the bucket knows of a partition.  Less than clients wait for
the answer (Java: 30 s): who is told to ask again goes on, who is told nothing hangs up."""


async def handle(
    broker: Broker,
    request: OffsetForLeaderEpochRequest,
    context: RequestContext,  # noqa: ARG001 - as all handlers
) -> OffsetForLeaderEpochResponse:
    """Answer *request*."""
    async with asyncio.TaskGroup() as tasks:
        answers = [
            (
                topic.topic,
                [tasks.create_task(_end(broker, topic.topic, p)) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(topic=name, partitions=[task.result() for task in ends])
            for name, ends in answers
        ]
    )


async def _end(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    try:
        engine, log = led_partition(broker, topic, asked.partition, asked.current_leader_epoch)
        if not _is_known(log, asked.leader_epoch):
            async with asyncio.timeout(_DEADLINE_S):
                await engine.loaded(log)
            _, log = led_partition(broker, topic, asked.partition, asked.current_leader_epoch)
        if log.damage and log.state is State.LOADING and asked.leader_epoch < log.epochs[0][0]:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.damage)
        answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(asked.leader_epoch)
    except RefusedError as error:
        answer.error_code = error.code
    except (UnavailableError, TimeoutError):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return answer


def _is_known(log: PartitionLog, epoch: int) -> bool:
    """Whether the end of *epoch* is known without the bucket: the tail has every epoch from its
    first on, and where each of the later ones begins."""
    if log.state is not State.LOADING:
        return True
    return bool(log.epochs) and epoch >= log.epochs[0][0]
