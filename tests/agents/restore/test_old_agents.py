"""A restore reads the bucket while an agent of the old cluster still commits."""

from driftlog_agents.cluster.bucket_ownership import VALID_MS
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.restore.old_agents import WAIT_S, until_old_agents_stop
from tests.agents.log.lives import now_ms, on_virtual_time


@on_virtual_time
async def test_the_wait_covers_the_last_look_and_the_last_commit() -> None:
    """
    And shows each second how long it still takes.
    """
    shown: list[int] = []
    began = now_ms()
    await until_old_agents_stop(lambda what, count: shown.append(count))
    waited_ms = now_ms() - began

    assert waited_ms > VALID_MS + FlushSettings().commit_deadline_ms
    assert round(waited_ms / 1000) == round(WAIT_S) == len(shown)
    assert sorted(shown, reverse=True) == shown
