"""A partition's manifest: which segments its log consists of, and how an edit changes that.

    lists                                                  segments                     end
    ├─ level 2 ──┬─ level 2 ─┬─ level 1 ─┬ … ┬─ level 1 ─┼─ seg ─┬─ seg ─┬ … ┬─ seg ─┤
    oldest                                                                       newest
          └▶ list of 500 lists    └▶ list of 500 segments

The newest segments, at most 1,000, stand in the manifest itself.  One more spills the oldest
500 into an immutable list object of level 1; the lists of a level, at most 1,000, spill likewise
into one of the next.  So adding a segment writes at most one list of 500 per level, and a
manifest has at most 1,000 entries per level: ten million segments need levels 1 and 2.

A manifest *names* the segments of its tree that end above its log start.  Lists are not rewritten
when log start moves through them: a reader of the tree skips what ends at or below it, and the
collector treats it as not named.

Invariants (`problem` says which one is broken):

1. ``0 ≤ log_start ≤ end``; segments ascend, do not overlap and end at or below ``end``.  They
   need not touch: a range whose records are all gone (aborted, compacted) has no segment.
2. ``end`` is stated, not derived: no segments does not mean offset 0.
3. The producer snapshot is of exactly ``end``.
4. Leader epochs and their start offsets ascend.

5. ``0 ≤ cleaned_end ≤ end``.  What format 1 cannot store is not there in a manifest of format 1.

`formats/manifest_edits` makes the next version from a version and an edit.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind

MANIFEST_FORMAT: Final = 2
"""Newest format of manifests and their lists.  Format 2 has the cluster id, cleaned end, busy,
``received_bytes``, horizons, ``merges`` and ``footer_crc``."""


AS_RAW: Final = -1
"""As ``received_bytes``: not known, so ``raw_bytes`` stands for it (references of format 1)."""


@dataclass(frozen=True, slots=True)
class TombstoneHorizon:
    """From ``at_ms`` on, by the store's clock, no older value of a tombstone below offset ``end``
    is in the log.  A segment's horizons ascend by ``end``: each is that of the tombstones from the
    end of the one before it."""

    end: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The agent or job ``by`` rewrites the partition until ``until_ms``, by the store's clock.

    Advice to others that compact or merge; sealing, log start and adoption ignore it.
    """

    by: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """A sealed segment of offsets ``[base, end)``, and what is known before it is opened.

    ``raw_bytes``: size of its batches, uncompressed (read planning); ``received_bytes``: size of
    its batches as they were received (retention, `DescribeLogDirs`), or `AS_RAW`, which becomes
    ``raw_bytes``; ``horizons``: see `TombstoneHorizon`; a tombstone above the last has none;
    ``max_timestamp_offset``: that of the first record with ``max_timestamp_ms`` (ListOffsets −3).
    Timestamps are −1 where there are no records, or none is known.  ``codec``: that of
    the batches it was sealed from (``compression.type=producer`` reads back with it).
    ``format_version``: of the segment's schema.  ``merges``: how often a merge has written its
    records; the most of any.  ``footer_crc``: CRC-32C of a Parquet segment's footer, from its
    first byte to the object's end; None: not known (references of format 1).
    """

    key: str
    kind: SegmentKind = SegmentKind.PARQUET
    base: int
    end: int
    size_bytes: int
    records: int
    raw_bytes: int
    min_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    codec: str = "none"
    format_version: int = 1
    received_bytes: int = AS_RAW
    horizons: tuple[TombstoneHorizon, ...] = ()
    merges: int = 0
    footer_crc: int | None = None

    def __post_init__(self) -> None:
        if self.received_bytes == AS_RAW:
            object.__setattr__(self, "received_bytes", self.raw_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentListRef:
    """An immutable list object and the sums over its segments.

    ``segments``, ``records`` and the bytes count everything in the list, also below log start.
    ``received_bytes``: as in `SegmentRef`.
    """

    key: str
    level: int
    base: int
    end: int
    segments: int
    size_bytes: int
    records: int
    raw_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    received_bytes: int = AS_RAW

    def __post_init__(self) -> None:
        if self.received_bytes == AS_RAW:
            object.__setattr__(self, "received_bytes", self.raw_bytes)


@dataclass(frozen=True, slots=True)
class SegmentList:
    """What a list object holds: segments (level 1), or lists of exactly one level less."""

    level: int
    segments: tuple[SegmentRef, ...] = ()
    lists: tuple[SegmentListRef, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """The first offset of a leader epoch (Kafka's ``EpochEntry``)."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class ProducerSnapshotRef:
    """Where the state of the partition's producers at exactly *offset* is."""

    offset: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version.  Version 0 is the empty manifest, which is never stored.

    ``nonce``: that of the edit that made it.  ``producers`` None: no producer with an id is known.
    ``format_version``: that of its object.  ``cluster_id``: the cluster whose log it is; None: of
    format 1.  ``cleaned_end``: compaction has looked at every record below it.
    """

    version: int
    nonce: str
    topic: str
    tp: TopicPartition
    end: int
    log_start: int
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    producers: ProducerSnapshotRef | None = None
    lists: tuple[SegmentListRef, ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    format_version: int = 1
    cluster_id: str | None = None
    cleaned_end: int = 0
    busy: Busy | None = None

    @property
    def key(self) -> str:
        """Its object's key."""
        return layout.manifest_key(self.topic, self.tp, self.version)


def empty_manifest(topic: str, tp: TopicPartition) -> Manifest:
    """The manifest of a partition before its first segment."""
    return Manifest(version=0, nonce="", topic=topic, tp=tp, end=0, log_start=0)


# ── Edits ──


@dataclass(frozen=True, slots=True, kw_only=True)
class AddSegments:
    """Seal ``[base, end)``.  Void unless *base* is the manifest's end.

    ``leader_epochs``: those that have records in the range, from their first offset in it; one
    that the manifest has already is not added twice.  ``segments`` may be empty, when
    nothing in the range is left to keep.  ``is_deleted``: the range is below the partition's log
    start: the manifest's moves to *end*, so that no reader takes the range for an empty one.
    """

    base: int
    end: int
    segments: tuple[SegmentRef, ...]
    leader_epochs: tuple[LeaderEpoch, ...]
    producers: ProducerSnapshotRef | None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceSegments:
    """Put *added* in the place of *replaced*, which are neighbours.

    Void unless all identical segments are there, with no other between them.  One that lies wholly
    below log start need not be there any more, and one of *added* that does is left out.
    At most as many are added as are replaced, so that no list outgrows its limit.
    *cleaned_end*: as in `SetCleanedEnd`, with the last piece of a compaction.
    """

    replaced: tuple[SegmentRef, ...]
    added: tuple[SegmentRef, ...]
    cleaned_end: int = 0


@dataclass(frozen=True, slots=True)
class SetLogStart:
    """Move log start to *log_start*, never back: the records below it are gone."""

    log_start: int


@dataclass(frozen=True, slots=True)
class SetCleanedEnd:
    """Move cleaned end to *cleaned_end*, never back: there was nothing to rewrite below it."""

    cleaned_end: int


@dataclass(frozen=True, slots=True)
class SetBusy:
    """Put *busy* in the place of *was*.  Void unless *was* is there: another was faster."""

    was: Busy | None
    busy: Busy | None


@dataclass(frozen=True, slots=True)
class SetCluster:
    """Give the partition of one of the clusters *was*, or of none, to the author's: a restore's
    fence.  Their later edits are refused."""

    was: tuple[str, ...]


Edit = AddSegments | ReplaceSegments | SetLogStart | SetCleanedEnd | SetBusy | SetCluster


def problem(manifest: Manifest) -> str | None:
    """Which invariant is broken; None if none is."""
    if not 0 <= manifest.log_start <= manifest.end:
        return f"log start {manifest.log_start} is not in [0, end {manifest.end}]"
    if manifest.producers is not None and manifest.producers.offset != manifest.end:
        return f"the producer snapshot is at {manifest.producers.offset}, not at {manifest.end}"
    if not 0 <= manifest.cleaned_end <= manifest.end:
        return f"cleaned end {manifest.cleaned_end} is not in [0, end {manifest.end}]"
    if manifest.format_version == 1 and (
        manifest.cluster_id,
        manifest.cleaned_end,
        manifest.busy,
    ) != (
        None,
        0,
        None,
    ):
        return "it has what format 1 cannot store"
    for before, after in pairwise(manifest.leader_epochs):
        if before.epoch >= after.epoch or before.start_offset >= after.start_offset:
            return f"leader epochs do not ascend: {before}, {after}"
    for above, below in pairwise(manifest.lists):
        if above.level < below.level:
            return f"lists are not by level: {above.key}, {below.key}"
    return entries_problem([*manifest.lists, *manifest.segments], manifest.end)


def entries_problem(entries: Sequence[SegmentRef | SegmentListRef], end: int) -> str | None:
    """As `problem`, for the entries of a list that ends at or below *end*."""
    for entry in entries:
        if not 0 <= entry.base < entry.end <= end:
            return f"{entry.key}: [{entry.base}, {entry.end}) is not a range below {end}"
        if isinstance(entry, SegmentRef) and not _ascend(entry):
            return f"{entry.key}: horizons do not ascend within [{entry.base}, {entry.end})"
    for before, after in pairwise(entries):
        if before.end > after.base:
            return f"segments overlap: {before.key}, {after.key}"
    return None


def _ascend(entry: SegmentRef) -> bool:
    ends = [entry.base, *(horizon.end for horizon in entry.horizons)]
    return ends[-1] <= entry.end and all(before < after for before, after in pairwise(ends))


def overlaps(entry: SegmentRef | SegmentListRef, base: int, end: int) -> bool:
    """Whether *entry* has offsets in ``[base, end)``."""
    return entry.base < end and base < entry.end


def list_ref(key: str, content: SegmentList) -> SegmentListRef:
    """The reference to a list object that is not empty."""
    entries: Sequence[SegmentRef | SegmentListRef] = content.segments or content.lists
    assert entries
    return SegmentListRef(
        key=key,
        level=content.level,
        base=entries[0].base,
        end=entries[-1].end,
        segments=len(content.segments) + sum(below.segments for below in content.lists),
        size_bytes=sum(entry.size_bytes for entry in entries),
        records=sum(entry.records for entry in entries),
        raw_bytes=sum(entry.raw_bytes for entry in entries),
        min_timestamp_ms=min(entry.min_timestamp_ms for entry in entries),
        max_timestamp_ms=max(entry.max_timestamp_ms for entry in entries),
        received_bytes=sum(entry.received_bytes for entry in entries),
    )
