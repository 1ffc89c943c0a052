"""Each partition is verified once an interval, at a time that no restart and no leader changes.

If it failed: all partitions would be read at once, or some never.
"""

from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.verification.schedule import VerificationSchedule, VerificationSettings
from driftlog_metadata.schema.model import TopicPartition

INTERVAL_MS = 1_000_000
TICK_MS = 1_000
REPEAT_MS = 50_000
NOW_MS = 1_795_646_217_333
SETTINGS = VerificationSettings(interval_ms=INTERVAL_MS, repeat_ms=REPEAT_MS)
NAMESPACE = UUID(int=7)


def partitions(topics: int, each: int) -> list[TopicPartition]:
    return [
        TopicPartition(uuid5(NAMESPACE, str(topic)), number)
        for topic in range(topics)
        for number in range(each)
    ]


def run(
    schedule: VerificationSchedule, led: list[TopicPartition], begin_ms: int, end_ms: int
) -> list[tuple[int, TopicPartition]]:
    """When what is verified, by ticks in ``[begin_ms, end_ms)``."""
    found = []
    for now_ms in range(begin_ms, end_ms, TICK_MS):
        while (due := schedule.due(led, now_ms)) is not None:
            found.append((now_ms, due))
            schedule.verified(due, now_ms, repeat=False)
    return found


@given(restart=st.integers(1, INTERVAL_MS // TICK_MS - 1), topics=st.integers(1, 5))
def test_each_partition_comes_once_an_interval(restart: int, topics: int) -> None:
    """
    Also across a restart, or a change of the leader, between any two ticks.
    """
    led = partitions(topics, 4)
    middle = NOW_MS + restart * TICK_MS

    # (A leader looks at least once before its first partition is due.)
    first = run(VerificationSchedule(SETTINGS), led, NOW_MS, middle)
    then = VerificationSchedule(SETTINGS)
    then.due(led, middle - TICK_MS)
    second = run(then, led, middle, NOW_MS + INTERVAL_MS)

    assert sorted(led, key=str) == sorted((tp for _, tp in first + second), key=str)


def test_partitions_are_spread_over_the_interval() -> None:
    """
    Of one topic, too: no tenth of the interval has more than twice its share.
    """
    led = partitions(1, 100)

    found = run(VerificationSchedule(SETTINGS), led, NOW_MS, NOW_MS + INTERVAL_MS)

    tenths = [(at - NOW_MS) * 10 // INTERVAL_MS for at, _ in found]
    assert 20 >= max(tenths.count(tenth) for tenth in range(10))


def test_the_one_that_is_due_longest_comes_first() -> None:
    """
    And how long it waits is known.
    """
    led = partitions(3, 3)
    order = [tp for _, tp in run(VerificationSchedule(SETTINGS), led, NOW_MS, NOW_MS + INTERVAL_MS)]
    schedule = VerificationSchedule(SETTINGS)
    assert schedule.due(led, NOW_MS) is None
    assert 0 == schedule.overdue_ms(NOW_MS)
    late_ms = NOW_MS + INTERVAL_MS - 1

    assert order[0] == schedule.due(led, late_ms)
    assert 0 < schedule.overdue_ms(late_ms) < INTERVAL_MS


def test_a_damaged_partition_is_verified_again_soon() -> None:
    """
    And a partition that is led here no longer is forgotten.
    """
    (one,) = led = partitions(1, 1)
    schedule = VerificationSchedule(SETTINGS)
    ((at_ms, _),) = run(schedule, led, NOW_MS, NOW_MS + INTERVAL_MS)
    schedule.verified(one, at_ms, repeat=True)

    assert schedule.due(led, at_ms + REPEAT_MS - 1) is None
    assert one == schedule.due(led, at_ms + REPEAT_MS)
    assert schedule.due([], at_ms + REPEAT_MS) is None


def test_a_clock_that_goes_back_delays_by_one_interval() -> None:
    """
    Not by the years that it went back.
    """
    led = partitions(2, 2)
    schedule = VerificationSchedule(SETTINGS)
    schedule.due(led, NOW_MS)
    past_ms = NOW_MS - 1_000 * INTERVAL_MS

    found = run(schedule, led, past_ms, past_ms + INTERVAL_MS)

    assert sorted(led, key=str) == sorted((tp for _, tp in found), key=str)
