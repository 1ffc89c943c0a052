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

An edit says what it adds and what it replaces, so that it can be applied again to the version
that won: `apply` is a function of manifest, edit and nonce, and of nothing else.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind

MAX_ENTRIES: Final = 1_000
"""Segments in a manifest, and lists of one level.  More: every edit writes ~0.3 KB more each."""

SPILLED_ENTRIES: Final = 500
"""How many of the oldest entries one list takes.  Fewer: more, smaller objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """A sealed segment of offsets ``[base, end)``, and what is known before it is opened.

    ``raw_bytes``: size of its batches, uncompressed (retention and read planning);
    ``max_timestamp_offset``: that of the first record with ``max_timestamp_ms`` (ListOffsets −3).
    Timestamps are −1 where there are no records, or none is known.  ``codec``: that of
    the batches it was sealed from (``compression.type=producer`` reads back with it).
    ``format_version``: of the segment's schema.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentListRef:
    """An immutable list object and the sums over its segments.

    ``segments``, ``records`` and the bytes count everything in the list, also below log start.
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
    nothing in the range is left to keep.
    """

    base: int
    end: int
    segments: tuple[SegmentRef, ...]
    leader_epochs: tuple[LeaderEpoch, ...]
    producers: ProducerSnapshotRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceSegments:
    """Put *added* in the place of *replaced*, which are neighbours.  Void unless all are there.

    At most as many are added as are replaced, so that no list outgrows its limit.
    """

    replaced: tuple[SegmentRef, ...]
    added: tuple[SegmentRef, ...]


@dataclass(frozen=True, slots=True)
class SetLogStart:
    """Move log start to *log_start*, never back: the records below it are gone."""

    log_start: int


Edit = AddSegments | ReplaceSegments | SetLogStart


@dataclass(frozen=True, slots=True)
class Applied:
    """The next version, and the list objects (by key) to be stored before it."""

    manifest: Manifest
    lists: Mapping[str, SegmentList]


@dataclass(frozen=True, slots=True)
class AlreadyApplied:
    """The manifest already has the edit's result: there is nothing to commit."""


@dataclass(frozen=True, slots=True)
class Void:
    """The edit does not apply any more, and never will to a later version."""

    reason: str


@dataclass(frozen=True, slots=True)
class NeedsLists:
    """Call `apply` again with these list objects as well."""

    refs: tuple[SegmentListRef, ...]


def apply(
    manifest: Manifest, edit: Edit, nonce: str, lists: Mapping[str, SegmentList] | None = None
) -> Applied | AlreadyApplied | Void | NeedsLists:
    """Make the next version of *manifest*; *lists* are the list objects read so far, by key.

    Only `ReplaceSegments` of old segments ever needs lists.
    """
    outcome: Applied | AlreadyApplied | Void | NeedsLists
    match edit:
        case AddSegments():
            outcome = _add(manifest, edit, nonce)
        case ReplaceSegments():
            outcome = _replace(manifest, edit, nonce, lists or {})
        case SetLogStart():
            outcome = _set_log_start(manifest, edit, nonce)
    if isinstance(outcome, Applied):
        broken = problem(outcome.manifest)
        assert broken is None, broken
    return outcome


def problem(manifest: Manifest) -> str | None:
    """Which invariant is broken; None if none is."""
    if not 0 <= manifest.log_start <= manifest.end:
        return f"log start {manifest.log_start} is not in [0, end {manifest.end}]"
    if manifest.producers is not None and manifest.producers.offset != manifest.end:
        return f"the producer snapshot is at {manifest.producers.offset}, not at {manifest.end}"
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
    for before, after in pairwise(entries):
        if before.end > after.base:
            return f"segments overlap: {before.key}, {after.key}"
    return None


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
    )


# ── Adding ──


