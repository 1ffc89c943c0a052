"""CreateTopics: each topic succeeds or fails alone; success is answered once it has leaders.

If the client's timeout passes first, a topic that exists is answered as created (Kafka's controller
waits for no broker), and one that does not exist yet with REQUEST_TIMED_OUT.

Any replication factor is accepted, however many agents run: the bucket replicates, and clients'
defaults are 3 or −1.  The factor is stored; clients see at most one replica per agent.
Source: org.apache.kafka.controller.ReplicationControlManager#createTopics (4.3).
Shell.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from driftlog_agents.configs.definitions import resolve
from driftlog_agents.configs.topic import TOPIC_CONFIGS
from driftlog_agents.foundation.loop_slices import each
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import live_agents, shown_replicas
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from driftlog_agents.topics.validation import (
    CHANGED_AT_ONCE,
    MAX_TOPICS,
    NewTopic,
    check_partitions,
    over_topics_limit,
)
from driftlog_metadata.schema.model import Topic

MAX_WAIT_S: Final = 60.0
"""Longest wait, whatever timeout the client sends: its connection waits for the answer."""

_CONFIGS_BYTES: Final = 2 * 1024
"""Bytes of a topic's configs in the answer."""


async def handle(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Answer *request*."""
    if request.timeout_ms <= 0:  # In Kafka the controller's time is over before it begins.
        return CreateTopicsResponse(
            topics=[_failed(t.name, ErrorCode.REQUEST_TIMED_OUT, None) for t in request.topics]
        )
    counts = Counter(topic.name for topic in request.topics)
    results = [
        _failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    ]
    topics = [topic for topic in request.topics if counts[topic.name] == 1]
    try:
        check_partitions(sum(max(_partitions(broker, topic), 0) for topic in topics))
    except RefusedError as error:
        results += [_failed(topic.name, error.code, error.message) for topic in topics]
        return CreateTopicsResponse(topics=results)
    new = [topic.name for topic in topics if _is_new(broker, topic.name)]
    refused = {} if request.validate_only else beyond_limit(broker, new)
    results += [_failed(name, error.code, error.message) for name, error in refused.items()]
    topics = [topic for topic in topics if topic.name not in refused]
    deadline_s = min(request.timeout_ms / 1000, MAX_WAIT_S)
    defaults = _configs(broker, {})
    made = await each(
        topics,
        lambda topic: _create(broker, topic, request.validate_only, deadline_s, defaults),
        1 if request.validate_only else CHANGED_AT_ONCE,
    )
    await context.room(_CONFIGS_BYTES * len(made))
    return CreateTopicsResponse(topics=results + made)


def _is_new(broker: Broker, name: str) -> bool:
    try:
        broker.topics.check_new_name(name)
    except RefusedError:
        return False
    return True


def beyond_limit(broker: Broker, changed: list[str]) -> dict[str, RefusedError]:
    """Errors of those of *changed* topics that are too many for one request.  A client that asks
    again gets them, as the others are there then."""
    most = broker.settings.limits.driftlog_max_topics_per_request
    if len(changed) <= most:
        return {}
    broker.refusals.count(MAX_TOPICS)
    return dict.fromkeys(changed[most:], over_topics_limit(most, len(changed)))


async def _create(
    broker: Broker,
    asked: CreatableTopic,
    validate_only: bool,
    deadline_s: float,
    defaults: list[CreatableTopicConfigs],
) -> CreatableTopicResult:
    try:
        new = _new_topic(broker, asked)
        topic = await broker.topics.create(new, validate_only=validate_only, timeout_s=deadline_s)
    except RefusedError as error:
        return _failed(asked.name, error.code, error.message)
    except TimeoutError:
        return _failed(asked.name, ErrorCode.REQUEST_TIMED_OUT, "The topic is still being created.")
    return _created(broker, topic, defaults)


def _new_topic(broker: Broker, asked: CreatableTopic) -> NewTopic:
    broker.topics.check_new_name(asked.name)  # Kafka reports this error before any other.
    configs: dict[str, str] = {}
    missing = [config.name for config in asked.configs if config.value is None]
    if missing:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(missing)}",
        )
    for config in asked.configs:
        assert config.value is not None
        configs[config.name] = config.value
    try:
        partitions, replicas = _partitions_and_replicas(broker, asked)
    except RefusedError:
        broker.topics.check_configs(configs, {})  # Kafka reports this error first.
        raise
    return NewTopic(
        name=asked.name, partitions=partitions, replication_factor=replicas, configs=configs
    )


def _partitions_and_replicas(broker: Broker, asked: CreatableTopic) -> tuple[int, int]:
    if asked.assignments:
        _check_assignments(broker, asked)
        return len(asked.assignments), len(asked.assignments[0].broker_ids)
    if asked.replication_factor < -1 or asked.replication_factor == 0:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    return asked.num_partitions, asked.replication_factor


def _check_assignments(broker: Broker, asked: CreatableTopic) -> None:
    """Check that a manual assignment is complete, with as many replicas for each partition; the
    cluster decides the placement nevertheless."""
    if asked.replication_factor != -1 or asked.num_partitions != -1:
        what = "replication factor" if asked.replication_factor != -1 else "numPartitions"
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"A manual partition assignment was specified, but {what} was not set to -1.",
        )
    seen: set[int] = set()
    for assignment in asked.assignments:
        partition = assignment.partition_index
        if partition in seen:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {partition}",
            )
        seen.add(partition)
        check_replicas(broker, assignment.broker_ids, len(asked.assignments[0].broker_ids))
    if seen != set(range(len(seen))):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )


def check_replicas(broker: Broker, broker_ids: list[int], replicas: int) -> None:
    """Check that a manual assignment names *replicas* live brokers.

    Raises:
        RefusedError: INVALID_REPLICA_ASSIGNMENT: it does not.
    """

    def refused(message: str) -> RefusedError:
        return RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {message}."
        )

    if not broker_ids:
        raise refused("includes an empty replica list")
    before: int | None = None
    agents = live_agents(broker)
    for broker_id in sorted(broker_ids):
        if broker_id not in agents:
            raise refused(f"includes broker {broker_id}, but no such broker is registered")
        if broker_id == before:
            raise refused(f"includes the broker {broker_id} more than once")
        before = broker_id
    if len(broker_ids) != replicas:
        raise refused(
            f"includes a partition with {len(broker_ids)} replica(s), but this is not consistent "
            f"with previous partitions, which have {replicas} replica(s)"
        )


def _partitions(broker: Broker, topic: CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return broker.settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions


def _created(
    broker: Broker, topic: Topic, defaults: list[CreatableTopicConfigs]
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=shown_replicas(broker, topic),
        configs=_configs(broker, topic.configs) if topic.configs else defaults,
    )


def _configs(broker: Broker, configs: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=found.definition.name, value=found.value, config_source=found.source
        )
        for found in resolve(TOPIC_CONFIGS, configs, broker.inherited)
    ]


def _failed(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)
