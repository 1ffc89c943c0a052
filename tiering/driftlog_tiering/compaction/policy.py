"""What compaction does to a partition: when, from where to where, and which tombstones go.

    log start                cleaned end                    dirty end     sealed end
        ├──── clean ─────────────┼──────────── dirty ───────────┼─ too young ──┤
        │                        └─ the key map is built of it ─┘
        └──────────── rewritten: each key's newest record stays ┘

1. The dirty part ends at the first segment with a record younger than ``min.compaction.lag.ms``.
   A segment without timestamps is as old as its PUT (`bucket_requests.dated`).
2. A partition is due when its dirty part is more than ``min.cleanable.dirty.ratio`` of it, or has
   a record older than ``max.compaction.lag.ms``.
3. A tombstone gets a horizon in the run that removes the last older value of its key, and goes in a
   run that begins ``delete.retention.ms`` and `CleanerSettings.reader_ms` after its horizon: a
   reader that saw the older value has seen the tombstone by then.
4. Horizons stand in the references of segments: `TombstoneHorizon`.  They are times of the store's
   clock.
5. An undecodable segment (``.raw``) is kept as it is.  It may hold an older value of any key: no
   tombstone above one gets a horizon, so none goes.

Source: org.apache.kafka.storage.internals.log.LogCleanerManager#grabFilthiestCompactedLog,
Cleaner#shouldRetainRecord, KIP-534.

Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentListRef,
    SegmentRef,
    TombstoneHorizon,
)

_DAY_MS: Final = 86_400_000
_FOREVER_MS: Final = 2**63 - 1

_STEPS: Final = 16
"""Horizons are rounded up to multiples of this share of ``delete.retention.ms``: equal neighbours
become one.  More: longer references of segments; fewer: tombstones stay longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Limits of one run."""

    map_bytes: int = 128 * 1024 * 1024
    """``log.cleaner.dedupe.buffer.size``.  More: fewer runs over a partition of many keys."""

    map_load: float = 0.9
    """``log.cleaner.io.buffer.load.factor``."""

    piece_ms: float = 600_000
    """A piece is committed this long after its first PUT.  Longer: fewer edits, and more work is
    lost where one is void; it must stay well below grace / 2."""

    reader_ms: int = 300_000
    """The longest time for which a leader reads a partition without looking for a newer manifest:
    tombstones stay so much longer than ``delete.retention.ms``."""

    def within(self, grace: Grace) -> "CleanerSettings":
        """These settings, with the bounds of what names objects for the cluster's *grace*."""
        return replace(self, piece_ms=min(self.piece_ms, grace.short_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """A topic's configs of compaction."""

    min_lag_ms: int = 0
    """``min.compaction.lag.ms``."""

    max_lag_ms: int = _FOREVER_MS
    """``max.compaction.lag.ms``."""

    min_dirty_ratio: float = 0.5
    """``min.cleanable.dirty.ratio``."""

    delete_retention_ms: int = _DAY_MS
    """``delete.retention.ms``."""

    segment_bytes: int = 128 * 1024 * 1024
    """Size up to which neighbours become one segment."""


@dataclass(frozen=True, slots=True)
class Dirtiness:
    """How much of a partition compaction has not looked at; bytes as received."""

    clean_bytes: int
    dirty_bytes: int
    dirty_end: int
    oldest_ms: int
    """The earliest time of a dirty record; -1: none is known."""
    next_ms: int | None
    """When the next segment is old enough for ``min.compaction.lag.ms``; None: all are."""

    @property
    def ratio(self) -> float:
        """The dirty share; 0 without segments."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def clean_until(manifest: Manifest) -> int:
    """Segments below this offset are clean, or deleted: their lists are not opened."""
    return max(manifest.cleaned_end, manifest.log_start)


def dirtiness(
    manifest: Manifest,
    dirty: Sequence[SegmentRef],
    sealed_end: int,
    policy: CompactionPolicy,
    now_ms: int,
) -> Dirtiness:
    """How dirty the partition of *manifest* is below *sealed_end*.

    *dirty*: its segments above `clean_until`; *now_ms*: as in `measure`.
    """
    refs: tuple[SegmentListRef | SegmentRef, ...] = (*manifest.lists, *manifest.segments)
    total = sum(ref.received_bytes for ref in refs if ref.end > manifest.log_start)
    clean = max(0, total - sum(ref.received_bytes for ref in dirty))
    return measure(dirty, clean, sealed_end, policy, now_ms)


def measure(
    dirty: Iterable[SegmentRef],
    clean_bytes: int,
    sealed_end: int,
    policy: CompactionPolicy,
    now_ms: int,
) -> Dirtiness:
    """The dirtiness of a partition of *clean_bytes* and the segments *dirty*, ascending.

    *now_ms* is the clock of record timestamps, since 1970.
    """
    dirty_bytes, oldest_ms, next_ms, end = 0, -1, None, sealed_end
    for segment in dirty:
        if segment.end > sealed_end:
            end = min(end, segment.base)
            break
        if policy.min_lag_ms and segment.max_timestamp_ms > now_ms - policy.min_lag_ms:
            end, next_ms = segment.base, segment.max_timestamp_ms + policy.min_lag_ms
            break
        dirty_bytes += segment.received_bytes
        if segment.min_timestamp_ms > 0 and (oldest_ms < 0 or segment.min_timestamp_ms < oldest_ms):
            oldest_ms = segment.min_timestamp_ms
    return Dirtiness(clean_bytes, dirty_bytes, end, oldest_ms, next_ms)


def is_due(found: Dirtiness, policy: CompactionPolicy, now_ms: int) -> bool:
    """Whether the partition is compacted now."""
    if not found.dirty_bytes:
        return False
    too_old = found.oldest_ms >= 0 and found.oldest_ms < now_ms - policy.max_lag_ms
    return too_old or found.ratio > policy.min_dirty_ratio


def due_ms(found: Dirtiness, policy: CompactionPolicy) -> int | None:
    """When the partition may become due without a new segment, since 1970; None: never."""
    times = [found.next_ms] if found.next_ms is not None else []
    if found.dirty_bytes and found.oldest_ms >= 0 and policy.max_lag_ms < _FOREVER_MS:
        times.append(found.oldest_ms + policy.max_lag_ms + 1)
    return min(times, default=None)


class PartitionBusyError(Exception):
    """Another agent or job rewrites the partition; *left_ms*: how long it may."""

    def __init__(self, left_ms: float, by: str = "another") -> None:
        super().__init__(f"{by} rewrites the partition for at most {left_ms / 1000:.0f} s more")
        self.left_ms = left_ms


def busy_ms(manifest: Manifest, store_now_ms: int, longest_ms: float) -> float:
    """How long another may rewrite the partition, by its `Busy`; 0: none does.  One that lasts
    longer than *longest_ms* does not count: a wrong clock would stop compaction and merging."""
    left_ms = 0 if manifest.busy is None else manifest.busy.until_ms - store_now_ms
    return left_ms if 0 < left_ms <= longest_ms else 0


def groups(segments: Sequence[SegmentRef], segment_bytes: int) -> Iterator[tuple[SegmentRef, ...]]:
    """Neighbours that become one segment: up to *segment_bytes* together; a ``.raw`` one is alone.

    Source: Cleaner#groupSegmentsBySize.
    """
    group: list[SegmentRef] = []
    size = 0
    for segment in segments:
        raw = segment.kind is SegmentKind.RAW
        if group and (raw or size + segment.raw_bytes > segment_bytes):
            yield tuple(group)
            group, size = [], 0
        if raw:
            yield (segment,)
            continue
        group.append(segment)
        size += segment.raw_bytes
    if group:
        yield tuple(group)


# ── Tombstones ──


def first_raw(segments: Iterable[SegmentRef]) -> int | None:
    """Where the first undecodable segment begins; None: there is none."""
    return next((each.base for each in segments if each.kind is SegmentKind.RAW), None)


def tombstones_end(segments: Sequence[SegmentRef], latest_ms: int) -> int:
    """Where the tombstones end that go now: those with a horizon of *latest_ms* or before; 0: none.

    *segments*: all above log start, ascending.  The first later horizon ends them.
    """
    end = 0
    for segment in segments:
        for horizon in segment.horizons:
            if horizon.at_ms > latest_ms:
                return end
            end = horizon.end
        if segment.horizons and segment.horizons[-1].end < segment.end:
            break
    return end


def horizon_at(store_ms: int, policy: CompactionPolicy) -> int:
    """The horizon of an edit that is committed by *store_ms*, rounded up."""
    step = max(1, policy.delete_retention_ms // _STEPS)
    return -(-store_ms // step) * step


def horizons(
    replaced: Sequence[tuple[SegmentRef, int]], end: int, gone: int, at_ms: int
) -> tuple[TombstoneHorizon, ...]:
    """The horizons of a segment that takes the place of *replaced*, each with the number of its
    tombstones that stay.

    Args:
        end: up to where tombstones get a horizon: the end of the map, or the first undecodable
            segment.
        gone: `tombstones_end` of this run.
        at_ms: the horizon of the tombstones that have none.
    """
    joined: list[TombstoneHorizon] = []
    for segment, tombstones in replaced:
        if not tombstones:
            continue
        entries = [each for each in segment.horizons if each.end > gone]
        covered = segment.horizons[-1].end if segment.horizons else segment.base
        if covered < (most := min(segment.end, end)):
            entries.append(TombstoneHorizon(most, at_ms))
        for entry in entries:
            if joined and joined[-1].at_ms == entry.at_ms:
                joined[-1] = entry
            else:
                joined.append(entry)
    if joined:  # no tombstone follows its last one: the next segment's horizons come next
        last = max(joined[-1].end, min(replaced[-1][0].end, end))
        joined[-1] = TombstoneHorizon(last, joined[-1].at_ms)
    return tuple(joined)