def _add(manifest: Manifest, edit: AddSegments, nonce: str) -> Applied | AlreadyApplied | Void:
    assert edit.base < edit.end
    assert all(edit.base <= segment.base for segment in edit.segments)
    assert entries_problem(edit.segments, edit.end) is None
    assert all(edit.base <= epoch.start_offset < edit.end for epoch in edit.leader_epochs)
    if edit.segments and set(edit.segments) <= set(manifest.segments):
        return AlreadyApplied()
    if edit.base != manifest.end:
        return Void(f"it adds from {edit.base}, but the manifest's end is {manifest.end}")
    grown = replace(
        manifest,
        version=manifest.version + 1,
        nonce=nonce,
        end=edit.end,
        leader_epochs=_assign(manifest.leader_epochs, edit.leader_epochs),
        producers=edit.producers,
        segments=(*manifest.segments, *edit.segments),
    )
    return _spill(grown)


def _assign(
    history: tuple[LeaderEpoch, ...], added: tuple[LeaderEpoch, ...]
) -> tuple[LeaderEpoch, ...]:
    """The history with the epochs of the added range.

    An epoch that begins where the added ones begin has no record left (log start has moved to its
    end), and is dropped.
    Source: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache#assign.
    """
    last = history[-1].epoch if history else -1
    assert all(entry.epoch >= last for entry in added)
    new = tuple(entry for entry in added if entry.epoch > last)
    if not new:
        return history
    return (*(entry for entry in history if entry.start_offset < new[0].start_offset), *new)


def _spill(manifest: Manifest) -> Applied:
    """Move the oldest entries of every level that has too many into lists of the next."""
    stored: dict[str, SegmentList] = {}
    segments = manifest.segments
    levels: dict[int, tuple[SegmentListRef, ...]] = {}
    for ref in manifest.lists:
        levels[ref.level] = (*levels.get(ref.level, ()), ref)

    while len(segments) > MAX_ENTRIES:
        content = SegmentList(1, segments=segments[:SPILLED_ENTRIES])
        levels[1] = (*levels.get(1, ()), _store(manifest, content, stored))
        segments = segments[SPILLED_ENTRIES:]
    level = 1
    while level in levels:
        while len(levels[level]) > MAX_ENTRIES:
            content = SegmentList(level + 1, lists=levels[level][:SPILLED_ENTRIES])
            above = _store(manifest, content, stored)
            levels[level + 1] = (*levels.get(level + 1, ()), above)
            levels[level] = levels[level][SPILLED_ENTRIES:]
        level += 1

    if not stored:
        return Applied(manifest, {})
    lists = tuple(ref for level in sorted(levels, reverse=True) for ref in levels[level])
    return Applied(replace(manifest, lists=lists, segments=segments), stored)


def _store(
    manifest: Manifest, content: SegmentList, stored: dict[str, SegmentList]
) -> SegmentListRef:
    """Name a list that *manifest* is the first to refer to.

    A nonce and a version have one content: a second attempt to commit
    the edit, on another version, writes under another name.
    """
    entries: Sequence[SegmentRef | SegmentListRef] = content.segments or content.lists
    key = layout.segment_list_key(
        manifest.topic,
        manifest.tp,
        manifest.version,
        content.level,
        entries[0].base,
        entries[-1].end,
        manifest.nonce,
    )
    assert key not in stored
    stored[key] = content
    return list_ref(key, content)


# ── Replacing ──


def _replace(
    manifest: Manifest, edit: ReplaceSegments, nonce: str, lists: Mapping[str, SegmentList]
) -> Applied | AlreadyApplied | Void | NeedsLists:
    assert edit.replaced
    assert len(edit.added) <= len(edit.replaced)
    base, end = edit.replaced[0].base, edit.replaced[-1].end
    assert entries_problem(edit.replaced, end) is None
    assert entries_problem(edit.added, end) is None
    assert all(base <= added.base for added in edit.added)
    if edit.replaced[0].end <= manifest.log_start:
        return Void(f"{edit.replaced[0].key} is below log start {manifest.log_start}")
    missing = _missing(manifest.lists, base, end, lists)
    if missing:
        return NeedsLists(missing)

    next_version = replace(manifest, version=manifest.version + 1, nonce=nonce)
    rewrite = _Rewrite(next_version, edit, lists)
    kept = rewrite.lists(manifest.lists)
    segments = rewrite.segments(manifest.segments)
    if rewrite.found == list(edit.replaced):
        return Applied(replace(next_version, lists=kept, segments=segments), rewrite.stored)
    if edit.added and rewrite.found == list(edit.added):
        return AlreadyApplied()
    gone = [ref.key for ref in edit.replaced if ref not in rewrite.found]
    if gone:
        return Void(f"no longer there: {', '.join(gone)}")
    return Void(f"there are other segments within [{base}, {end})")


