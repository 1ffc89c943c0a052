"""If it failed: records of an ended session would be read beside its takeover, or never."""

from driftlog_agents.log.consolidation.gc_schedule import (
    RETRY_MS,
    LagNews,
    LookSchedule,
    RewriteSchedule,
    hold_back,
)
from driftlog_agents.log.consolidation.policy import ConsolidationLag, ConsolidationSettings

SETTINGS = ConsolidationSettings(sealed_interval_ms=30_000, ended_ms=3_000)


def test_the_first_look_and_each_one_after_the_end_of_a_session_come_later() -> None:
    """
    Takeovers read the records of a dead session first.
    """
    looks = LookSchedule(SETTINGS, 0)
    delays = [looks.delay_ms]
    first = looks.takes_all(3_000)
    looks.looked(3_500)
    delays.append(looks.delay_ms)
    looks.session_ended()
    delays.append(looks.delay_ms)

    assert (True, [3_000, 0, 3_000]) == (first, delays)
    assert looks.takes_all(4_000)


def test_without_an_end_a_look_at_everything_comes_once_an_interval() -> None:
    """
    A topic that is deleted in between wakes a look at topics only.
    """
    looks = LookSchedule(SETTINGS, 0)
    looks.takes_all(0)
    looks.looked(1_000)

    assert 30_000 == looks.wait_ms(1_000)
    assert [False, True] == [looks.takes_all(now_ms) for now_ms in (30_999, 31_000)]


def test_a_rewrite_waits_after_a_failed_one_and_while_flushes_fail() -> None:
    """
    Its PUTs would take the place of the flushes' at a store that fails.
    """
    rewrites = RewriteSchedule()
    at_first = rewrites.may_begin(0, flushes_fail=False)
    rewrites.failed(100)

    assert at_first
    assert not rewrites.may_begin(99 + RETRY_MS, flushes_fail=False)
    assert not rewrites.may_begin(100 + RETRY_MS, flushes_fail=True)
    assert rewrites.may_begin(100 + RETRY_MS, flushes_fail=False)


def test_producers_wait_at_the_bound_and_never_while_rewrites_fail() -> None:
    """
    An operator is told once, and again when more than half of the backlog is gone.
    """
    lag = ConsolidationLag(10)
    told = [hold_back(lag, waiting, failing=False) for waiting in (9, 10, 12, 6, 5)]

    assert ["none", "behind", "none", "none", "caught up"] == [news.value for news in told]
    hold_back(lag, 10, failing=False)
    assert LagNews.NONE is hold_back(lag, 50, failing=True)
    assert not lag.held
