"""What several answers say about the cluster: brokers, leaders, and who may do what.

Shell.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.log.engine import Engine
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.model import Agent, Listener, Topic

NOT_ASKED: Final = -0x8000_0000
"""Authorized operations that nobody asked for."""

TOPIC_OPERATIONS: Final = sum(1 << op for op in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << op for op in (5, 7, 8, 9, 10, 11, 12))
"""Bits of AclOperation#code.  Without an authorizer everything is allowed (AuthHelper)."""

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Topic#INTERNAL_TOPICS.  None of them exists here; a client that makes one means Kafka's."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who leads a partition, as Metadata and DescribeTopicPartitions say it."""

    error_code: ErrorCode
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    offline: list[int]


def partitions(broker: Broker, topic: Topic, start: int, end: int) -> Iterable[PartitionInfo]:
    """Partitions ``[start, end)`` of a topic.

    The bucket is the replica; its agent stands for it, in sync as long as it leads.
    """
    node = broker.node_id
    engine = broker.engine
    entry = None if engine is None else engine.topics_by_id.get(topic.topic_id)
    logs: list[PartitionLog | None] = [] if entry is None else entry.logs
    for partition in range(start, end):
        log = logs[partition] if partition < len(logs) else None
        if log is not None and log.state in (State.ONLINE, State.LOADING):
            yield PartitionInfo(ErrorCode.NONE, node, log.leader_epoch, [node], [])
        elif log is not None and log.state is State.OFFLINE:
            yield PartitionInfo(
                ErrorCode.LEADER_NOT_AVAILABLE, -1, log.leader_epoch, [node], [node]
            )
        else:
            yield PartitionInfo(ErrorCode.LEADER_NOT_AVAILABLE, -1, -1, [node], [node])


def shown_replicas(broker: Broker, topic: Topic) -> int:
    """How many replicas clients are shown of each partition; there are as many as agents at most.

    Streams and sarama wait until what they asked for is there, or for as many as there are.
    """
    agents = {broker.node_id}
    return min(topic.replication_factor, len(agents))


def listener(agent: Agent, context: RequestContext) -> Listener:
    """Where *agent* is reached by those who came in through the same listener."""
    for candidate in agent.listeners:
        if candidate.name == context.listener:
            return candidate
    return agent.listeners[0]


def led_partition(
    broker: Broker, topic: str, partition: int, current_leader_epoch: int
) -> tuple[Engine, PartitionLog]:
    """The partition that a consumer asks about, led here in the epoch that it knows of.

    *current_leader_epoch* −1: it does not say.

    Raises:
        RefusedError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR,
            FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH (KIP-320); all of them retriable.
    """
    known = broker.topics.by_name.get(topic)
    there = known is not None and 0 <= partition < known.partitions
    if not there and broker.topics.known:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    engine = broker.engine
    log = None if engine is None else engine.log(topic, partition)
    if engine is None or log is None or log.state is State.CLOSED or not engine.session.alive:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if log.state is State.OFFLINE:
        raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline_reason)
    if current_leader_epoch not in (-1, log.leader_epoch):
        if current_leader_epoch < log.leader_epoch:
            raise RefusedError(ErrorCode.FENCED_LEADER_EPOCH)
        raise RefusedError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    return engine, log