def _missing(
    refs: tuple[SegmentListRef, ...], base: int, end: int, lists: Mapping[str, SegmentList]
) -> tuple[SegmentListRef, ...]:
    missing: list[SegmentListRef] = []
    for ref in refs:
        if overlaps(ref, base, end):
            if ref.key not in lists:
                missing.append(ref)
            else:
                missing.extend(_missing(lists[ref.key].lists, base, end, lists))
    return tuple(missing)


class _Rewrite:
    """One walk over the tree that copies the path to the replaced segments.

    ``found``: every segment within the replaced range, in order.  The walk is discarded unless
    these are exactly the segments that the edit names.
    """

    def __init__(
        self, manifest: Manifest, edit: ReplaceSegments, lists: Mapping[str, SegmentList]
    ) -> None:
        self.found: list[SegmentRef] = []
        self.stored: dict[str, SegmentList] = {}
        self._manifest = manifest
        self._added = edit.added
        self._base = edit.replaced[0].base
        self._end = edit.replaced[-1].end
        self._read = lists

    def lists(self, refs: tuple[SegmentListRef, ...]) -> tuple[SegmentListRef, ...]:
        kept: list[SegmentListRef] = []
        for ref in refs:
            if not overlaps(ref, self._base, self._end):
                kept.append(ref)
                continue
            old = self._read[ref.key]
            new = SegmentList(old.level, self.segments(old.segments), self.lists(old.lists))
            if new == old:
                kept.append(ref)
            elif new.segments or new.lists:
                kept.append(_store(self._manifest, new, self.stored))
        return tuple(kept)

    def segments(self, segments: tuple[SegmentRef, ...]) -> tuple[SegmentRef, ...]:
        kept: list[SegmentRef] = []
        for segment in segments:
            if not overlaps(segment, self._base, self._end):
                kept.append(segment)
                continue
            if not self.found:  # The added ones go where the first one was.
                kept.extend(self._added)
            self.found.append(segment)
        return tuple(kept)


# ── Log start ──


def _set_log_start(
    manifest: Manifest, edit: SetLogStart, nonce: str
) -> Applied | AlreadyApplied | Void:
    assert edit.log_start >= 0
    if edit.log_start <= manifest.log_start:
        return AlreadyApplied()
    if edit.log_start > manifest.end:
        return Void(f"log start {edit.log_start} is beyond the manifest's end {manifest.end}")
    return Applied(
        replace(
            manifest,
            version=manifest.version + 1,
            nonce=nonce,
            log_start=edit.log_start,
            leader_epochs=_truncate_from_start(manifest.leader_epochs, edit.log_start),
            lists=tuple(ref for ref in manifest.lists if ref.end > edit.log_start),
            segments=tuple(ref for ref in manifest.segments if ref.end > edit.log_start),
        ),
        {},
    )


def _truncate_from_start(
    leader_epochs: tuple[LeaderEpoch, ...], log_start: int
) -> tuple[LeaderEpoch, ...]:
    """The history from *log_start* on; the epoch that holds it begins there.

    Source: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache#truncateFromStart.
    """
    before = [entry for entry in leader_epochs if entry.start_offset <= log_start]
    after = tuple(entry for entry in leader_epochs if entry.start_offset > log_start)
    return (LeaderEpoch(before[-1].epoch, log_start), *after) if before else after
