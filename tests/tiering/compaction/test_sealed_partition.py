"""If it failed: agents would rewrite what a job rewrites, or wait for one that is dead."""

import asyncio

import pytest

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import FORMAT_VERSION, Cluster
from driftlog_metadata.stores.errors import FencedError
from driftlog_tiering.compaction.policy import PartitionBusyError, busy_ms
from driftlog_tiering.compaction.sealed_partition import (
    BUSY_MS,
    ClusterLevelError,
    SealedPartition,
    read_cluster,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.formats.manifest import Busy, ReplaceSegments, SetLogStart
from driftlog_tiering.formats.manifests import StaleManifestError
from driftlog_tiering.stores.object_store import NotFoundError
from tests.support.memory_object_store import MemoryObjectStore
from tests.tiering.compaction.job_partition import OURS, edit, newest, opened
from tests.tiering.compaction.test_cleaner import TP, Partition, rows_from


async def sealed() -> Partition:
    """A partition of one record."""
    log = Partition()
    await log.store.put(layout.CLUSTER_KEY, [encode_cluster(OURS)])
    await log.append(rows_from(0, (b"a", b"1")), 1)
    return log


def test_a_mark_is_renewed_while_the_job_works_and_lapses_after_it_was_killed() -> None:
    """
    By the store's clock; the leader's edits in between are kept.
    """

    async def main() -> None:
        log = await sealed()
        partition = opened(log)
        await partition.newest()
        await partition.begin()
        first = (await newest(log)).busy
        log.now_ms += BUSY_MS // 2
        await edit(log, SetLogStart(1))
        key = log.manifest.key
        await partition.get(key, 0, 1)
        renewed = await newest(log)
        assert (Busy("job", log.now_ms - BUSY_MS // 2 + BUSY_MS), 1) == (first, renewed.log_start)
        assert Busy("job", log.now_ms + BUSY_MS) == renewed.busy

        other = opened(log, by="other")
        await other.newest()
        with pytest.raises(PartitionBusyError, match="job rewrites the partition"):
            await other.begin()
        log.now_ms += BUSY_MS
        await other.begin()
        await partition.end()  # not its own any more
        assert "other" == ((await newest(log)).busy or Busy("", 0)).by

    asyncio.run(main())


def test_a_mark_lasts_half_of_grace_at_most() -> None:
    """
    Agents count no longer one.
    """

    async def main() -> None:
        log, grace = await sealed(), Grace(60_000)
        partition = SealedPartition(log.store, "t", TP, (OURS, grace), log.environment, "job")
        await partition.newest()
        await partition.begin()
        found = await newest(log)
        assert 30_000 == busy_ms(found, log.now_ms, grace.named_within_ms)

    asyncio.run(main())


def test_an_edit_of_old_objects_is_refused_and_an_old_manifest_is_read_again() -> None:
    """
    By half of grace.
    """

    async def main() -> None:
        log = await sealed()
        partition = opened(log)
        await partition.newest()
        log.now_ms += Grace().named_within_ms + 1
        await partition.begin()
        began_ms = log.now_ms - Grace().named_within_ms - 1
        with pytest.raises(StaleManifestError):
            await partition.commit(
                ReplaceSegments(replaced=log.manifest.segments, added=()),
                began_ms,
                log.now_ms + 1_000,
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    ("cluster", "grace", "says"),
    [
        (OURS, Grace(), None),
        (OURS, Grace(80_000_000), "grace is 80000000 ms"),
        (Cluster("restored", FORMAT_VERSION), Grace(), "became that of cluster restored"),
    ],
)
def test_an_edit_needs_a_young_look_at_the_cluster_file(
    cluster: Cluster, grace: Grace, says: str | None
) -> None:
    """
    Agents with a shorter grace would delete what the edit names; a restored cluster has the bucket.
    """

    async def main() -> None:
        log = await sealed()
        partition = opened(log)
        await partition.newest()
        await log.store.put(layout.cluster_key(1), [encode_cluster(cluster, grace)])
        await partition.begin()  # the look of its start is young enough
        log.now_ms += BUSY_MS
        if says is None:
            await partition.begin()
            assert (await newest(log)).busy == Busy("job", log.now_ms + BUSY_MS)
            return
        before = (await newest(log)).version
        with pytest.raises(FencedError, match=says):
            await partition.begin()
        await partition.end()  # lapses
        assert before == (await newest(log)).version

    asyncio.run(main())


@pytest.mark.parametrize("level", [1, FORMAT_VERSION, FORMAT_VERSION + 1])
def test_the_clusters_level_decides_whether_a_job_may_edit(level: int) -> None:
    """
    The message says what to upgrade.
    """

    async def main() -> None:
        store = MemoryObjectStore(lambda: 0)
        with pytest.raises(NotFoundError):
            await read_cluster(store)
        cluster = Cluster("c", level, "9.9.9" if level > FORMAT_VERSION else None)
        await store.put(layout.CLUSTER_KEY, [encode_cluster(cluster, Grace(70_000))])
        if level == FORMAT_VERSION:
            assert (cluster, Grace(70_000)) == await read_cluster(store)
            return
        says = "upgrade --finalize" if level == 1 else "upgrade driftlog where the job"
        with pytest.raises(ClusterLevelError, match=says):
            await read_cluster(store)

    asyncio.run(main())
