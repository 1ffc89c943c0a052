"""Which agent coordinates a group: alike for all, evenly, and with few moves."""

from collections import Counter
from dataclasses import replace

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.groups.coordinator.placement import Coordinators, coordinator_of
from driftlog_metadata.schema.codec import encode_agent, encode_live_session
from driftlog_metadata.schema.keys import AGENTS_PREFIX, SESSIONS_PREFIX, agent_key, session_key
from driftlog_metadata.schema.model import Agent, LiveSession, Role, SessionStage
from driftlog_metadata.stores.store import KeyValue

GROUPS = [f"group-{n}" for n in range(10_000)]


def test_groups_are_spread_and_stay_where_they_can() -> None:
    """
    Ten agents have a tenth each, give or take a tenth of it; one that goes gives away its own
    and nothing else moves.
    """
    nodes = tuple(range(10))
    before = {g: coordinator_of(g, nodes) for g in GROUPS}
    after = {g: coordinator_of(g, nodes[:-1]) for g in GROUPS}

    share = Counter(before.values())
    assert all(880 < share[node] < 1120 for node in nodes), share
    assert {g for g in GROUPS if before[g] == 9} == {g for g in GROUPS if before[g] != after[g]}


def test_the_place_of_a_group_does_not_change() -> None:
    """
    Agents of two versions beside each other must agree.
    """
    assert [1, 3, 3, 1] == [coordinator_of(g, (1, 2, 3)) for g in ("", "a", "billing", "größe")]
    assert coordinator_of("a", ()) is None


def view(*sessions: tuple[int, str, SessionStage, bool]) -> ClusterView:
    """Agents by (node id, session, stage, whether it is the agent's present session)."""
    found = ClusterView()
    agents, keys = [], []
    for node_id, session_id, stage, present in sessions:
        live = encode_live_session(LiveSession(node_id=node_id, stage=stage))
        keys.append(KeyValue(session_key(session_id), live, 1, 1))
        if present:
            agent = Agent(
                node_id=node_id,
                session_id=session_id,
                listeners=(),
                http_address="",
                rack=None,
                started_at_ms=0,
            )
            agents.append(KeyValue(agent_key(node_id), encode_agent(agent), 1, 1))
    found.reset(AGENTS_PREFIX, 1, agents)
    found.reset(SESSIONS_PREFIX, 1, keys)
    return found


def test_who_serves_and_stays_coordinates() -> None:
    """
    Not who starts, nor who leaves; who is back on its own disk is one, while its old session lives.
    """
    seen = view(
        (1, "a", SessionStage.SERVING, True),
        (2, "b", SessionStage.STARTING, True),
        (3, "c", SessionStage.LEAVING, True),
        (4, "d-old", SessionStage.SERVING, False),
        (4, "d", SessionStage.STARTING, True),
    )
    coordinators = Coordinators(seen)
    assert [1, 4] == list(coordinators.nodes)

    agents = [replace(agent, roles=frozenset({Role.SEAL})) for agent in seen.agents.values()]
    kvs = [KeyValue(agent_key(agent.node_id), encode_agent(agent), 1, 1) for agent in agents]
    seen.reset(AGENTS_PREFIX, 2, kvs)
    assert not coordinators.nodes, "agents without the role serve"

    seen.reset(SESSIONS_PREFIX, 2, [])
    assert not coordinators.nodes
    assert coordinators.of("g") is None
