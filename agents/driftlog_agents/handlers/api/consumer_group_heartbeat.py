"""ConsumerGroupHeartbeat: a member of a KIP-848 group joins, stays or leaves.

Invalid requests are refused here, before the group is looked up.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService#consumerGroupHeartbeat and
#throwIfConsumerGroupHeartbeatRequestIsInvalid (4.3).
Shell.
"""

from uuid import UUID, uuid4

from driftlog_agents.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
)
from driftlog_agents.groups.coordinator import consumer_requests
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import (
    as_message,
    client_host,
    coordinating,
    rebalance_timeout_ms,
)
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from driftlog_metadata.schema.random_ids import kafka_text


async def handle(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Answer *request*."""
    try:
        return await _answer(broker, request, context)
    except RefusedError as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=as_message(error.message)
        )


async def _answer(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    groups = coordinating(broker)
    _refuse_invalid(request, context.api_version, groups.settings.consumer.assignors)
    if request.subscribed_topic_regex:
        await groups.check_pattern(request.subscribed_topic_regex)
    names = request.subscribed_topic_names
    beat = ConsumerHeartbeat(
        # In version 0 the coordinator makes the ids of members (KIP-1082).
        member_id=request.member_id or kafka_text(uuid4()),
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=rebalance_timeout_ms(broker, request.rebalance_timeout_ms),
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=_owned(request),
        client_id=context.client_id or "",
        client_host=client_host(context),
    )
    answer = await consumer_requests.heartbeat(groups, request.group_id, beat)
    assigned = answer.assignment
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=as_message(answer.message),
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None
        if assigned is None
        else Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=list(partitions))
                for topic_id, partitions in assigned.items()
            ]
        ),
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> dict[UUID, frozenset[int]] | None:
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in request.topic_partitions}


def _refuse_invalid(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    epoch = request.member_epoch
    if version >= 1 or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        _refuse_blank(request.member_id, "MemberId")
    _refuse_blank(request.group_id, "GroupId")
    _refuse_blank(request.instance_id, "InstanceId")
    _refuse_blank(request.rack_id, "RackId")
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if names is None and pattern is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _refuse_blank(value: str | None, what: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{what} can't be empty.")


def _invalid(why: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, why)
