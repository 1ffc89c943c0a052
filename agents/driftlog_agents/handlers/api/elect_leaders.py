"""ElectLeaders: every partition that can have a leader has its preferred one already.

Leaders are computed from the live agents, and a new agent gets its share at once: there is nothing
to elect.  A partition that moves has no candidate yet.
Source: org.apache.kafka.controller.ReplicationControlManager#electLeaders,
ElectLeadersRequest#getErrorResponse.
Shell.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import leader_of
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from driftlog_tiering.formats.layout import MAX_TOPIC_CHARS

_PARTITION_BYTES: Final = 300
"""Memory of one partition while an answer is made, beside a name in its message: its object, and
its bytes."""

PREFERRED: Final = 0
UNCLEAN: Final = 1

_NO_ELECTION: Final = {
    PREFERRED: (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "The preferred leader was not available.",
    ),
    UNCLEAN: (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
    ),
}


async def handle(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Answer *request*; null asks for all partitions, and the answer has those without a leader."""
    kind = request.election_type
    if kind not in _NO_ELECTION:
        return await _unknown_type(request)
    if not broker.topics.known:
        return ElectLeadersResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if request.topic_partitions is not None:
        wanted = [(asked.topic, asked.partitions) for asked in request.topic_partitions]
    else:
        wanted = []
        async for name, topic in sliced(sorted(broker.topics.by_name.items())):
            numbers = [
                number
                async for number in sliced(range(topic.partitions))
                if leader_of(broker, topic.topic_id, number)[0] < 0
            ]
            wanted.append((name, numbers))
    await context.room(
        sum(
            (_PARTITION_BYTES + min(len(name), MAX_TOPIC_CHARS)) * len(numbers)
            for name, numbers in wanted
        )
    )

    async def elected(name: str, numbers: Iterable[int]) -> AsyncIterator[PartitionResult]:
        no_topic = f"No such topic as {name}"  # once: a client may send a long name
        async for number in sliced(numbers):
            result = _elect(broker, name, number, kind, no_topic)
            context.answer.add(len(result.error_message or ""))
            yield result

    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=name,
                partition_result=[result async for result in elected(name, numbers)],
            )
            async for name, numbers in sliced(wanted)
        ]
    )


def _elect(broker: Broker, name: str, partition: int, kind: int, no_topic: str) -> PartitionResult:
    topic = broker.topics.by_name.get(name)
    if topic is None or not 0 <= partition < topic.partitions:
        return PartitionResult(
            partition_id=partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=(
                no_topic if topic is None else f"No such partition as {name}-{partition}"
            ),
        )
    code, message = _NO_ELECTION[kind]
    if leader_of(broker, topic.topic_id, partition)[0] >= 0:
        code = ErrorCode.ELECTION_NOT_NEEDED
        message = "Leader election not needed for topic partition."
    return PartitionResult(partition_id=partition, error_code=code, error_message=message)


async def _unknown_type(request: ElectLeadersRequest) -> ElectLeadersResponse:
    """INVALID_REQUEST; as in Kafka, no error if the list of partitions is empty."""
    asked = request.topic_partitions
    if asked is not None and not asked:
        return ElectLeadersResponse()
    code, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=number, error_code=code, error_message=message)
                    async for number in sliced(topic.partitions)
                ],
            )
            async for topic in sliced(asked or [])
        ],
    )
