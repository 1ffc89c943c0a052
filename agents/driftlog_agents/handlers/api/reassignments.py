"""AlterPartitionReassignments and ListPartitionReassignments: placement decides the replicas.

A partition's only replica is the bucket.  The brokers that Metadata shows as its replicas are its
leader and the agents that would lead next: they are computed from the live agents, and not stored
(`cluster.placement`).  So no reassignment can be in progress, and none can begin:

| asked for | answer |
|---|---|
| a cancellation | NO_REASSIGNMENT_IN_PROGRESS |
| the replicas that are shown | success at once, as in Kafka |
| other live brokers | INVALID_REPLICA_ASSIGNMENT, whose message says what moves partitions here |
| brokers that are not live, none, or one twice | INVALID_REPLICA_ASSIGNMENT, as in Kafka |

Source: org.apache.kafka.controller.ReplicationControlManager#alterPartitionReassignments,
#listPartitionReassignments.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.api.create_topics import check_replicas
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import nodes, partitions
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from driftlog_agents.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from driftlog_metadata.schema.model import Topic
from driftlog_tiering.formats.layout import MAX_TOPIC_CHARS

_PARTITION_BYTES: Final = 800
"""Memory of one partition while an answer is made, beside a name in its message: its object, and
the message twice, as it is and as it is sent."""


async def alter(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Answer an AlterPartitionReassignments request."""
    factor = request.allow_replication_factor_change
    if not broker.topics.known:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=factor, error_code=ErrorCode.NOT_CONTROLLER
        )
    await context.room(
        sum(
            (_PARTITION_BYTES + 2 * min(len(topic.name), MAX_TOPIC_CHARS)) * len(topic.partitions)
            for topic in request.topics
        )
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=factor,
        error_message=None if request.topics else "",
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=await _answers(broker, topic, factor, context),
            )
            async for topic in sliced(request.topics)
        ],
    )


async def listing(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Answer a ListPartitionReassignments request: there are none."""
    code = ErrorCode.NONE if broker.topics.known else ErrorCode.NOT_CONTROLLER
    return ListPartitionReassignmentsResponse(error_code=code, error_message=None)


async def _answers(
    broker: Broker, topic: ReassignableTopic, factor: bool, context: RequestContext
) -> list[ReassignablePartitionResponse]:
    no_topic = f"Unable to find a topic named {topic.name}."  # once: the name may be a long one
    answers = []
    async for asked in sliced(topic.partitions):
        answer = ReassignablePartitionResponse(
            partition_index=asked.partition_index, error_message=None
        )
        try:
            found = broker.topics.by_name.get(topic.name)
            if found is None:
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_topic)
            _reassign(broker, found, asked, factor, context.listener)
        except RefusedError as error:
            answer.error_code, answer.error_message = error.code, error.message
        context.answer.add(len(answer.error_message or ""))
        answers.append(answer)
    return answers


def _reassign(
    broker: Broker, topic: Topic, asked: ReassignablePartition, factor: bool, listener: str
) -> None:
    name, number = topic.name, asked.partition_index
    if not 0 <= number < topic.partitions:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}."
        )
    if asked.replicas is None:
        raise RefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(broker, asked.replicas, len(asked.replicas))
    (info,) = partitions(broker, topic, number, number + 1, nodes(broker, listener))
    if not factor and len(asked.replicas) != len(info.replicas):
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(info.replicas)} to {len(asked.replicas)}",
        )
    if asked.replicas != info.replicas:
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The replicas of {name}-{number} are {info.replicas} and cannot be chosen: the bucket "
            "holds its records, and its leader follows from the agents that run. Start or stop "
            "agents, and partitions move by themselves.",
        )
