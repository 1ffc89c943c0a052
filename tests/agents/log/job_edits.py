"""Edits of a job beside a live agent, which is told nothing of them; and a consumer's fetch."""

from dataclasses import replace

from driftlog_agents.log.reading.reader import LogReader
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import FORMAT_VERSION, TopicPartition
from driftlog_tiering.compaction.compact_one import compact_one
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_newest
from driftlog_tiering.merging.merge_one import merge_one
from driftlog_tiering.merging.policy import MergePolicy
from tests.agents.log.lives import Life, now_ms, values_of
from tests.tiering.compaction.job_partition import always
from tests.tiering.compaction.test_cleaner import inline, spool

POLICY = CompactionPolicy(min_dirty_ratio=0)
REPORT = RewriteReport(topic="t", partition=0)


def opened(life: Life) -> SealedPartition:
    """The partition for a job, of which the agent knows nothing."""
    count = 0

    def nonce() -> str:
        nonlocal count
        count += 1
        return f"job{int(now_ms())}n{count}"

    return SealedPartition(
        life.world.bucket,
        "t",
        TopicPartition(life.log().topic_id, 0),
        (replace(life.engine.session.author, format_version=FORMAT_VERSION), Grace()),
        RewriteEnvironment(offload=inline, spool=spool, nonce=nonce, now_ms=now_ms),
        "job",
    )


async def compact(life: Life, policy: CompactionPolicy = POLICY) -> None:
    """A job's compaction."""
    report = await compact_one(
        opened(life),
        REPORT,
        always(policy),
        settings=CleanerSettings(),
        new_seed=lambda: bytes(16),
    )
    assert Outcome.DONE == report.outcome


async def merge(life: Life, segment_bytes: int = 1 << 20) -> None:
    """A job's merge."""
    policy = MergePolicy(segment_bytes=segment_bytes, span_ms=None, factor=2)
    assert Outcome.DONE == (await merge_one(opened(life), REPORT, always(policy))).outcome


async def newest(life: Life) -> Manifest:
    """The manifest in the bucket."""
    found = await load_newest(life.world.bucket, "t", TopicPartition(life.log().topic_id, 0))
    assert found is not None
    return found


async def fetched(life: Life, offset: int = 0) -> list[bytes]:
    """The values that a consumer gets from *offset* on, with one fetch."""
    reader = LogReader(
        store=life.world.bucket,
        offload=inline,
        manifests=life.engine,
        now_ms=now_ms,
    )
    batches = await reader.read(life.log(), offset, 1 << 20, zstd=True)
    return [value for batch in batches for _, _, value in values_of(batch)]
