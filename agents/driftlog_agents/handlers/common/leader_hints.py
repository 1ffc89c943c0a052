"""Adds the leader and its address to answers of "not the leader", so that clients move.

The conditions are Kafka's: Produce from version 10 on for NOT_LEADER_OR_FOLLOWER, Fetch from 16 on
for that and FENCED_LEADER_EPOCH.  A leader without the client's listener has no address; the client
then requests metadata, as it does without a hint.

Unlike in Kafka a partition without a leader has no hint: librdkafka counts a hint of leader −1 in a
Fetch answer, does not fill it in, and reads out of bounds (librdkafka issue 5280).
Source: KIP-951; kafka.server.KafkaApis#handleProduceRequest, #handleFetchRequest and
#getCurrentLeader.
Shell.
"""

from typing import Final
from uuid import UUID

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import Node, leader_of, node_of
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import fetch, produce

PRODUCE_SINCE: Final = 10
"""From this version on an answer to Produce has hints."""
FETCH_SINCE: Final = 16
"""The same for Fetch."""

_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_FENCED: Final = int(ErrorCode.FENCED_LEADER_EPOCH)


def add_to_produce(
    broker: Broker, version: int, response: produce.ProduceResponse, listener: str
) -> None:
    """Add the leaders of partitions that were refused here; *listener* is the client's."""
    if version < PRODUCE_SINCE:
        return
    hints = ProduceHints(broker, listener)
    for topic in response.responses:
        for answer in topic.partition_responses:
            hints.add(topic.name, answer)
    response.node_endpoints = hints.endpoints()


class ProduceHints:
    """As `add_to_produce`, partition by partition."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._listener = listener
        self._found: dict[int, Node] = {}

    def add(self, topic: str, answer: produce.PartitionProduceResponse) -> None:
        """Add the leader of a partition of *topic*, if the partition was refused for that."""
        if answer.error_code != _NOT_LEADER:
            return
        known = self._broker.topics.by_name.get(topic)
        if known is None:
            return
        leader, epoch = _leader(
            self._broker,
            known.topic_id,
            answer.index,
            self._listener,
            self._found,
            answer.error_code,
        )
        if leader >= 0:
            answer.current_leader = produce.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)

    def endpoints(self) -> list[produce.NodeEndpoint]:
        """The addresses of the leaders that were added."""
        return [
            produce.NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port, rack=n.rack)
            for n in self._found.values()
        ]


def add_to_fetch(
    broker: Broker, version: int, response: fetch.FetchResponse, listener: str
) -> None:
    """Add the leaders of partitions that were not read here; *listener* is the client's."""
    if version < FETCH_SINCE:
        return
    hints = FetchHints(broker, listener)
    for topic in response.responses:
        for data in topic.partitions:
            hints.add(topic.topic_id, data)
    response.node_endpoints = hints.endpoints()


class FetchHints:
    """As `add_to_fetch`, partition by partition."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._listener = listener
        self._found: dict[int, Node] = {}

    def add(self, topic_id: UUID, data: fetch.PartitionData) -> None:
        """Add the leader of a partition of the topic, if the partition was not read for that."""
        error = data.error_code
        if error != _NOT_LEADER and error != _FENCED:
            return
        leader, epoch = _leader(
            self._broker, topic_id, data.partition_index, self._listener, self._found, error
        )
        if leader >= 0:
            data.current_leader = fetch.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)

    def endpoints(self) -> list[fetch.NodeEndpoint]:
        """The addresses of the leaders that were added."""
        return [
            fetch.NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port, rack=n.rack)
            for n in self._found.values()
        ]


def _leader(
    broker: Broker,
    topic_id: UUID,
    partition: int,
    listener: str,
    found: dict[int, Node],
    error_code: int,
) -> tuple[int, int]:
    leader, epoch = leader_of(broker, topic_id, partition)
    if leader == broker.node_id and error_code == _NOT_LEADER:
        return -1, epoch  # it is being handed over, and has no other leader yet
    if leader >= 0 and leader not in found:
        node = node_of(broker, leader, listener)
        if node is not None:
            found[leader] = node
    return leader, epoch
