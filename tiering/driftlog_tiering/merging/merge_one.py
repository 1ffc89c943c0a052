"""Merges the small segments of one partition for a job, beside the agents: `merge_one`.

    newest manifest ──▶ something to merge? ──▶ `Busy` ──▶ one merge after another ──▶ no `Busy`
           ▲                     └─▶ no: clean      ╳ void: another was faster
           └───────────────────────── once more ────┘

Before each merge the end is fixed first, and then the policy is asked for, as in `compact_one`.
Lists of older segments are opened, too: agents open them only in partitions that they write.

Shell.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from driftlog_tiering.compaction.compact_one import CHANGED, rewritten
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.formats.manifest import SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifests import load_list
from driftlog_tiering.merging.list_walk import open_lists
from driftlog_tiering.merging.merger import Merger
from driftlog_tiering.merging.policy import MergePolicy, may_have_small, next_merge, young_from


async def merge_one(
    partition: SealedPartition,
    report: RewriteReport,
    policy: Callable[[], Awaitable[MergePolicy | None]],
) -> RewriteReport:
    """Merge what *policy* chooses of *partition*; returns *report* with what was done.

    Args:
        policy: asks for the topic's policy as it is now; None: the topic is deleted.
    """

    async def once(begun: RewriteReport) -> RewriteReport:
        return await _merge(partition, begun, policy)

    return await rewritten(partition, report, once)


async def _merge(
    partition: SealedPartition,
    report: RewriteReport,
    policy_now: Callable[[], Awaitable[MergePolicy | None]],
) -> RewriteReport:
    choice = _Choice(partition, await partition.store_now_ms())

    async def next_chosen() -> tuple[SegmentRef, ...] | None:
        policy = await policy_now()
        return None if policy is None else await choice.next(policy)

    chosen = await next_chosen()
    if not chosen:
        nothing = "no small segments can be merged"
        return replace(report, reason=CHANGED if chosen is None else nothing)
    await partition.begin()
    merger = Merger(partition, partition.environment)
    while chosen := await next_chosen():
        await merger.merge(partition.manifest, chosen)
    return replace(report, outcome=Outcome.DONE, reason=CHANGED if chosen is None else "")


class _Choice:
    """The next merge of a partition, by its known manifest."""

    def __init__(self, partition: SealedPartition, now_ms: int) -> None:
        self._partition = partition
        self._now_ms = now_ms
        self._settled = 0
        """Lists below this offset have nothing to merge."""

    async def next(self, policy: MergePolicy) -> tuple[SegmentRef, ...]:
        """Neighbours that become one; empty: there are none."""
        manifest = self._partition.manifest
        load = partial(load_list, self._partition.store)
        wanted = partial(self._may_have_more, policy)
        async for ref, content in open_lists(manifest.lists, load, wanted):
            if chosen := self._choose(policy, content.segments, follows=True):
                return chosen
            self._settled = ref.end
        return self._choose(policy, manifest.segments, follows=False)

    def _may_have_more(self, policy: MergePolicy, ref: SegmentListRef) -> bool:
        is_open = ref.end > max(self._settled, self._partition.manifest.log_start)
        return is_open and may_have_small(ref, policy)

    def _choose(
        self, policy: MergePolicy, segments: Sequence[SegmentRef], *, follows: bool
    ) -> tuple[SegmentRef, ...]:
        manifest = self._partition.manifest
        young = young_from(segments, policy, self._now_ms)
        return next_merge(
            segments,
            policy,
            log_start=manifest.log_start,
            cleaned_end=manifest.cleaned_end,
            end=manifest.end if young is None else young[0],
            follows=follows and young is None,
        )
