"""Partitions as a job works on them, in a bucket in memory."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import FORMAT_VERSION, Cluster
from driftlog_tiering.compaction.compact_one import compact_one
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.rewrite_report import RewriteReport
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.formats.manifest import Edit, Manifest
from driftlog_tiering.formats.manifests import commit_edit, load_newest
from tests.tiering.compaction.test_cleaner import TP, Partition

OURS = Cluster("c", FORMAT_VERSION)
REPORT = RewriteReport(topic="t", partition=0)
DIRTY = CompactionPolicy(min_dirty_ratio=0, segment_bytes=600)


T = TypeVar("T")


def always(policy: T) -> Callable[[], Awaitable[T | None]]:
    """Of a topic whose configs stay."""

    async def now() -> T | None:
        return policy

    return now


def opened(log: Partition, by: str = "job", cluster: Cluster = OURS) -> SealedPartition:
    """*log* for a job."""
    return SealedPartition(log.store, "t", TP, (cluster, Grace()), log.environment, by)


async def compacted(
    partition: SealedPartition,
    policy: CompactionPolicy = DIRTY,
    settings: CleanerSettings | None = None,
) -> RewriteReport:
    """One run."""
    return await compact_one(
        partition,
        REPORT,
        always(policy),
        settings=settings or CleanerSettings(),
        new_seed=lambda: bytes(range(16)),
    )


async def newest(log: Partition) -> Manifest:
    """The manifest in the bucket."""
    found = await load_newest(log.store, "t", TP)
    assert found is not None
    log.manifest = found
    return found


async def edit(log: Partition, what: Edit, author: Cluster = OURS) -> None:
    """An edit of another editor."""
    before = await newest(log)
    log.manifest = await commit_edit(
        log.store,
        before,
        what,
        f"other{before.version}",
        author=author,
        read_at_ms=log.now_ms,
        deadline_ms=log.now_ms + 1_000,
        now_ms=lambda: log.now_ms,
    )
