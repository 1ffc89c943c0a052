"""Compacts one partition for a job, beside the agents: `compact_one`.

    newest manifest ──▶ how dirty? ──▶ `Busy` ──▶ `Cleaner`, piece by piece ──▶ no `Busy`
           ▲                 └─▶ not due: clean        ╳ void: another was faster
           └───────────────────────── once more ───────┘
           └─────────────── a few times more ──────────╳ the store gave no answer

1. The dirty part ends at the manifest's end: a leader whose key does not have it yet recognises its
   segments under those that replace them (`sealing/sealer` of the agents).
2. Before each run the end is fixed first, and then the policy is asked for.  So no record below the
   end was acknowledged after the answer to a change of the topic's configs that the policy lacks.
   What the topic inherits may be of a minute or two ago.  The policy is asked for again before each
   edit (`Cleaner`): after a change the run begins once more, by the new one.
3. Ages of records are compared with the store's clock.
4. Pieces that were committed before a failure stay: the next run continues behind them.  A piece
   whose commit had no answer may be one: the next attempt looks for it in the manifest.

Shell.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.compaction.bucket_requests import dated
from driftlog_tiering.compaction.cleaner import Cleaner
from driftlog_tiering.compaction.policy import (
    CleanerSettings,
    CompactionPolicy,
    Dirtiness,
    clean_until,
    dirtiness,
    is_due,
)
from driftlog_tiering.compaction.rewrite_report import REPORTED, Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.manifests import VoidEditError, iter_segments

CHANGED: Final = "its configs have changed, or its topic is deleted: nothing more is done"
"""Reason of a report: a policy is None."""

_NONE_LEFT: Final = "compaction has looked at all of it that is old enough"

_VOIDS: Final = 2
"""Attempts that ended void: other editors are at work there, or the topic's configs change."""

_FAILURES: Final = 3
"""Attempts that ended because the store gave no answer.  More: a long outage takes longer."""

_NO_ANSWER: Final = (UnavailableError, OutcomeUnknownError, TimeoutError)


async def compact_one(
    partition: SealedPartition,
    report: RewriteReport,
    policy: Callable[[], Awaitable[CompactionPolicy | None]],
    *,
    settings: CleanerSettings,
    new_seed: Callable[[], bytes],
) -> RewriteReport:
    """Compact *partition* if it is due by *policy*; returns *report* with what was done.

    Args:
        policy: asks for the topic's policy as it is now; None: it is not compacted any more.
        new_seed: 16 random bytes.
    """

    async def once(begun: RewriteReport) -> RewriteReport:
        return await _compact(partition, begun, policy, settings, new_seed)

    return await rewritten(partition, report, once)


async def rewritten(
    partition: SealedPartition,
    report: RewriteReport,
    work: Callable[[RewriteReport], Awaitable[RewriteReport]],
) -> RewriteReport:
    """What *work* returns, begun a second time if another edit was faster, or the policy changed.

    *work* gets the report of the partition as it was at first.  Its `Busy` is taken away, however
    it ends.
    """
    begun: RewriteReport | None = None
    voids = failures = 0
    while True:
        try:
            if await partition.newest() is None:
                return replace(report, reason="nothing of it is sealed")
            there = await segments_of(partition)
            partition.count_unanswered(there)
            begun = begun or report.began_with(there)
            try:
                done = await work(begun)
            finally:
                await partition.end()
            after = await segments_of(partition) if partition.edits else there
        except VoidEditError as error:
            voids += 1
            if voids == _VOIDS:
                return _as_far(begun or report, partition).failed(error)
        except REPORTED as error:
            failures += 1
            may_pass = isinstance(error, _NO_ANSWER) or await _is_gone(partition, error)
            if failures == _FAILURES or not may_pass:
                return _as_far(begun or report, partition).failed(error)
        else:
            nothing_left = done.outcome is Outcome.CLEAN and done.reason in (
                "",
                _NONE_LEFT,
                CHANGED,
            )
            if partition.edits and nothing_left:  # an earlier attempt did it all
                reason = done.reason if done.reason == CHANGED else ""
                done = replace(done, outcome=Outcome.DONE, reason=reason)
            cleaned_end = partition.manifest.cleaned_end
            done = replace(done, pieces=partition.edits, cleaned_end=cleaned_end)
            return done.ended_with(after)


async def _is_gone(partition: SealedPartition, error: Exception) -> bool:
    """Whether *error* is about an object that the newest manifest does not name any more: it was
    collected after retention, another rewrite, or the topic's deletion.
    """
    if not isinstance(error, CorruptError):
        return False
    try:
        if await partition.newest() is None:
            return True
        return not any(each.key in str(error) for each in await segments_of(partition))
    except (CorruptError, *_NO_ANSWER):
        return False


def _as_far(report: RewriteReport, partition: SealedPartition) -> RewriteReport:
    return replace(report, pieces=partition.edits)


async def segments_of(partition: SealedPartition) -> list[SegmentRef]:
    """All segments of the known manifest that end above its log start, ascending."""
    return [ref async for ref in iter_segments(partition.store, partition.manifest)]


async def _compact(
    partition: SealedPartition,
    report: RewriteReport,
    policy_now: Callable[[], Awaitable[CompactionPolicy | None]],
    settings: CleanerSettings,
    new_seed: Callable[[], bytes],
) -> RewriteReport:
    now_ms = await partition.store_now_ms()
    policy = await policy_now()
    if policy is None:
        return replace(report, reason=CHANGED)
    found = await _measured(partition, await segments_of(partition), policy, now_ms)
    if not is_due(found, policy, now_ms):
        return replace(report, outcome=Outcome.CLEAN, reason=_why_not(found.ratio, policy))
    await partition.begin()
    keys, end = 0, -1
    while end < found.dirty_end:  # more keys than the key map holds: several runs
        segments, before = await segments_of(partition), end
        policy = await policy_now()
        if policy is None:
            return replace(report, reason=CHANGED, keys=keys)
        found = await _measured(partition, segments, policy, now_ms)
        if not found.dirty_bytes:
            break
        cleaner = Cleaner(
            partition,
            partition.environment,
            seed=new_seed(),
            settings=settings.within(partition.grace),
        )
        cleaned = await cleaner.clean(
            partition.manifest, segments, found.dirty_end, policy, policy_now
        )
        keys, end = keys + cleaned.keys, cleaned.end
        if end <= before:
            break
    return replace(report, outcome=Outcome.DONE, keys=keys)


async def _measured(
    partition: SealedPartition,
    segments: Sequence[SegmentRef],
    policy: CompactionPolicy,
    now_ms: int,
) -> Dirtiness:
    manifest = partition.manifest
    dirty = [each for each in segments if each.end > clean_until(manifest)]
    dirty = await dated(partition.store, dirty, policy)
    return dirtiness(manifest, dirty, manifest.end, policy, now_ms)


def _why_not(ratio: float, policy: CompactionPolicy) -> str:
    if not ratio:
        return _NONE_LEFT
    return (
        f"{ratio:.0%} of it is dirty, and min.cleanable.dirty.ratio is {policy.min_dirty_ratio:g}"
    )
