"""If it failed: two agents would rewrite one partition all the time, or none would, and clients
would be sent to an agent that leads nothing."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.cluster.roles import collectors, keeps_upkeep, sealing_agents, upkeep_agents
from driftlog_agents.cluster.view import ClusterView, LeaderEntry, SessionEntry
from driftlog_metadata.schema.model import (
    ALL_ROLES,
    Agent,
    Leader,
    LiveSession,
    Role,
    SessionStage,
    TopicPartition,
)

TP = TopicPartition(UUID(int=7, version=4), 0)
SERVE, SEAL = frozenset({Role.SERVE}), frozenset({Role.SEAL})


def view_of(
    roles: dict[int, frozenset[Role]],
    leader: int | None = None,
    stages: dict[int, SessionStage] | None = None,
) -> ClusterView:
    """Agents by node id; *leader* leads `TP`; they are SERVING unless *stages* says another one."""
    view = ClusterView()
    for node, which in roles.items():
        session_id = f"{node:032x}"
        view.agents[node] = Agent(
            node_id=node,
            session_id=session_id,
            listeners=(),
            http_address="",
            rack=None,
            started_at_ms=0,
            roles=which,
        )
        stage = (stages or {}).get(node, SessionStage.SERVING)
        view.sessions[session_id] = SessionEntry(
            session_id, LiveSession(node_id=node, stage=stage), node
        )
    if leader is not None:
        view.leaders[TP] = LeaderEntry(Leader(f"{leader:032x}", 1), 1)
    return view


def test_a_leader_with_the_role_does_its_upkeep() -> None:
    """
    Also beside agents that only seal: no byte moves that need not move.
    """
    view = view_of({1: ALL_ROLES, 2: SEAL, 3: SERVE}, leader=1)

    assert [1] == upkeep_agents(view, TP)
    assert keeps_upkeep(view, ALL_ROLES)


def test_others_do_it_for_a_leader_without_the_role_as_long_as_one_lives() -> None:
    """
    The leader comes last; it is alone when all others start, leave or are gone.
    """
    roles = {1: SERVE, 2: SEAL, 3: SEAL, 4: ALL_ROLES}
    view = view_of(roles, leader=1)
    found = upkeep_agents(view, TP)
    stages = {2: SessionStage.STARTING, 3: SessionStage.LEAVING}
    no_more = view_of({n: roles[n] for n in (1, 2, 3)}, leader=1, stages=stages)
    view.sessions.pop(f"{found[0]:032x}")

    assert [2, 3, 4, 1] == [*sorted(found[:3]), found[3]]
    assert found[1:] == upkeep_agents(view, TP)
    assert not keeps_upkeep(view, SERVE)
    assert [1] == upkeep_agents(no_more, TP)
    assert keeps_upkeep(no_more, SERVE)


@pytest.mark.parametrize("leader", [None, 9])
def test_a_partition_without_a_leader_is_kept_by_the_agents_that_seal(leader: int | None) -> None:
    """
    What is sealed of it is there; the leader's agent may be gone.
    """
    view = view_of({1: SERVE, 2: SEAL}, leader=leader)

    assert [2] == upkeep_agents(view, TP)
    assert [] == upkeep_agents(view_of({1: SERVE}, leader=leader), TP)


@given(
    st.dictionaries(
        st.integers(1, 9), st.sampled_from([SERVE, SEAL, ALL_ROLES]), min_size=1, max_size=6
    ),
    st.data(),
)
def test_agents_that_see_the_same_agree_who_does_it(
    roles: dict[int, frozenset[Role]], data: st.DataObject
) -> None:
    """
    Exactly one of them is the first, in whatever order their views were filled.
    """
    leader = data.draw(st.sampled_from(sorted(roles)))
    shuffled = dict(data.draw(st.permutations(list(roles.items()))))
    view, other = view_of(roles, leader), view_of(shuffled, leader)
    found = upkeep_agents(view, TP)

    assert found == upkeep_agents(other, TP)
    assert len(found) == len(set(found))
    assert keeps_upkeep(view, roles[leader]) == (found[0] == leader)
    assert set(found[:-1]) <= set(sealing_agents(view))


def test_garbage_is_collected_by_agents_that_seal_or_by_all() -> None:
    """
    Agents with both roles are among them.
    """
    assert [2, 4] == collectors(view_of({1: SERVE, 2: ALL_ROLES, 4: SEAL}))
    assert [1, 3] == collectors(view_of({3: SERVE, 1: SERVE}))
    assert [] == collectors(ClusterView())


def test_clients_see_and_partitions_are_placed_on_agents_that_serve_alone() -> None:
    """
    An agent that only seals is no broker, no controller, no replica and no leader.
    """
    view = view_of({1: SEAL, 2: SERVE, 3: ALL_ROLES}, leader=1)
    alone = view_of({1: SEAL}, leader=1)

    assert [2, 3] == sorted(view.serving_agents())
    assert [2, 3] == view.placed()
    assert 2 == view.controller_id
    assert (None, 1) == view.leader_of(TP)
    assert view.is_led(TP), "nobody claims it before the release"
    assert [2, 3] == sorted(view.replicas(TP, 3))
    assert ([], -1, []) == (alone.placed(), alone.controller_id, alone.replicas(TP, 3))
