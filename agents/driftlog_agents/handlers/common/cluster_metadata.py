"""Cluster metadata for the answers of several APIs: brokers, leaders, authorized operations.

    own partitions: their logs ──┐
    all others: broker.view ─────┴──▶ Metadata, DescribeCluster, DescribeTopicPartitions, …

Any agent answers for the cluster and carries out admin requests: topics and configs are
transactions in the metadata store, so no request is forwarded, and no agent is the controller.
Answers name a serving agent as the controller, because some admin clients treat NOT_CONTROLLER for
a topic as final.  An agent answers NOT_CONTROLLER only if it has no session and gets none in time.

Shell.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import Agent, Role, SessionStage, Topic, TopicPartition

_NOT_LEADER: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER

NOT_ASKED: Final = -0x8000_0000
"""The value where authorized operations were not requested."""

TOPIC_OPERATIONS: Final = sum(1 << op for op in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << op for op in (5, 7, 8, 9, 10, 11, 12))
"""Bits of AclOperation#code.  Without an authorizer everything is allowed (AuthHelper)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A live agent, with its address on the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None


def live_agents(broker: Broker) -> dict[int, Agent]:
    """The live agents with the role `serve` by node id, by the view; this agent as it is now.

    An agent without a session is fenced, in Kafka's words: it names the others, if there are any.
    So does one that lacks the role.
    """
    agents = broker.view.serving_agents()
    if Role.SERVE not in broker.agent.roles:
        return agents
    engine = broker.engine
    serves = engine is not None and engine.ready.is_set()
    if serves or not agents or broker.node_id in agents:
        agents[broker.node_id] = broker.agent
    return agents


def nodes(broker: Broker, listener: str) -> dict[int, Node]:
    """Live agents by node id; those without *listener* cannot be reached, and are left out
    (MetadataCache#getAliveBrokerNodes)."""
    agents = sorted(live_agents(broker).items())
    return {
        number: node for number, agent in agents if (node := _node(agent, listener)) is not None
    }


def node_of(broker: Broker, node_id: int, listener: str) -> Node | None:
    """One of `nodes`; None: it is not live, or has no *listener*."""
    agent = broker.agent if node_id == broker.node_id else broker.view.agents.get(node_id)
    return None if agent is None else _node(agent, listener)


def _node(agent: Agent, listener: str) -> Node | None:
    for at in agent.listeners:
        if at.name == listener:
            return Node(agent.node_id, at.host, at.port, agent.rack)
    return None


def controller_id(broker: Broker, reachable: Mapping[int, Node]) -> int:
    """The node id that answers name as the controller; −1: no agent can be reached.

    Any agent could be it.  It is the first that can be reached and serves (neither starts nor
    leaves), else the first that can be reached.  The view alone decides, for this agent as well, so
    that all agents name the same one.
    """
    view = broker.view
    serving = [
        node
        for node in reachable
        if (agent := view.agents.get(node)) is not None
        and (session := view.sessions.get(agent.session_id)) is not None
        and session.said.stage is SessionStage.SERVING
    ]
    return min(serving or reachable, default=-1)


def shown_replicas(broker: Broker, topic: Topic) -> int:
    """Replicas of each partition that clients see: as many as live agents, at most.

    Some clients (sarama) wait until every replica that they see exists.
    """
    return min(topic.replication_factor, len(live_agents(broker)))


def leader_of(broker: Broker, topic_id: UUID, partition: int) -> tuple[int, int]:
    """(node id, leader epoch) of a partition's leader; −1: there is none, or never was one.

    An agent knows what it leads before the view does; what the view says of this agent is the same,
    or over, or not begun.  While a partition moves, both agents name the old leader until the
    release, and then the next one: if the two named each other, clients would go to and fro, and
    librdkafka may stay with the wrong one for ever (librdkafka issue 4976).
    """
    tp = TopicPartition(topic_id, partition)
    agent, epoch = broker.view.leader_of(tp)
    log = _own_log(broker, topic_id, partition)
    if log is not None and log.leader_epoch >= epoch and log.state is not State.CLOSED:
        return (-1 if log.state is State.OFFLINE else broker.node_id), log.leader_epoch
    if agent is None:
        agent = broker.view.heir_of(tp)
    elif agent.node_id == broker.node_id:
        if log is not None:
            return broker.node_id, epoch  # its last flush is in progress
        agent = broker.view.agents.get(broker.view.plan.get(tp, -1))  # it is handed over
    if agent is None or agent.node_id == broker.node_id:
        return -1, epoch
    return agent.node_id, epoch


