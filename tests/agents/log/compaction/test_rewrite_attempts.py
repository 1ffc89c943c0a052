"""When a rewrite is tried again: wrong, a fault is asked for without end, or a partition waits."""

from typing import cast

from driftlog_agents.log.compaction.rewrite_attempts import RewriteAttempts
from driftlog_agents.log.partition.partition import PartitionLog

LOG = cast(PartitionLog, object())
BACKOFF_MS = 1_000.0


def waited_ms(attempts: RewriteAttempts, now_ms: float) -> float:
    """How long the partition waits from *now_ms* on, in steps of 100 ms."""
    waited = 0.0
    while attempts.waits(LOG, now_ms + waited):
        waited += 100
    return waited


def test_a_store_without_an_answer_is_asked_again_after_the_backoff() -> None:
    attempts = RewriteAttempts(lambda: BACKOFF_MS)
    assert 0 == waited_ms(attempts, 0)
    for now_ms in range(0, 100_000, 10_000):
        attempts.failed(LOG, now_ms)
        assert BACKOFF_MS == waited_ms(attempts, now_ms)


def test_damage_is_read_again_ever_later_up_to_an_hour() -> None:
    attempts, found = RewriteAttempts(lambda: BACKOFF_MS), []
    for _ in range(14):
        attempts.failed(LOG, 0, answered=True)
        found.append(waited_ms(attempts, 0))
    assert [1_000, 2_000, 4_000, 8_000] == found[:4]
    assert 3_600_000 == found[-1]
    attempts.succeeded(LOG)
    assert 0 == waited_ms(attempts, 0)
    attempts.failed(LOG, 0, answered=True)
    assert 1_000 == waited_ms(attempts, 0)


def test_a_busy_partition_is_looked_at_again_after_five_minutes_at_the_latest() -> None:
    attempts = RewriteAttempts(lambda: BACKOFF_MS)
    attempts.busy(LOG, 0, 40_000)
    assert 40_000 == waited_ms(attempts, 0)
    attempts.busy(LOG, 0, 40_000_000)
    assert 300_000 == waited_ms(attempts, 0)
    attempts.keep([])
    assert 0 == waited_ms(attempts, 0)
