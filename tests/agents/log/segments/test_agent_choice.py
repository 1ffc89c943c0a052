"""If it failed: sealing would wait for agents that are gone, or compress what others can."""

from driftlog_agents.log.segments.agent_choice import (
    LEFT_ALONE_MS,
    LONGEST_MS,
    PAUSES_S,
    FailedAgents,
    Questions,
    is_there,
)
from driftlog_metadata.schema.model import Agent


def agent(node_id: int, session: int = 1) -> Agent:
    return Agent(
        node_id=node_id,
        session_id=f"{session:032x}",
        listeners=(),
        http_address=f"a{node_id}:9644",
        rack=None,
        started_at_ms=0,
    )


def test_an_agent_that_failed_is_left_alone_for_a_while() -> None:
    """
    The others keep their order; a later failure counts anew.
    """
    failed, agents = FailedAgents(), [agent(3, 3), agent(1, 1), agent(2, 2)]
    failed.failed(agents[1], 1_000)
    assert [3, 2] == [each.node_id for each in failed.asked(agents, 1_001)]
    failed.failed(agents[0], 1_000 + LEFT_ALONE_MS - 1)
    assert [1, 2] == [each.node_id for each in failed.asked(agents, 1_000 + LEFT_ALONE_MS)]
    assert agents == failed.asked(agents, 1_000 + 2 * LEFT_ALONE_MS)


def test_an_agent_that_always_fails_is_asked_ever_more_rarely() -> None:
    """
    It may be alive in the metadata store, and have no bucket; one segment that it writes ends that.
    """
    failed, one, now_ms, waits = FailedAgents(), agent(1), 0.0, []
    for _ in range(9):
        failed.failed(one, now_ms)
        began_ms = now_ms
        while not failed.asked([one], now_ms):
            now_ms += 1_000
        waits.append(now_ms - began_ms)
    assert waits[:3] == [LEFT_ALONE_MS, 2 * LEFT_ALONE_MS, 4 * LEFT_ALONE_MS]
    assert waits[-1] == LONGEST_MS
    failed.answered(one)
    failed.failed(one, now_ms)
    assert failed.asked([one], now_ms + LEFT_ALONE_MS) == [one]


def test_sessions_that_nobody_asks_any_more_are_forgotten() -> None:
    """
    An agent that ends and starts again and again has a new session each time.
    """
    failed = FailedAgents()
    failed.failed(agent(1), 0.0)
    failed.failed(agent(1), 1.0)
    failed.failed(agent(2, 2), 1.0 + 2 * LEFT_ALONE_MS + LONGEST_MS)
    failed.failed(agent(1), 1.0 + 2 * LEFT_ALONE_MS + LONGEST_MS)

    began_ms = 1.0 + 3 * LEFT_ALONE_MS + LONGEST_MS
    assert [agent(1)] == failed.asked([agent(1)], began_ms), "it counts anew"


def test_only_busy_agents_are_asked_once_more_and_not_for_long() -> None:
    """
    A round without a refusal ends it, and so does unsealed data over its bounds.
    """
    questions, waits = Questions(), []
    while True:
        questions.refused()
        if (pause_s := questions.pause_s(behind=False)) is None:
            break
        waits.append(pause_s)
    assert list(PAUSES_S) == waits

    questions = Questions()
    assert questions.pause_s(behind=False) is None
    questions.refused()
    assert questions.pause_s(behind=True) is None
    assert questions.pause_s(behind=False) is None, "that refusal was of the round before"


def test_an_agent_that_restarted_is_not_the_one_that_was_asked() -> None:
    """
    It knows nothing of the request.
    """
    assert is_there(agent(1), [agent(2, session=3), agent(1)])
    assert not is_there(agent(1), [agent(2, session=3), agent(1, session=2)])
    assert not is_there(agent(1), [])