def _own_log(broker: Broker, topic_id: UUID, partition: int) -> PartitionLog | None:
    engine = broker.engine
    if engine is None or not engine.ready.is_set() or not engine.session.alive:
        return None
    if Role.SERVE not in broker.agent.roles:
        return None  # it commits what is on its disk, and releases it
    entry = engine.topics_by_id.get(topic_id)
    if entry is None or not 0 <= partition < len(entry.logs):
        return None
    return entry.logs[partition]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The leader of a partition, as Metadata and DescribeTopicPartitions return it."""

    error_code: ErrorCode
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    offline: list[int]


def partitions(
    broker: Broker,
    topic: Topic,
    start: int,
    end: int,
    reachable: Mapping[int, Node],
    *,
    unreachable: ErrorCode = ErrorCode.LISTENER_NOT_FOUND,
) -> Iterable[PartitionInfo]:
    """Partitions ``[start, end)`` of a topic; *unreachable*: if *reachable* lacks the leader.

    The bucket is the replica.  Agents stand for it: the leader, and then those that would lead
    next.  All of them are alive, so all are in sync (KRaftMetadataCache#getPartitionMetadata).
    """
    count = shown_replicas(broker, topic)
    for partition in range(start, end):
        leader, epoch = leader_of(broker, topic.topic_id, partition)
        replicas = [leader]
        if count > 1 or leader < 0:
            tp = TopicPartition(topic.topic_id, partition)
            replicas = broker.view.replicas(tp, topic.replication_factor)
            if not replicas and Role.SERVE in broker.agent.roles:
                replicas = [broker.node_id]
            if leader >= 0 and replicas[0] != leader:
                replicas = [leader, *(node for node in replicas if node != leader)][:count]
        offline = [node for node in replicas if node not in reachable]
        if leader in reachable:
            yield PartitionInfo(ErrorCode.NONE, leader, epoch, replicas, offline)
        elif leader >= 0:
            yield PartitionInfo(unreachable, -1, epoch, replicas, offline)
        else:
            log = _own_log(broker, topic.topic_id, partition)
            if log is not None and log.state is State.OFFLINE:
                offline = sorted({*offline, broker.node_id} & set(replicas))
            yield PartitionInfo(ErrorCode.LEADER_NOT_AVAILABLE, -1, epoch, replicas, offline)


def not_led(broker: Broker, topic: Topic | None, partition: int) -> ErrorCode:
    """The error of a partition that this agent does not lead: another one does, or it does not
    exist (ReplicaManager#getPartitionOrError)."""
    there = topic is not None and 0 <= partition < topic.partitions
    # Before the first session the agent does not know which topics exist.
    known = there or not broker.topics.known
    return _NOT_LEADER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def led_partition(
    broker: Broker, topic: str, partition: int, current_leader_epoch: int
) -> tuple[Engine, PartitionLog]:
    """The partition that a consumer asks for, led here in the epoch that the consumer knows.

    *current_leader_epoch* −1: the consumer sends none.

    Raises:
        RefusedError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR,
            FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH (KIP-320); all of them retriable.  Only the
            leader checks epochs: an agent has no copy of what others lead
            (Kafka: ReplicaManager#getPartitionOrException before
            Partition#checkCurrentLeaderEpoch).
    """
    if not_led(broker, broker.topics.by_name.get(topic), partition) is not _NOT_LEADER:
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
