"""A restore reads the bucket while an agent of the old cluster still commits."""

import asyncio

from driftlog_agents.cluster.bucket_ownership import VALID_MS
from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.restore.old_agents import WAIT_S, until_old_agents_stop
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.support.memory_object_store import MemoryObjectStore


class Lagging(MemoryObjectStore):
    """Its node does not know of some objects yet."""

    def __init__(self) -> None:
        super().__init__(lambda: int(now_ms()))
        self.unknown: set[str] = set()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key in self.unknown:
            raise NotFoundError(key)
        return await super().get(key, start, end)


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


@on_virtual_time
async def test_the_wait_covers_a_node_of_the_store_that_lags() -> None:
    """
    It says for some seconds that there is no next cluster file, and the agent goes on.
    """
    bucket = Lagging()
    await bucket.put(layout.CLUSTER_KEY, [encode_cluster(Cluster("old"))])
    file = ClusterFile(bucket, "old", Grace(), now_ms)
    await file.hold()
    await asyncio.sleep(100)
    bucket.unknown.add(layout.cluster_key(1))
    await bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("new"))])
    began = now_ms()
    waiting = asyncio.get_running_loop().create_task(
        until_old_agents_stop(lambda what, count: None)
    )
    await asyncio.sleep(9)
    await file.hold()
    bucket.unknown.clear()
    committed_ms = 0.0
    while not waiting.done():
        committed_ms = now_ms() if file.holds() else committed_ms
        await asyncio.sleep(0.1)

    assert began + VALID_MS < committed_ms
    assert committed_ms + FlushSettings().commit_deadline_ms < now_ms()
