"""A load balancer would send clients to an agent that serves nothing, or spare one that serves."""

from dataclasses import replace

import pytest

from driftlog_agents.health.readiness import AgentFacts, Readiness, SessionFacts

SESSION = SessionFacts(session_id="s1", serves=True, led=4)
SERVES = AgentFacts(started=True, session=SESSION)


def codes(agent: AgentFacts) -> list[str]:
    """The judgement of a fresh judge."""
    return [reason.code for reason in Readiness().judge(agent)]


def test_an_agent_that_serves_is_ready() -> None:
    """
    Also with offline partitions, without any, and where something has failed for a moment.
    """
    session = replace(SESSION, offline=3, metadata_failing_ms=4_999, commits_failing_ms=4_999)

    assert [] == codes(SERVES)
    assert [] == codes(replace(SERVES, session=session))
    assert [] == codes(replace(SERVES, session=replace(SESSION, led=0)))


@pytest.mark.parametrize(
    ("agent", "code", "text"),
    [
        (AgentFacts(started=False), "starting", "starting"),
        (replace(SERVES, stopping=True), "draining", "told to stop"),
        (replace(SERVES, unfit=True), "unfit", "cannot commit while other agents can"),
        (
            replace(SERVES, distrusted="etcd went back"),
            "metadata_store_not_trusted",
            "etcd went back: bring back the right store and restart every agent",
        ),
        (replace(SERVES, hangs=True), "sealing_hangs", "other agents write segments"),
        (replace(SERVES, session=None), "no_session", "between two sessions"),
        (
            replace(SERVES, session=replace(SESSION, serves=False, metadata_failing_ms=9_000)),
            "no_session",
            "between two sessions: the metadata store has not answered for 9 s",
        ),
        (
            replace(SERVES, session=replace(SESSION, metadata_failing_ms=5_000)),
            "metadata_store_failing",
            "has not answered for 5 s",
        ),
        (
            replace(SERVES, session=replace(SESSION, commits_failing_ms=61_000, commits_error="E")),
            "commits_failing",
            "nothing was committed for 61 s: E",
        ),
        (
            replace(SERVES, session=replace(SESSION, loading=2)),
            "partitions_loading",
            "2 of 4 partitions",
        ),
    ],
)
def test_each_reason_has_its_code(agent: AgentFacts, code: str, text: str) -> None:
    """
    And says what happens.
    """
    (reason,) = Readiness().judge(agent)

    assert code == reason.code
    assert text in reason.text


def test_every_reason_is_told() -> None:
    """
    The most important first.
    """
    session = replace(SESSION, commits_failing_ms=9_000, metadata_failing_ms=9_000, loading=1)
    agent = AgentFacts(started=True, stopping=True, unfit=True, session=session)

    assert codes(agent) == [
        "draining",
        "unfit",
        "metadata_store_failing",
        "commits_failing",
        "partitions_loading",
    ]


def test_partitions_that_are_taken_over_later_are_no_reason() -> None:
    """
    Otherwise all agents that are left are unready at once after a large takeover, while they serve.
    A later session is no start either.
    """
    loading = replace(SERVES, session=replace(SESSION, loading=1))
    later = replace(SERVES, session=replace(SESSION, session_id="s2", loading=4))
    readiness = Readiness()

    assert ["partitions_loading"] == [reason.code for reason in readiness.judge(loading)]
    assert [] == readiness.judge(SERVES)
    assert [] == readiness.judge(loading)
    assert [] == readiness.judge(later)


def test_a_start_is_over_once_all_partitions_are_loaded() -> None:
    """
    Also where the first session ends before that: the next one loads them.
    """
    loading = replace(SERVES, session=replace(SESSION, loading=1))
    between = replace(SERVES, session=None)
    later = replace(SERVES, session=replace(SESSION, session_id="s2", loading=4))
    readiness = Readiness()

    found = [readiness.judge(agent)[0].code for agent in (loading, between, later)]

    assert ["partitions_loading", "no_session", "partitions_loading"] == found
