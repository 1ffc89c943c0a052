"""A job merges what agents would, and loses no record; also where agents look no more."""

import asyncio
from dataclasses import replace

import pytest

from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.formats import manifest_edits
from driftlog_tiering.formats.manifest import Busy, SetBusy
from driftlog_tiering.merging.merge_one import merge_one
from driftlog_tiering.merging.policy import MergePolicy
from tests.tiering.compaction.job_partition import REPORT, always, edit, newest, opened
from tests.tiering.compaction.test_cleaner import Partition, rows_from

POLICY = MergePolicy(segment_bytes=100_000, span_ms=None, factor=3)


async def sealed(count: int) -> Partition:
    """So many segments of two records."""
    log = Partition()
    for n in range(count):
        await log.append(rows_from(2 * n, (b"a", b"%d" % n), (b"b", None)), 2 * n + 2)
    return log


async def merged(log: Partition, policy: MergePolicy = POLICY) -> RewriteReport:
    """One run."""
    return await merge_one(opened(log), REPORT, always(policy))


def test_small_segments_become_one_with_the_same_records() -> None:
    """
    Fewer than the factor stay; and there is no `Busy` afterwards.
    """

    async def main() -> None:
        for count, outcome, left in ((2, Outcome.CLEAN, 2), (3, Outcome.DONE, 1)):
            log = await sealed(count)
            rows = await log.rows()
            report = await merged(log)
            found = await newest(log)
            assert (outcome, count, left) == (
                report.outcome,
                report.segments_before,
                report.segments,
            )
            assert (left, None) == (len(await log.segments()), found.busy)
            assert (rows, 2 * count) == (await log.rows(), report.records)

    asyncio.run(main())


def test_one_run_merges_all_that_can_be_merged() -> None:
    """
    Up to the size of a segment; a second run finds nothing.
    """

    async def main() -> None:
        log = await sealed(30)
        rows = await log.rows()
        policy = replace(POLICY, segment_bytes=900)
        report = await merged(log, policy)
        again = await merged(log, policy)
        await newest(log)
        assert report.pieces > 1
        assert Outcome.CLEAN == again.outcome
        assert len(await log.segments()) < 10
        assert rows == await log.rows()

    asyncio.run(main())


@pytest.mark.verify
def test_segments_in_lists_are_merged() -> None:
    """
    Agents open lists only in partitions that they write.
    """

    async def main() -> None:
        count = manifest_edits.MAX_ENTRIES + 1
        log = await sealed(count)
        assert log.manifest.lists
        report = await merged(log, replace(POLICY, segment_bytes=1 << 20))
        await newest(log)
        assert Outcome.DONE == report.outcome
        assert len(await log.segments()) < 10
        assert 2 * count == sum(each.records for each in await log.segments())

    asyncio.run(main())


def test_a_partition_that_another_rewrites_is_not_merged() -> None:
    async def main() -> None:
        log = await sealed(3)
        await edit(log, SetBusy(None, Busy("other", log.now_ms + 60_000)))
        report = await merged(log)
        await newest(log)
        assert (Outcome.BUSY, 3) == (report.outcome, len(await log.segments()))

    asyncio.run(main())
