"""DeleteTopics: by name, or from version 6 on by id; once it is answered, the name is free.

Source: org.apache.kafka.server.ControllerApis#deleteTopics.
Shell.
"""

from collections import Counter
from uuid import UUID

from driftlog_agents.foundation.loop_slices import each, sliced
from driftlog_agents.handlers.api.create_topics import MAX_WAIT_S
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from driftlog_agents.protocol.types import NULL_UUID
from driftlog_agents.topics.validation import CHANGED_AT_ONCE
from driftlog_metadata.schema.model import Topic

_UNKNOWN_NAME = "This server does not host this topic-partition."
_UNKNOWN_ID = "This server does not host this topic ID."
_SUPPLIED = "The provided topic name maps to an ID that was already supplied."


async def handle(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Answer *request*."""
    asked = request.topics
    if context.api_version < 6:
        asked = [DeleteTopicState(name=name) for name in request.topic_names]
    if request.timeout_ms <= 0:  # as for CreateTopics
        over = ErrorCode.REQUEST_TIMED_OUT
        return DeleteTopicsResponse(
            responses=[_result(state.name, state.topic_id, over, None) for state in asked]
        )
    names = Counter(state.name for state in asked if state.topic_id == NULL_UUID)
    ids = Counter(s.topic_id for s in asked if s.name is None and s.topic_id != NULL_UUID)
    deadline_s = min(request.timeout_ms / 1000, MAX_WAIT_S)
    refusals: dict[tuple[str | None, UUID, str], None] = {}
    deletions: dict[tuple[str | None, UUID], None] = {}
    async for state in sliced(asked):
        refused, topic_id = _refused(state, names, ids), state.topic_id
        topic = _named(broker, state.name, topic_id)
        if refused is None and topic and names[topic.name] == 1 and ids[topic.topic_id]:
            if state.name is None:
                continue  # The answer is that to its name.
            refused, topic_id = _SUPPLIED, topic.topic_id
        if refused is None:
            deletions[state.name, topic_id] = None
        else:
            refusals[state.name, topic_id, refused] = None
    done = await each(deletions, lambda one: _delete(broker, *one, deadline_s), CHANGED_AT_ONCE)
    responses = [
        _result(name, topic_id, ErrorCode.INVALID_REQUEST, message)
        for name, topic_id, message in refusals
    ]
    return DeleteTopicsResponse(responses=responses + done)


def _named(broker: Broker, name: str | None, topic_id: UUID) -> Topic | None:
    topics = broker.topics
    return topics.by_id.get(topic_id) if name is None else topics.by_name.get(name)


def _refused(state: DeleteTopicState, names: Counter[str | None], ids: Counter[UUID]) -> str | None:
    """Why the topic is not deleted; None: the deletion is tried."""
    if state.name is not None and state.topic_id != NULL_UUID:
        return "You may not specify both topic name and topic id."
    if state.name is None and state.topic_id == NULL_UUID:
        return "Neither topic name nor id were specified."
    if state.name is not None and names[state.name] > 1:
        return "Duplicate topic name."
    return "Duplicate topic id." if ids[state.topic_id] > 1 else None


async def _delete(
    broker: Broker, name: str | None, topic_id: UUID, deadline_s: float
) -> DeletableTopicResult:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_NAME
    if name is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID, _UNKNOWN_ID
    topic = _named(broker, name, topic_id)
    if topic is None:
        if not broker.topics.known:
            unknown = ErrorCode.NOT_CONTROLLER, "the agent is starting a session; try again"
        return _result(name, topic_id, *unknown)
    try:
        await broker.topics.delete(topic, timeout_s=deadline_s)
    except RefusedError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
            return _result(name, topic_id, *unknown)
        return _result(name, topic_id, error.code, error.message)
    except TimeoutError:
        message = "The topic is still being deleted."
        return _result(name, topic_id, ErrorCode.REQUEST_TIMED_OUT, message)
    return _result(topic.name, topic.topic_id, ErrorCode.NONE, None)


def _result(
    name: str | None, topic_id: UUID, code: ErrorCode, message: str | None
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=code, error_message=message
    )
