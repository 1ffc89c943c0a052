"""Each partition is verified once an interval, at a time that no restart and no leader changes.

If it failed: all partitions would be read at once, or some never.
"""

from random import Random
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


def look(
    schedule: VerificationSchedule, led: list[TopicPartition], now_ms: int
) -> TopicPartition | None:
    """Which one is due, when *led* are."""
    for _ in schedule.follow(led, now_ms):
        pass
    return schedule.due(now_ms)


def next_of(tp: TopicPartition, now_ms: int) -> int:
    """The phase of *tp* after *now_ms*, of a schedule that is new."""
    schedule = VerificationSchedule(SETTINGS)
    look(schedule, [tp], now_ms)
    far_ms = now_ms + INTERVAL_MS
    return far_ms - schedule.overdue_ms(far_ms)


def run(
    schedule: VerificationSchedule, led: list[TopicPartition], begin_ms: int, end_ms: int
) -> list[tuple[int, TopicPartition]]:
    """When what is verified, by ticks in ``[begin_ms, end_ms)``."""
    found = []
    for now_ms in range(begin_ms, end_ms, TICK_MS):
        look(schedule, led, now_ms)
        while (due := schedule.due(now_ms)) is not None:
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
    look(then, led, middle - TICK_MS)
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
    assert look(schedule, led, NOW_MS) is None
    assert 0 == schedule.overdue_ms(NOW_MS)
    late_ms = NOW_MS + INTERVAL_MS - 1

    assert order[0] == schedule.due(late_ms)
    assert 0 < schedule.overdue_ms(late_ms) < INTERVAL_MS


def test_a_damaged_partition_is_verified_again_soon() -> None:
    """
    And a partition that is led here no longer is forgotten.
    """
    (one,) = led = partitions(1, 1)
    schedule = VerificationSchedule(SETTINGS)
    ((at_ms, _),) = run(schedule, led, NOW_MS, NOW_MS + INTERVAL_MS)
    schedule.verified(one, at_ms, repeat=True)

    assert schedule.due(at_ms + REPEAT_MS - 1) is None
    assert one == look(schedule, led, at_ms + REPEAT_MS)
    schedule.forget(one)
    assert schedule.due(at_ms + REPEAT_MS) is None
    assert look(schedule, [], at_ms + REPEAT_MS) is None
    assert 0 == schedule.overdue_ms(at_ms + REPEAT_MS)


def test_a_clock_that_goes_back_delays_by_one_interval() -> None:
    """
    Not by the years that it went back.
    """
    led = partitions(2, 2)
    schedule = VerificationSchedule(SETTINGS)
    look(schedule, led, NOW_MS)
    past_ms = NOW_MS - 1_000 * INTERVAL_MS

    found = run(schedule, led, past_ms, past_ms + INTERVAL_MS)

    assert sorted(led, key=str) == sorted((tp for _, tp in found), key=str)


def test_the_partitions_change_in_small_steps() -> None:
    """
    A step costs the same for any number of partitions; until the last one the schedule is whole,
    by the partitions before.  Else the event loop would stand still while 50,000 are looked at.
    """
    led = partitions(10, 100)
    schedule = VerificationSchedule(SETTINGS)
    look(schedule, led, NOW_MS)
    late_ms = NOW_MS + INTERVAL_MS
    first = schedule.due(late_ms)
    assert first is not None
    left = [tp for tp in led if tp != first]

    steps = schedule.follow(left, late_ms)
    for _ in range(len(left)):
        next(steps)
        assert first == schedule.due(late_ms)
    assert all(schedule.due(late_ms) not in (None, first) for _ in steps)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_the_heap_finds_what_a_look_at_all_partitions_finds(seed: int, count: int) -> None:
    """
    Whatever is led, verified, damaged and forgotten in between.
    """
    rng = Random(seed)
    led = partitions(2, count)
    schedule = VerificationSchedule(SETTINGS)
    due_ms: dict[TopicPartition, int] = {}
    now_ms = NOW_MS
    for _ in range(40):
        now_ms += rng.choice((0, 1, TICK_MS, INTERVAL_MS // 3))
        now = [tp for tp in led if rng.random() < 0.8]
        look(schedule, now, now_ms)
        found = schedule.due(now_ms)
        due_ms = {tp: due_ms.get(tp, next_of(tp, now_ms)) for tp in now}
        earliest = min(due_ms.values(), default=now_ms + 1)
        assert (found is None) == (earliest > now_ms)
        assert max(0, now_ms - earliest) == schedule.overdue_ms(now_ms)
        if found is not None:
            assert earliest == due_ms[found]
            repeat = rng.random() < 0.5
            schedule.verified(found, now_ms, repeat=repeat)
            next_ms = next_of(found, now_ms)
            due_ms[found] = min(next_ms, now_ms + REPEAT_MS) if repeat else next_ms
