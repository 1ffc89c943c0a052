"""DescribeProducers: the idempotent producers that a partition remembers.

When each of them wrote last is not told: −1.  A leader keeps it by its monotonic clock, which says
nothing to a client.  There are no transactions.
Source: kafka.server.KafkaApis#handleDescribeProducersRequest, ReplicaManager#activeProducerState.
Shell.
"""

import asyncio
from typing import Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers.cluster import led_partition
from driftlog_agents.handlers.slices import sliced
from driftlog_agents.new_topics import check_topic_name
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from driftlog_metadata.errors import UnavailableError

_DEADLINE_S: Final = 30.0
_NO_TRANSACTIONS: Final = -1
"""Coordinator epoch of a producer without a transactional id."""


async def handle(
    broker: Broker,
    request: DescribeProducersRequest,
    context: RequestContext,  # noqa: ARG001 - as all handlers
) -> DescribeProducersResponse:
    """Answer *request*."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=name,
                partitions=[
                    await _described(broker, name, number)
                    async for number in sliced(dict.fromkeys(numbers))
                ],
            )
            for name, numbers in _named_once(request).items()
        ]
    )


def _named_once(request: DescribeProducersRequest) -> dict[str, list[int]]:
    """Partitions by topic, whichever elements of the request name them."""
    found: dict[str, list[int]] = {}
    for topic in request.topics:
        found.setdefault(topic.name, []).extend(topic.partition_indexes)
    return found


async def _described(broker: Broker, name: str, partition: int) -> PartitionResponse:
    answer = PartitionResponse(partition_index=partition)
    try:
        if name not in broker.topics.by_name and broker.topics.known:
            check_topic_name(name)
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
        engine, log = led_partition(broker, name, partition, -1)
        async with asyncio.timeout(_DEADLINE_S):
            await engine.loaded(log)
        if log.damage:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.damage)
        answer.active_producers = [
            ProducerState(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=last_sequence,
                coordinator_epoch=_NO_TRANSACTIONS,
            )
            for producer_id, epoch, last_sequence in log.producers.last_sequences()
        ]
    except RefusedError as error:
        answer.error_code, answer.error_message = error.code, error.message
    except (UnavailableError, TimeoutError):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return answer
