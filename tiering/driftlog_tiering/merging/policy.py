"""Which small segments of a partition are merged into one.

    log start       cleaned end                        end: sealed end, or dirty end
        ├─ run ─┬─ run ──┼── run ─┬─── run ───┬── the last run ──┤
                └ a large or an undecodable one └ the longest span, or `segment_bytes`

1. A segment with records is small below a quarter of `segment_bytes`.  Small neighbours are a run
   while they have together at most `segment_bytes` and `span_ms` of time.  `SEGMENT_WORK_BYTES`
   bounds the records of both, uncompressed, in the same way: a merge decodes all of them.  Cleaned
   end cuts a run: above it compaction has yet to look.
2. A run that no later segment can join is merged whole.
3. The last run grows with each new segment.  `factor` segments of it that were merged equally often
   become one, with all behind them: sizes grow by that factor or more.
4. A segment counts its `merges`; after `MOST_MERGES` it stays as it is.  So a merge writes each
   byte at most so often.
5. Retention deletes a segment when its newest record expires: merged records stay up to `span_ms`
   longer.  A segment without timestamps expires by the time of its PUT, and is not merged where
   `span_ms` limits a merge.
6. What DeleteRecords or retention has cut in part is not merged: the records below log start would
   stay with the others.
7. A merge appends the horizons of tombstones and changes none.  (Tombstones with a horizon are
   always below those without: each run of compaction begins at log start.)

Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from driftlog_tiering.batches.batch_limits import SEGMENT_WORK_BYTES
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentListRef, SegmentRef, TombstoneHorizon

MOST_MERGES: Final = 2

SMALL: Final = 4
"""A segment of a smaller share of `segment_bytes` is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """The limits of merges in a topic."""

    segment_bytes: int
    """Most bytes of a merged segment, as received: ``segment.bytes``."""

    span_ms: int | None
    """Most time between two records of a merged segment; None: no limit."""

    min_lag_ms: int = 0
    """``min.compaction.lag.ms`` of a topic that is compacted; younger segments are not merged."""

    factor: int = 16
    """Segments of the last run that become one.  More: fewer, larger segments in the end, and more
    small ones until then."""


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Small neighbours; *is_closed*: no later segment can join them."""

    segments: tuple[SegmentRef, ...]
    is_closed: bool


def span_ms(segment_ms: float, retention_ms: int | None) -> int | None:
    """`MergePolicy.span_ms` of a topic with these configs; *retention_ms* None: no limit."""
    return None if retention_ms is None else max(round(segment_ms), retention_ms // 10)


def next_merge(
    segments: Sequence[SegmentRef],
    policy: MergePolicy,
    *,
    log_start: int,
    cleaned_end: int,
    end: int,
    follows: bool = False,
) -> tuple[SegmentRef, ...]:
    """The neighbours of *segments*, ascending, that are merged next; empty: none are.

    Args:
        end: no segment above it is merged.
        follows: other segments follow *segments*, which are not merged with these.
    """
    for run in runs(segments, policy, log_start=log_start, cleaned_end=cleaned_end, end=end):
        if run.is_closed or follows:
            if len(run.segments) > 1:
                return run.segments
            continue
        for merges in range(MOST_MERGES):
            last = _last(run.segments, merges)
            if sum(each.merges == merges for each in last) >= policy.factor:
                return last
    return ()


def young_from(
    segments: Sequence[SegmentRef], policy: MergePolicy, now_ms: int
) -> tuple[int, int] | None:
    """Where the first segment younger than ``min.compaction.lag.ms`` begins, and when it is old
    enough; None: there is none.  *now_ms* is the clock of record timestamps, since 1970."""
    if policy.min_lag_ms:
        for segment in segments:
            if segment.max_timestamp_ms > now_ms - policy.min_lag_ms:
                return segment.base, segment.max_timestamp_ms + policy.min_lag_ms
    return None


def runs(
    segments: Sequence[SegmentRef],
    policy: MergePolicy,
    *,
    log_start: int,
    cleaned_end: int,
    end: int,
) -> Iterator[SegmentRun]:
    """The runs of *segments*; see the module."""
    run: list[SegmentRef] = []
    for segment in segments:
        if segment.end > end:
            break
        if run and not _joins(run, segment, policy, cleaned_end):
            yield SegmentRun(tuple(run), is_closed=True)
            run = []
        if _is_small(segment, policy) and segment.base >= log_start:
            run.append(segment)
    if run:
        yield SegmentRun(tuple(run), is_closed=False)


def may_have_small(ref: SegmentListRef, policy: MergePolicy) -> bool:
    """Whether segments of the list may be small: they are on average."""
    return ref.segments > 1 and ref.received_bytes * SMALL < ref.segments * policy.segment_bytes


def joined_horizons(segments: Sequence[SegmentRef]) -> tuple[TombstoneHorizon, ...]:
    """The horizons of the segment that *segments* become."""
    return tuple(horizon for segment in segments for horizon in segment.horizons)


def _is_small(segment: SegmentRef, policy: MergePolicy) -> bool:
    return (
        segment.kind is not SegmentKind.RAW
        and segment.records > 0  # its leader epochs stand beside its rows
        and segment.merges < MOST_MERGES
        and segment.received_bytes * SMALL < policy.segment_bytes
        and segment.raw_bytes * SMALL < SEGMENT_WORK_BYTES
        and (policy.span_ms is None or segment.max_timestamp_ms >= 0)
    )


def _joins(
    run: Sequence[SegmentRef], segment: SegmentRef, policy: MergePolicy, cleaned_end: int
) -> bool:
    """Whether *segment* may be merged with *run*, before it."""
    if not _is_small(segment, policy) or run[0].base < cleaned_end < segment.end:
        return False
    together = (*run, segment)
    if sum(each.received_bytes for each in together) > policy.segment_bytes:
        return False
    if sum(each.raw_bytes for each in together) > SEGMENT_WORK_BYTES:
        return False
    before = run[-1].horizons
    if segment.horizons and before and before[-1].end < run[-1].end:
        return False  # tombstones without a horizon would get that of the next segment
    newest_ms = max(each.max_timestamp_ms for each in together)
    oldest_ms = min(each.min_timestamp_ms for each in together)
    return policy.span_ms is None or newest_ms - oldest_ms <= policy.span_ms


def _last(run: tuple[SegmentRef, ...], merges: int) -> tuple[SegmentRef, ...]:
    """The end of *run* that was merged at most so often."""
    first = len(run)
    while first and run[first - 1].merges <= merges:
        first -= 1
    return run[first:]
