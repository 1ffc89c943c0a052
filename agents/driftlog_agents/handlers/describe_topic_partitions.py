"""DescribeTopicPartitions: topics in the order of their names, in pages of partitions.

Source: kafka.server.handlers.DescribeTopicPartitionsRequestHandler,
KRaftMetadataCache#describeTopicResponse.
Shell.
"""

from collections.abc import Mapping
from typing import Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers.cluster import (
    INTERNAL_TOPICS,
    TOPIC_OPERATIONS,
    Node,
    nodes,
    partitions,
)
from driftlog_agents.new_topics import check_topic_name
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from driftlog_metadata.model import Topic

MAX_PARTITIONS: Final = 2_000
"""Of one answer: Kafka's ``max.request.partition.size.limit``."""


async def handle(
    broker: Broker,
    request: DescribeTopicPartitionsRequest,
    context: RequestContext,
) -> DescribeTopicPartitionsResponse:
    """Answer *request*."""
    cursor = request.cursor
    names = {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (names and cursor.topic_name not in names)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    name=topic.name, error_code=ErrorCode.INVALID_REQUEST
                )
                for topic in request.topics
            ]
        )
    everything = not request.topics
    after = "" if cursor is None else cursor.topic_name
    chosen = sorted(n for n in (broker.topics.by_name if everything else names) if n >= after)
    left = max(min(MAX_PARTITIONS, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse()
    reachable = nodes(broker, context.listener)
    for name in chosen:
        if not left:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = broker.topics.by_name.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        start = cursor.partition_index if cursor is not None and name == after else 0
        end = min(topic.partitions, start + left)
        response.topics.append(_described(broker, topic, start, end, reachable))
        if end < topic.partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
        left -= max(end - start, 0)
    return response


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
