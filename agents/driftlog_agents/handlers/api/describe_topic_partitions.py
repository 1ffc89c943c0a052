"""DescribeTopicPartitions: topics in the order of their names, in pages of partitions.

Source: kafka.server.handlers.DescribeTopicPartitionsRequestHandler,
KRaftMetadataCache#describeTopicResponse.
Shell.
"""

from collections.abc import Iterable, Mapping
from heapq import merge
from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import (
    TOPIC_OPERATIONS,
    Node,
    nodes,
    partitions,
)
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from driftlog_agents.topics.validation import INTERNAL_TOPICS, check_topic_name
from driftlog_metadata.schema.model import Topic

MAX_PARTITIONS: Final = 2_000
"""Partitions of one answer, at most: Kafka's ``max.request.partition.size.limit``."""

_PARTITION_BYTES: Final = 300
"""Memory of one partition while an answer is made: its object, and its bytes."""

_SORTED_AT_ONCE: Final = 4_000


async def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Answer *request*."""
    cursor = request.cursor
    names = {topic.name async for topic in sliced(request.topics)}
    if cursor is not None and (
        cursor.partition_index < 0 or (names and cursor.topic_name not in names)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    name=topic.name, error_code=ErrorCode.INVALID_REQUEST
                )
                async for topic in sliced(request.topics)
            ]
        )
    everything = not request.topics
    after = "" if cursor is None else cursor.topic_name
    chosen = await _sorted(list(broker.topics.by_name) if everything else list(names))
    left = max(min(MAX_PARTITIONS, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse()
    reachable = nodes(broker, context.listener)
    async for name in sliced(chosen):
        if name < after:
            continue
        if not left:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = broker.topics.by_name.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        start = cursor.partition_index if cursor is not None and name == after else 0
        end = min(topic.partitions, start + left)
        await context.room(max(end - start, 0) * _PARTITION_BYTES)
        response.topics.append(_described(broker, topic, start, end, reachable))
        if end < topic.partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
        left -= max(end - start, 0)
    return response


async def _sorted(names: list[str]) -> Iterable[str]:
    """*names* in order, sorted in slices: a hundred thousand take a tenth of a second."""
    parts = range(0, len(names), _SORTED_AT_ONCE)
    return merge(*[sorted(names[at : at + _SORTED_AT_ONCE]) async for at in sliced(parts)])


def _described(
    broker: Broker, topic: Topic, start: int, end: int, reachable: Mapping[int, Node]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=info.error_code,
                partition_index=start + i,
                leader_id=info.leader_id,
                leader_epoch=info.leader_epoch,
                replica_nodes=info.replicas,
                isr_nodes=info.replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=info.offline,
            )
            for i, info in enumerate(partitions(broker, topic, start, end, reachable))
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except RefusedError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        name=name, error_code=code, topic_authorized_operations=TOPIC_OPERATIONS
    )
