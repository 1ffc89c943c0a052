"""Metadata: brokers, topics, leaders; and automatic creation of topics that a client names.

Source: kafka.server.KafkaApis#handleTopicMetadataRequest.
Shell.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    Node,
    controller_id,
    leader_of,
    nodes,
    partitions,
)
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from driftlog_agents.protocol.types import NULL_UUID
from driftlog_agents.topics.validation import (
    INTERNAL_TOPICS,
    MAX_TOPICS,
    RESERVED_TOPICS,
    check_topic_name,
)
from driftlog_metadata.schema.model import Topic

_CREATION_WAIT_S: Final = 0.5
"""Longest time an answer waits for a topic that it creates; then the client asks again.  Longer:
fewer clients ask twice.  Shorter: later requests of the connection wait less (Kafka does not
wait)."""


_PARTITION_BYTES: Final = 300
"""Memory of one partition while an answer is made: its object, and its bytes."""


async def handle(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse:
    """Answer *request*.

    Raises:
        RefusedError: all topics are requested, and the agent does not know them before its first
            session.
    """
    version = context.api_version
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    topics = await _topics(broker, request, context, operations)
    there = sum(topic.partitions for topic in topics if isinstance(topic, Topic))
    await context.room(there * _PARTITION_BYTES)
    reachable = nodes(broker, context.listener)
    code = ErrorCode.LEADER_NOT_AVAILABLE if version < 6 else ErrorCode.LISTENER_NOT_FOUND
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in reachable.values()
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller_id(broker, reachable),
        topics=[
            await _described(broker, topic, reachable, code, operations)
            if isinstance(topic, Topic)
            else topic
            async for topic in sliced(topics)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


async def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext, operations: int
) -> list[Topic | MetadataResponseTopic]:
    """The requested topics, and an error for each that does not exist."""
    asked, version = request.topics, context.api_version
    if asked is None or (version == 0 and not asked):
        if not broker.topics.known:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "topics are not known yet")
        return [*sorted(broker.topics.by_name.values(), key=lambda topic: topic.name)]
    names: dict[str, None] = {}
    ids: dict[UUID, MetadataRequestTopic] = {}
    nameless = False
    async for topic in sliced(asked):
        if topic.topic_id != NULL_UUID:
            ids.setdefault(topic.topic_id, topic)
        if topic.name is None:
            nameless = True
        elif topic.name not in names:
            names[topic.name] = None
            context.answer.add(len(topic.name))
    if version < 12 and (nameless or ids):
        # Versions 10 and 11 have the field, and brokers of that time did not read it.
        code = ErrorCode.INVALID_REQUEST
        return [_failed(code, t.name or "", t.topic_id) async for t in sliced(asked)]
    if ids:
        return [_by_id(broker, t) async for t in sliced(ids.values())]
    if nameless:
        return [_failed(ErrorCode.INVALID_REQUEST, t.name, NULL_UUID) async for t in sliced(asked)]
    create = broker.settings.auto_create_topics_enable and (
        version < 4 or request.allow_auto_topic_creation
    )
    refused = await _create_missing(broker, names) if create else {}
    return [_by_name(broker, name, refused.get(name), operations) async for name in sliced(names)]


def _by_id(broker: Broker, asked: MetadataRequestTopic) -> Topic | MetadataResponseTopic:
    topic = broker.topics.by_id.get(asked.topic_id)
    return topic or _failed(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)


def _by_name(
    broker: Broker, name: str, refused: ErrorCode | None, operations: int
) -> Topic | MetadataResponseTopic:
    topic = broker.topics.by_name.get(name)
    return topic or _failed(refused or _missing(broker, name), name, NULL_UUID, operations)


def _missing(broker: Broker, name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except RefusedError as error:
        return error.code
    if not broker.topics.known:
        return ErrorCode.LEADER_NOT_AVAILABLE  # The topic may exist.
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _create_missing(broker: Broker, names: Iterable[str]) -> dict[str, ErrorCode]:
    """Start to create the missing topics; returns an error for each until it exists.

    The answer waits for them for a while; after that their creation continues.
    """
    topics, most = broker.topics, broker.settings.limits.driftlog_max_topics_per_request
    refused: dict[str, ErrorCode] = {}
    asked: dict[str, asyncio.Task[ErrorCode] | None] = {}
    async for name in sliced(names):
        if name in topics.by_name or name in RESERVED_TOPICS:
            continue
        refused[name] = ErrorCode.LEADER_NOT_AVAILABLE
        try:
            topics.check_new_name(name)
        except RefusedError as error:
            refused[name] = error.code
        else:
            if len(asked) >= most:  # The client may ask again for the others.
                broker.refusals.count(MAX_TOPICS)
                break
            asked[name] = topics.ask_for(name)
    waiting = [name for name, task in asked.items() if task is not None or topics.is_making(name)]
    led = dict.fromkeys(waiting, 0)

    def answerable() -> bool:
        while waiting:
            name = waiting[-1]
            topic, task = topics.by_name.get(name), asked[name]
            if topic is not None:
                while led[name] < topic.partitions:
                    if leader_of(broker, topic.topic_id, led[name])[0] < 0:
                        return False
                    led[name] += 1
            elif task is None or not task.done():
                return False
            waiting.pop()
        return True

    await broker.cluster.until(answerable, _CREATION_WAIT_S)
    for name, task in asked.items():
        code = task.result() if task is not None and task.done() and not task.cancelled() else None
        match code:
            case None | ErrorCode.NONE | ErrorCode.NOT_CONTROLLER | ErrorCode.TOPIC_ALREADY_EXISTS:
                pass  # It is being created, or there is no session: retry.
            case _:
                refused[name] = code
    return refused


async def _described(
    broker: Broker,
    topic: Topic,
    reachable: Mapping[int, Node],
    unreachable: ErrorCode,
    operations: int,
) -> MetadataResponseTopic:
    infos = partitions(broker, topic, 0, topic.partitions, reachable, unreachable=unreachable)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=info.error_code,
                partition_index=index,
                leader_id=info.leader_id,
                leader_epoch=info.leader_epoch,
                replica_nodes=info.replicas,
                isr_nodes=info.replicas,
                offline_replicas=info.offline,
            )
            async for index, info in sliced(enumerate(infos))
        ],
        topic_authorized_operations=operations,
    )


def _failed(
    code: ErrorCode, name: str | None, topic_id: UUID, operations: int = NOT_ASKED
) -> MetadataResponseTopic:
    """An answer with an error.  Kafka tells the operations on a topic that is named, there or not,
    and those on none that is asked for by its id."""
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations,
    )
