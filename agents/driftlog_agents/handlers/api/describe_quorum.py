"""DescribeQuorum: the metadata store as a quorum, and how far each agent follows it.

The metadata store holds the metadata, and agents follow its watches; Kafka's tools ask for a quorum
of brokers.  So the agent that all answers name as the controller stands for the store as the only
voter, and the others are observers:

| in Kafka | here |
|---|---|
| high watermark, log end of the leader | newest revision of the topics that an agent has seen |
| log end of an observer | the revision that its session reports |
| leader epoch | 0: there are no elections |
| last fetch, last caught up | now for the voter; −1, not known, for the others |

Source: org.apache.kafka.raft.KafkaRaftClient#handleDescribeQuorumRequest.
Shell.
"""

from typing import Final

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import Node as Reachable
from driftlog_agents.handlers.common.cluster_metadata import controller_id, live_agents, nodes
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from driftlog_agents.topics.validation import METADATA_TOPIC

_UNKNOWN: Final = -1


async def handle(
    broker: Broker, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """Answer *request*; every partition but the one of the metadata is unknown."""
    wanted = [
        (topic.topic_name, [p.partition_index for p in topic.partitions])
        for topic in request.topics
    ]
    if wanted != [(METADATA_TOPIC, [0])]:
        return DescribeQuorumResponse(
            topics=[
                TopicData(
                    topic_name=name,
                    partitions=[
                        PartitionData(
                            partition_index=number,
                            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            error_message="This server does not host this topic-partition.",
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in wanted
            ]
        )
    reachable = nodes(broker, context.listener)
    leader = controller_id(broker, reachable)
    partition = _described(broker, leader)
    voter = reachable.get(leader)
    return DescribeQuorumResponse(
        topics=[TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[] if voter is None else [_node(voter, context.listener)],
    )


def _described(broker: Broker, leader: int) -> PartitionData:
    view = broker.view
    seen = {
        entry.said.node_id: entry.said.topics_revision
        for entry in view.sessions.values()
        if view.agent_of(entry.session_id) is not None
    }
    seen[broker.node_id] = view.topics_revision
    newest = max(seen.values())
    now_ms = broker.wall_ms()
    voters = [
        ReplicaState(
            replica_id=leader,
            log_end_offset=newest,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
    ]
    observers = [
        ReplicaState(
            replica_id=node_id,
            log_end_offset=seen.get(node_id, _UNKNOWN),
            last_fetch_timestamp=_UNKNOWN,
            last_caught_up_timestamp=_UNKNOWN,
        )
        for node_id in sorted(live_agents(broker))
        if node_id != leader
    ]
    return PartitionData(
        partition_index=0,
        error_message="",
        leader_id=leader,
        leader_epoch=0,
        high_watermark=newest,
        current_voters=voters if leader >= 0 else [],
        observers=observers,
    )


def _node(node: Reachable, listener: str) -> Node:
    at = Listener(name=listener, host=node.host, port=node.port)
    return Node(node_id=node.node_id, listeners=[at])
