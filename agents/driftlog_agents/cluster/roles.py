"""Which agents do the upkeep of a partition, and of the bucket, by the roles of the live agents.

    the leader has the role `seal` ──yes──▶ the leader
                    └─no─▶ agents with the role ──some──▶ the best by rendezvous hashing of the
                                    └─none─▶ the leader   partition, and the leader after all others

All agents compute the same from the same agents and leaders.  While their views differ, two of them
may do the same work, or none for a moment: the first edit of a manifest makes the other one void,
and no acknowledgement needs this work.

Pure.
"""

from typing import Final
from uuid import UUID

from driftlog_agents.cluster.placement import ranked
from driftlog_agents.cluster.view import ClusterView
from driftlog_metadata.schema.model import Role, SessionStage, TopicPartition

CLEANUP_POLICY: Final = "cleanup.policy"


def sealing_agents(view: ClusterView) -> list[int]:
    """Node ids of the agents with the role `seal` that are ready and do not leave, ascending."""
    return sorted(
        node
        for node, agent in view.agents.items()
        if Role.SEAL in agent.roles
        and (session := view.sessions.get(agent.session_id)) is not None
        and session.said.stage is SessionStage.SERVING
    )


def upkeep_agents(view: ClusterView, tp: TopicPartition) -> list[int]:
    """Node ids of the agents that may do the upkeep of *tp*, the one that does it first.

    The next one is for work that the first one cannot take.  The leader is the last; it is not
    among them while *tp* has none.  Empty: no agent is there.
    """
    entry = view.leaders.get(tp)
    leader = None if entry is None else view.agent_of(entry.leader.session_id)
    if leader is not None and Role.SEAL in leader.roles:
        return [leader.node_id]
    nodes = sealing_agents(view)
    found = ranked(tp, nodes, len(nodes))
    return found if leader is None else [*found, leader.node_id]


def keeps_upkeep(view: ClusterView, roles: frozenset[Role]) -> bool:
    """Whether a leader with *roles* does the upkeep of its partitions itself: `upkeep_agents` has
    it first."""
    return Role.SEAL in roles or not sealing_agents(view)


def has_own_policy(view: ClusterView, topic_id: UUID) -> bool:
    """Whether the topic's own configs say how it is cleaned.

    Only such a topic is compacted by another agent than its leader.  What a topic inherits depends
    on the start settings and the configs of the agent: its leader may have accepted records by
    other ones.
    """
    entry = view.topics.get(topic_id)
    return entry is not None and CLEANUP_POLICY in entry.topic.configs


def collectors(view: ClusterView) -> list[int]:
    """Node ids of the agents that collect garbage, ascending: live ones with the role `seal`, or
    all if there are none.  The first one collects what one agent collects for the cluster."""
    return sorted(n for n, a in view.agents.items() if Role.SEAL in a.roles) or sorted(view.agents)
