"""Merges the small segments of one partition for a job, beside the agents: `merge_one`.

    newest manifest ──▶ something to merge? ──▶ `Busy` ──▶ one merge after another ──▶ no `Busy`
           ▲                     └─▶ no: clean      ╳ void: another was faster
           └───────────────────────── once more ────┘

Lists of older segments are opened, too: agents open them only in partitions that they write.

Shell.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from driftlog_tiering.compaction.compact_one import rewritten
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.formats.manifest import SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifests import load_list
from driftlog_tiering.merging.list_walk import open_lists
from driftlog_tiering.merging.merger import Merger
from driftlog_tiering.merging.policy import MergePolicy, may_have_small, next_merge, young_from


async def merge_one(
    partition: SealedPartition, report: RewriteReport, policy: MergePolicy
) -> RewriteReport:
    """Merge what *policy* chooses of *partition*; returns *report* with what was done."""

    async def once(begun: RewriteReport) -> RewriteReport:
        return await _merge(partition, begun, policy)

    return await rewritten(partition, report, once)


async def _merge(
    partition: SealedPartition, report: RewriteReport, policy: MergePolicy
) -> RewriteReport:
    choice = _Choice(partition, policy, await partition.store_now_ms())
    if not await choice.next():
        return replace(report, outcome=Outcome.CLEAN, reason="no small segments can be merged")
    await partition.begin()
    merger = Merger(partition, partition.environment)
    while chosen := await choice.next():
        await merger.merge(partition.manifest, chosen)
    return replace(report, outcome=Outcome.DONE)


class _Choice:
    """The next merge of a partition, by its known manifest."""

    def __init__(self, partition: SealedPartition, policy: MergePolicy, now_ms: int) -> None:
        self._partition = partition
        self._policy = policy
        self._now_ms = now_ms
        self._settled = 0
        """Lists below this offset have nothing to merge."""

    async def next(self) -> tuple[SegmentRef, ...]:
        """Neighbours that become one; empty: there are none."""
        manifest = self._partition.manifest
        load = partial(load_list, self._partition.store)
        async for ref, content in open_lists(manifest.lists, load, self._may_have_more):
            if chosen := self._choose(content.segments, follows=True):
                return chosen
            self._settled = ref.end
        return self._choose(manifest.segments, follows=False)

    def _may_have_more(self, ref: SegmentListRef) -> bool:
        is_open = ref.end > max(self._settled, self._partition.manifest.log_start)
        return is_open and may_have_small(ref, self._policy)

    def _choose(self, segments: Sequence[SegmentRef], *, follows: bool) -> tuple[SegmentRef, ...]:
        manifest = self._partition.manifest
        young = young_from(segments, self._policy, self._now_ms)
        return next_merge(
            segments,
            self._policy,
            log_start=manifest.log_start,
            cleaned_end=manifest.cleaned_end,
            end=manifest.end if young is None else young[0],
            follows=follows and young is None,
        )
