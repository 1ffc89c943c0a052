"""The sealing policy chooses the partition that is due, and the right end."""

from array import array
from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest

from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.sealing.policy import (
    DuePartitions,
    SealingLag,
    SealSettings,
    TopicSealPolicy,
    fullness,
    seal_end,
    segment_bytes,
)
from driftlog_tiering.foundation.types import MiB

HOUR, DAY = 3_600_000, 86_400_000
SETTINGS = SealSettings()


def make_log(
    *sizes_mib: float, topic: str = "t", batches: int = 1, state: State = State.ONLINE
) -> PartitionLog:
    """A partition whose tail has slices of ten records and these sizes, from time 0 on."""
    log = PartitionLog(topic=topic, topic_id=UUID(int=1), partition=0, leader_epoch=0)
    log.state = state
    data = FlushBatches(
        session_id="s",
        base_offsets=array("q"),
        lengths=array("i"),
        positions=array("i"),
        max_timestamps_ms=array("q"),
    )
    for size in sizes_mib:
        base = log.high_watermark
        stored_at = StoredAt("flush", 0)
        log.restore(TailSlice(base, base + 10, data, 0, batches, int(size * MiB), stored_at), 0)
    return log


def due(
    logs: Iterable[PartitionLog],
    settings: SealSettings,
    topics: Mapping[str, TopicSealPolicy],
    now_ms: float,
    wall_ms: float,
) -> list[tuple[PartitionLog, int]]:
    """Those of *logs* to seal, and the end of each one's next segment."""
    partitions = DuePartitions(settings, now_ms, wall_ms)
    for log in logs:
        partitions.look(log, topics.get(log.topic))
    return [
        (log, seal_end(log, segment_bytes(settings, topics.get(log.topic))))
        for log in partitions.in_order()
    ]


def chosen(
    *logs: PartitionLog,
    now_ms: float = 0,
    settings: SealSettings = SETTINGS,
    **topics: TopicSealPolicy,
) -> list[tuple[PartitionLog, int]]:
    """What is due at *now_ms*."""
    return due(logs, settings, topics, now_ms, 0.0)


# ── By size ──


def test_a_partition_is_due_at_128_mib_and_not_before() -> None:
    """
    However young; the segment ends with the slice that reaches it.
    """
    almost, reached = make_log(100, 27), make_log(100, 28, 3)

    assert [(reached, 20)] == chosen(almost, reached)


def test_a_segment_ends_at_the_first_slice_that_makes_it_large_enough() -> None:
    """
    Never inside a flush; with less than that, at the high watermark.
    """
    log = make_log(50, 50, 50, 50)

    ends = [seal_end(log, int(mib * MiB)) for mib in (0.1, 50, 50.1, 150, 200, 1000)]
    assert [10, 10, 20, 30, 40, 40] == ends


# ── By age ──


def test_a_partition_is_due_when_its_oldest_is_an_hour_old() -> None:
    """
    All that is committed goes into the segment.
    """
    log = make_log(1, 1)

    assert [] == chosen(log, now_ms=HOUR - 1)
    assert [(log, 20)] == chosen(log, now_ms=HOUR)


def test_a_small_partition_waits_for_a_day() -> None:
    """
    Below 1 MiB: thousands of small files cost Spark more than waiting does.
    """
    small = make_log(0.5, 0.4)

    assert [] == chosen(small, now_ms=DAY - 1)
    assert [(small, 20)] == chosen(small, now_ms=DAY)


def test_a_small_partition_does_not_go_before_a_large_one_would() -> None:
    """
    A `segment_ms` above a day counts for both.
    """
    settings = SealSettings(segment_ms=2 * DAY)

    assert [] == chosen(make_log(0.5), now_ms=2 * DAY - 1, settings=settings)
    assert 1 == len(chosen(make_log(0.5), now_ms=2 * DAY, settings=settings))


# ── What a topic says ──


