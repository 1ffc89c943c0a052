"""If it failed: others would place partitions on an agent that leaves, or wait for it for ever."""

from dataclasses import replace

import pytest

from driftlog_agents.cluster.view import ClusterView, SessionEntry
from driftlog_agents.log.leadership.own_status import OwnStatus
from driftlog_metadata.schema.keys import session_key
from driftlog_metadata.schema.model import Agent, LiveSession, Role, SessionStage
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.store import KeyValue

MINE, OTHER = "0" * 32, "1" * 32


def view_of(other: SessionStage | None = None) -> ClusterView:
    """This agent, node 1, and perhaps node 2, each with a session."""
    view = ClusterView()
    view.topics_revision = 30
    view.sessions[MINE] = SessionEntry(MINE, LiveSession(node_id=1), 5)
    if other is not None:
        view.agents[2] = Agent(
            node_id=2,
            session_id=OTHER,
            listeners=(),
            http_address="",
            rack=None,
            started_at_ms=0,
        )
        view.sessions[OTHER] = SessionEntry(OTHER, LiveSession(node_id=2, stage=other), 6)
    return view


def test_this_agent_is_a_node_of_the_plan_until_it_leaves() -> None:
    """
    Also before it serves; the others only when they do.
    """
    status = OwnStatus(1, MINE)
    view = view_of(SessionStage.SERVING)
    before = status.nodes(view)
    status.stage = SessionStage.LEAVING

    assert ((1, 2), (2,)) == (before, status.nodes(view))
    assert (1,) == OwnStatus(1, MINE).nodes(view_of(SessionStage.STARTING))


def test_an_agent_that_does_not_serve_is_never_a_node_of_the_plan() -> None:
    """
    Neither is it one of the others.
    """
    view = view_of(SessionStage.SERVING)
    assert (2,) == OwnStatus(1, MINE, leads=False).nodes(view)

    view.agents[2] = replace(view.agents[2], roles=frozenset({Role.SEAL}))
    assert (1,) == OwnStatus(1, MINE).nodes(view)
    assert () == OwnStatus(1, MINE, leads=False).nodes(view)


@pytest.mark.parametrize("other", [None, *SessionStage])
def test_only_another_agent_that_starts_is_waited_for(other: SessionStage | None) -> None:
    """
    This agent starts as well.
    """
    assert (other is SessionStage.STARTING) == OwnStatus(1, MINE).others_start(view_of(other))


def test_topics_are_told_to_others_once_this_agent_serves() -> None:
    """
    A cluster of one agent stores nothing for each new topic.
    """
    status = OwnStatus(1, MINE)
    starting = status.tells_topics(view_of(SessionStage.SERVING))
    status.stage = SessionStage.SERVING

    assert not starting
    assert [False, True] == [
        status.tells_topics(view_of(other)) for other in (None, SessionStage.SERVING)
    ]


def test_the_key_is_written_until_it_holds_the_present_status() -> None:
    """
    A change during the write is written afterwards.
    """
    status, view = OwnStatus(1, MINE), view_of()
    status.stage = SessionStage.SERVING
    first = status.to_store(view)
    assert first is not None
    status.asks = True
    status.stored(first, 8)
    second = status.to_store(view)
    assert second is not None
    status.stored(second, 9)

    assert LiveSession(node_id=1, stage=SessionStage.SERVING, topics_revision=30) == first
    assert replace(first, asks=True) == second
    assert (None, 9) == (status.to_store(view), status.stored_revision)


def test_a_refused_write_is_repeated_at_the_keys_revision_while_the_session_lives() -> None:
    """
    An earlier try was stored, and its answer lost; or the session is over.
    """
    status = OwnStatus(1, MINE)
    status.refused([KeyValue(session_key(MINE), b"", 5, 12)], 5)

    assert 12 == status.stored_revision
    for kvs in ([], [KeyValue(session_key(MINE), b"", 6, 12)]):
        with pytest.raises(FencedError):
            status.refused(kvs, 5)
