"""CreatePartitions: more partitions for existing topics.

Source: org.apache.kafka.controller.ReplicationControlManager#createPartitions.
Shell.
"""

from collections import Counter

from driftlog_agents.foundation.loop_slices import each
from driftlog_agents.handlers.api.create_topics import (
    MAX_WAIT_S,
    beyond_limit,
    check_replicas,
)
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import shown_replicas
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from driftlog_agents.topics.validation import CHANGED_AT_ONCE, check_partitions


async def handle(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Answer *request*."""
    if request.timeout_ms <= 0:  # as for CreateTopics
        over = RefusedError(ErrorCode.REQUEST_TIMED_OUT)
        return CreatePartitionsResponse(results=[_failed(t.name, over) for t in request.topics])
    counts = Counter(topic.name for topic in request.topics)
    results = [
        CreatePartitionsTopicResult(
            name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name."
        )
        for name, count in counts.items()
        if count > 1
    ]
    topics = [topic for topic in request.topics if counts[topic.name] == 1]
    added = {topic.name: _added(broker, topic) for topic in topics}
    try:
        check_partitions(sum(added.values()))
    except RefusedError as error:
        results += [_failed(topic.name, error) for topic in topics]
        return CreatePartitionsResponse(results=results)
    changed = [name for name, count in added.items() if count]
    refused = {} if request.validate_only else beyond_limit(broker, changed)
    results += [_failed(name, error) for name, error in refused.items()]
    topics = [topic for topic in topics if topic.name not in refused]
    deadline_s = min(request.timeout_ms / 1000, MAX_WAIT_S)
    done = await each(
        topics,
        lambda topic: _extend(broker, topic, request.validate_only, deadline_s),
        1 if request.validate_only else CHANGED_AT_ONCE,
    )
    return CreatePartitionsResponse(results=results + done)


def _added(broker: Broker, asked: CreatePartitionsTopic) -> int:
    topic = broker.topics.by_name.get(asked.name)
    return 0 if topic is None else max(asked.count - topic.partitions, 0)


def _failed(name: str, error: RefusedError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(
        name=name, error_code=error.code, error_message=error.message
    )


async def _extend(
    broker: Broker, asked: CreatePartitionsTopic, validate_only: bool, deadline_s: float
) -> CreatePartitionsTopicResult:
    try:
        await _create(broker, asked, validate_only, deadline_s)
    except RefusedError as error:
        return _failed(asked.name, error)
    except TimeoutError:
        return CreatePartitionsTopicResult(
            name=asked.name,
            error_code=ErrorCode.REQUEST_TIMED_OUT,
            error_message="The partitions are still being created.",
        )
    return CreatePartitionsTopicResult(name=asked.name)


async def _create(
    broker: Broker, asked: CreatePartitionsTopic, validate_only: bool, deadline_s: float
) -> None:
    topic = broker.topics.by_name.get(asked.name)
    if topic is None:
        if not broker.topics.known:
            raise RefusedError(ErrorCode.NOT_CONTROLLER)
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    added = asked.count - topic.partitions
    if asked.assignments is not None and added > 0:
        if len(asked.assignments) != added:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only "
                f"{len(asked.assignments)} assignment(s) were specified.",
            )
        for assignment in asked.assignments:
            check_replicas(broker, assignment.broker_ids, shown_replicas(broker, topic))
    await broker.topics.create_partitions(
        topic, asked.count, validate_only=validate_only, timeout_s=deadline_s
    )