def test_a_topics_own_settings_count_before_the_agents() -> None:
    """
    Its `segment.ms` holds for small partitions too; topics without any keep the agent's.
    """
    eager, lazy, plain = (make_log(0.1, 3, topic=name) for name in ("eager", "lazy", "plain"))

    found = chosen(
        eager,
        lazy,
        plain,
        now_ms=HOUR,
        eager=TopicSealPolicy(segment_ms=1000),
        lazy=TopicSealPolicy(segment_ms=DAY),
    )
    assert [(eager, 20), (plain, 20)] == found
    assert [(eager, 10)] == chosen(eager, lazy, eager=TopicSealPolicy(segment_bytes=MiB // 10))


# ── Bounds ──


@pytest.mark.parametrize(
    "settings, logs",
    [
        pytest.param(
            SealSettings(unsealed_bytes=59 * MiB, unsealed_bytes_per_partition=0),
            [make_log(20), make_log(21), make_log(19)],
            id="bytes",
        ),
        pytest.param(
            SealSettings(unsealed_batches=60),
            [make_log(9, batches=20), make_log(1, batches=21), make_log(9, batches=20)],
            id="batches",
        ),
    ],
)
def test_above_the_bound_the_fullest_partition_is_sealed_early(
    settings: SealSettings, logs: list[PartitionLog]
) -> None:
    """
    One at a time: what is unsealed stays bounded, and segments as large as can be.
    """
    assert [] == chosen(*logs[:2], settings=settings)
    assert [(logs[1], 10)] == chosen(*logs, settings=settings)


def test_one_that_is_due_and_fails_does_not_keep_the_others_from_being_sealed_early() -> None:
    """
    It stays due however often it fails: near the point where producers wait, the fullest of the
    others is sealed beside it.
    """
    settings = SealSettings(
        unsealed_bytes=100 * MiB, unsealed_bytes_per_partition=0, segment_bytes=64 * MiB
    )
    failing, little, fuller = make_log(70), make_log(50), make_log(59)

    assert [(failing, 10)] == chosen(failing, little, fuller, settings=settings)
    more = make_log(10)
    assert [failing, fuller] == [
        log for log, _ in chosen(failing, little, fuller, more, settings=settings)
    ]
    alone = make_log(300)
    assert [(alone, 10)] == chosen(alone, settings=settings)


def test_the_bound_grows_with_the_partitions_that_are_led() -> None:
    """
    16 MiB each, at least 4 GiB: 300 partitions of 15 MiB are no reason to seal early.
    """
    settings = SealSettings(unsealed_bytes=64 * MiB)

    assert [] == chosen(*(make_log(15) for _ in range(300)), settings=settings)
    assert 1 == len(chosen(*(make_log(17) for _ in range(300)), settings=settings))


# ── Who is left out, and the order ──


def test_what_has_nothing_or_may_not_be_sealed_is_left_out() -> None:
    """
    Empty tails, partitions that are closed or offline; one that still loads its producers is not.
    """
    loading = make_log(200, state=State.LOADING)
    closed, offline = make_log(200, state=State.CLOSED), make_log(200, state=State.OFFLINE)

    assert [(loading, 10)] == chosen(make_log(), closed, offline, loading, now_ms=DAY)


def test_producers_wait_at_twice_the_bounds_and_go_on_when_it_is_a_little_less() -> None:
    """
    At the rate of sealing, then; it has caught up at one and a half times the bounds.
    """
    lag = SealingLag()
    seen = []
    for level in (1.0, 1.9, 2.0, 2.01, 1.99, 1.97, 1.99, 2.01, 1.97, 1.51, 1.49, 1.99):
        lag.update(level)
        seen.append((lag.held, lag.behind))
    waits, goes_on, well = (True, True), (False, True), (False, False)
    assert [well] * 3 + [waits] * 2 + [goes_on] * 2 + [waits] + [goes_on] * 2 + [well] * 2 == seen


def test_how_full_is_by_bytes_or_by_batches() -> None:
    """
    Whichever is more; per partition there is some room anyway.
    """
    settings = SealSettings(
        unsealed_bytes=100 * MiB, unsealed_batches=1_000, unsealed_bytes_per_partition=60 * MiB
    )
    assert [0.0, 0.5, 2.0] == [
        fullness(logs, settings)
        for logs in ([], [make_log(50)], [make_log(1, batches=1_500), make_log(1, batches=500)])
    ]
    assert 1.0 == fullness([make_log(100), make_log(20)], settings)


def test_what_is_damaged_is_not_due_and_does_not_have_its_neighbours_sealed_for_it() -> None:
    """
    It cannot be sealed: others keep to their bounds, and it has the same for itself.
    """
    settings = SealSettings(unsealed_bytes=59 * MiB, unsealed_bytes_per_partition=0)
    damaged, well = make_log(60), make_log(20)
    damaged.damage = "the manifest"

    assert [] == chosen(damaged, well, settings=settings)
    assert [(well, 10)] == chosen(damaged, well, now_ms=DAY, settings=settings)
    assert fullness([damaged], settings) > 1 > fullness([well], settings)


def test_the_fullest_comes_first() -> None:
    """
    It relieves the bounds most.
    """
    logs = [make_log(130), make_log(300), make_log(2), make_log(200)]

    assert [logs[1], logs[3], logs[0], logs[2]] == [log for log, _ in chosen(*logs, now_ms=HOUR)]


# ── Age ──


def flushed(*times_ms: int, known_ms: float = 0.0) -> PartitionLog:
    """A partition with a slice of 2 MiB per time of flush, all known here since *known_ms*."""
    log, data = make_log(), make_log(1).slices[0].data
    for n, at_ms in enumerate(times_ms):
        log.restore(
            TailSlice(10 * n, 10 * n + 10, data, 0, 1, 2 * MiB, StoredAt("f", 0), at_ms), known_ms
        )
    return log


def test_age_is_counted_from_the_flush_and_not_from_when_this_leader_knew_of_it() -> None:
    """
    A leader that has just begun finds what is due.
    """
    log = flushed(5 * HOUR, 6 * HOUR, known_ms=100)

    assert [] == due([log], SETTINGS, {}, 101.0, 6 * HOUR - 1)
    assert [(log, 20)] == due([log], SETTINGS, {}, 101.0, 6 * HOUR)


def test_what_is_left_after_sealing_is_as_old_as_its_flush() -> None:
    """
    Not as young as the sealing: it would wait as long again, behind each segment.
    """
    log = flushed(5 * HOUR, 6 * HOUR)
    log.seal(10)

    assert [] == due([log], SETTINGS, {}, 0.0, 7 * HOUR - 1)
    assert [(log, 20)] == due([log], SETTINGS, {}, 0.0, 7 * HOUR)


def test_what_this_leader_has_known_for_long_is_due_whatever_the_wall_clock_says() -> None:
    """
    One that stands, or was set back.  A time of flush that is not known counts in no other way.
    """
    for log in (flushed(5 * HOUR, known_ms=7.0), flushed(0, known_ms=7.0)):
        wall_ms = 2.0 * HOUR if log.slices[0].flushed_at_ms else 9.0 * DAY
        assert [] == due([log], SETTINGS, {}, HOUR + 6.0, wall_ms)
        assert [(log, 10)] == due([log], SETTINGS, {}, HOUR + 7.0, wall_ms)


def test_nothing_was_flushed_later_than_what_follows_it() -> None:
    """
    A wall clock that was ahead for a time stamped what is young for as long: until the next flush.
    """
    ahead = flushed(HOUR, 90 * DAY, 91 * DAY, 2 * HOUR)

    assert 4 * HOUR == ahead.unsealed_age_ms(0.0, 5 * HOUR)
    ahead.seal(10)
    assert 3 * HOUR == ahead.unsealed_age_ms(0.0, 5 * HOUR)
    assert 3 * HOUR == flushed(0, 2 * HOUR).unsealed_age_ms(0.0, 5 * HOUR)


# ── Sessions ──


def test_a_partition_that_many_sessions_have_flushed_is_sealed_early() -> None:
    """
    Its key has them all until then.
    """
    log = make_log()
    log.sessions = tuple("123456789")
    for n in range(9):
        assert [] == chosen(log)
        (one,) = make_log(0.001).slices
        assert isinstance(one.data, FlushBatches)
        one.data.session_id = str(n)
        log.restore(one._replace(base=10 * n, end=10 * n + 10), 0)

    assert [(log, 90)] == chosen(log)


def test_sessions_that_have_flushed_nothing_of_it_are_no_reason_to_seal() -> None:
    """
    Sealing would not shorten the list.
    """
    log = make_log(0.1)
    log.sessions = tuple("123456789")

    assert [] == chosen(log)
