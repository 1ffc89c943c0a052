"""Placement: which agent is to lead which partition, computed alike by all of them.

    for each partition, oldest topics first:
        score every agent ──▶ the best one that is not full ──▶ it leads

Rendezvous hashing: an agent that joins takes its share from all others, and one that leaves
gives its share to all.  Full is ⌈1.1 × mean⌉, so that no agent has much more than the others;
10,000 partitions then move at most 1.1/n of all where one agent of n joins or leaves.  Topics
are taken in the order of their creation, so that a new one does not push others aside; it raises
the cap, which lets a few of those that were pushed aside go home: of 1,000 partitions that came
in topics of six, over five agents, 156 while all of them came, and five at most for one topic.
(Counting the cap by what was placed before would move none then; but of 10,000 partitions over 30
agents 1.8/n where one joins or leaves, and many more than now where a topic is deleted.)

There is no controller: agents that see the same agents and topics compute the same, and one that
has not yet tries a claim that is refused or that others undo.

Pure.
"""

from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition

_MASK: Final = (1 << 64) - 1
_CAP: Final = (11, 10)
"""Full is this much of the mean.  Less: more partitions move when an agent joins or leaves."""


def place(topics: Sequence[tuple[UUID, int]], nodes: Iterable[int]) -> dict[TopicPartition, int]:
    """Node id that is to lead each partition of *topics*, which are (topic id, partitions).

    The same for every caller that gives the topics in the order of their creation.  Empty without
    nodes.
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
    """The *count* nodes that suit *tp* best, the best first, whatever they lead already."""
    own = mixed(_topic_seed(tp.topic_id) + tp.partition)
    scores = [(mixed(own ^ mixed(node + 1)), node) for node in nodes]
    return [node for _, node in nlargest(count, scores)]


def keeper_of(session_id: str, nodes: Iterable[int]) -> int | None:
    """The node that keeps the flush records of a dead session: it wins the hash of its id."""
    own = mixed(int(session_id[:16], 16))
    return max(nodes, key=lambda node: (mixed(own ^ mixed(node + 1)), node), default=None)


def _topic_seed(topic_id: UUID) -> int:
    return mixed((topic_id.int ^ (topic_id.int >> 64)) & _MASK)


def mixed(x: int) -> int:
    """splitmix64's finalizer (Steele et al. 2014): every bit of *x* counts, and none is special."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
