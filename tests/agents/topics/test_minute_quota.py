"""A topic is sealed on request only so often a minute."""

from driftlog_agents.topics.minute_quota import MinuteQuota


def test_a_topic_is_sealed_so_often_in_any_minute() -> None:
    """
    Each topic for itself; who is refused is told when it may be, and that time is right.
    """
    now = [1_000_000.0]
    turns = MinuteQuota(2, lambda: now[0])

    assert [0, 0, 60] == [turns.wait_s("t") for _ in range(3)]
    assert 0 == turns.wait_s("u")
    now[0] += 59_500
    assert 1 == turns.wait_s("t")
    now[0] += 1_000
    assert [0, 0, 60] == [turns.wait_s("t") for _ in range(3)]


def test_topics_that_nobody_seals_are_forgotten() -> None:
    """
    A minute after the last seal there is nothing of them.
    """
    now = [0.0]
    turns = MinuteQuota(20, lambda: now[0])
    for n in range(1_000):
        turns.wait_s(f"t{n}")
    now[0] += 60_001
    turns.wait_s("u")

    assert 1 == turns.names
