"""DescribeProducers: the idempotent producers that a partition remembers.

The time of a producer's last write is −1: a leader measures it by its monotonic clock, which means
nothing to a client.  There are no transactions.
Source: kafka.server.KafkaApis#handleDescribeProducersRequest, ReplicaManager#activeProducerState.
Shell.
"""

import asyncio
from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import led_partition
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from driftlog_agents.topics.validation import check_topic_name
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.producers import ProducerStates

_DEADLINE_S: Final = 30.0
_PRODUCER_BYTES: Final = 37
_MADE_BYTES: Final = 250
"""Memory of one producer while an answer is made: its object, and its bytes."""
_NO_TRANSACTIONS: Final = -1
"""Coordinator epoch of a producer without a transactional id."""


async def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """Answer *request*; a repeated partition is read once, and answered again."""
    known: dict[tuple[str, int], PartitionResponse] = {}

    async def described(name: str, number: int, no_topic: RefusedError | None) -> PartitionResponse:
        answer = known.get((name, number))
        if answer is not None:
            context.answer.add(_bytes(answer, len(answer.active_producers)))
            return answer
        answer = known[name, number] = PartitionResponse(partition_index=number)
        if no_topic is not None:
            answer.error_code, answer.error_message = no_topic.code, no_topic.message
            context.answer.add(_bytes(answer, 0))
            return answer
        producers = await _producers(broker, answer, name)
        ids = producers.ids()
        context.answer.add(_bytes(answer, len(ids)))
        await context.room(_MADE_BYTES * len(ids))
        async for producer_id in sliced(ids):
            last = producers.last_sequence(producer_id)
            if last is not None:  # it is not forgotten meanwhile
                answer.active_producers.append(_state(producer_id, *last))
        return answer

    topics = []
    async for topic in sliced(request.topics):
        no_topic = _no_topic(broker, topic.name)  # once: its message may repeat a long name
        partitions = [
            await described(topic.name, number, no_topic)
            async for number in sliced(topic.partition_indexes)
        ]
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _bytes(answer: PartitionResponse, producers: int) -> int:
    return 16 + len(answer.error_message or "") + _PRODUCER_BYTES * producers


def _no_topic(broker: Broker, name: str) -> RefusedError | None:
    """Why there is no topic *name*; None: there is one, or topics are not known yet."""
    if name in broker.topics.by_name or not broker.topics.known:
        return None
    try:
        check_topic_name(name)
    except RefusedError as error:
        return error
    return RefusedError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "This server does not host this topic-partition.",
    )


def _state(producer_id: int, epoch: int, last_sequence: int) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=last_sequence,
        coordinator_epoch=_NO_TRANSACTIONS,
    )


async def _producers(broker: Broker, answer: PartitionResponse, name: str) -> ProducerStates:
    """The producers of the partition that *answer* is of; none, and an error in *answer*, if they
    cannot be read."""
    try:
        engine, log = led_partition(broker, name, answer.partition_index, -1)
        async with asyncio.timeout(_DEADLINE_S):
            await engine.loaded(log)
        if log.damage:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.damage)
        return log.producers
    except RefusedError as error:
        answer.error_code, answer.error_message = error.code, error.message
    except (UnavailableError, TimeoutError):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ProducerStates()
