"""How an edit changes a manifest.

    manifest ──edit──▶ Applied: the next version, and the lists to store before it
                   ├─▶ AlreadyApplied, Void, OtherCluster: there is nothing to commit
                   └─▶ NeedsLists: to be called again with these lists

An edit says what it adds and what it replaces, so that it can be applied again to the version
that won: `apply` is a function of manifest, edit, nonce and author, and of nothing else.

The author is a cluster and its format level.  A manifest of format 2 names the cluster; an edit by
another cluster is refused for good, but for `SetCluster`, the fence of a restore.  A version has
the larger of its predecessor's format and its author's level, so the format only rises.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from driftlog_metadata.schema.model import Cluster
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    AS_RAW,
    MANIFEST_FORMAT,
    AddSegments,
    Edit,
    LeaderEpoch,
    Manifest,
    ReplaceSegments,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    SetBusy,
    SetCleanedEnd,
    SetCluster,
    SetLogStart,
    entries_problem,
    list_ref,
    overlaps,
    problem,
)

MAX_ENTRIES: Final = 1_000
"""Segments in a manifest, and lists of one level.  More: every edit writes ~0.3 KB more each."""

SPILLED_ENTRIES: Final = 500
"""How many of the oldest entries one list takes.  Fewer: more, smaller objects."""


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
class OtherCluster:
    """The manifest is another cluster's: the author of the edit may commit nothing any more."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class NeedsLists:
    """Call `apply` again with these list objects as well."""

    refs: tuple[SegmentListRef, ...]


Outcome = Applied | AlreadyApplied | Void | OtherCluster | NeedsLists


def apply(
    manifest: Manifest,
    edit: Edit,
    nonce: str,
    author: Cluster,
    lists: Mapping[str, SegmentList] | None = None,
) -> Outcome:
    """Make the next version of *manifest*; *lists* are the list objects read so far, by key.

    Only `ReplaceSegments` of old segments ever needs lists.
    """
    was = edit.was if isinstance(edit, SetCluster) else ()
    if manifest.cluster_id not in (None, author.cluster_id, *was):
        return OtherCluster(manifest.cluster_id or "")
    stored_as = max(manifest.format_version, min(author.format_version, MANIFEST_FORMAT))
    following = replace(
        manifest,
        version=manifest.version + 1,
        nonce=nonce,
        format_version=stored_as,
        cluster_id=author.cluster_id if stored_as > 1 else None,
    )
    outcome: Outcome
    match edit:
        case AddSegments():
            outcome = _add(following, edit)
        case ReplaceSegments():
            outcome = _replace(following, edit, lists or {})
        case SetLogStart():
            outcome = _set_log_start(following, edit)
        case SetCleanedEnd():
            outcome = _set_cleaned_end(following, edit)
        case SetBusy():
            outcome = _set_busy(following, edit)
        case SetCluster():
            is_done = manifest.cluster_id == author.cluster_id
            outcome = AlreadyApplied() if is_done else Applied(following, {})
    if isinstance(outcome, Applied):
        broken = problem(outcome.manifest)
        assert broken is None, broken
    return outcome


# ── Adding ──


def _stored(manifest: Manifest, segments: tuple[SegmentRef, ...]) -> tuple[SegmentRef, ...]:
    """*segments* as a reader of *manifest* finds them: format 1 has neither ``received_bytes`` nor
    ``footer_crc``."""
    if manifest.format_version > 1:
        return segments
    assert not any(s.horizons or s.merges for s in segments), "horizons and merges need format 2"
    return tuple(replace(each, received_bytes=AS_RAW, footer_crc=None) for each in segments)


def _add(manifest: Manifest, edit: AddSegments) -> Applied | AlreadyApplied | Void:
    assert edit.base < edit.end
    assert all(edit.base <= segment.base for segment in edit.segments)
    assert entries_problem(edit.segments, edit.end) is None
    assert all(edit.base <= epoch.start_offset < edit.end for epoch in edit.leader_epochs)
    if edit.segments and {s.key for s in edit.segments} <= {s.key for s in manifest.segments}:
        return AlreadyApplied()
    if edit.base != manifest.end:
        return Void(f"it adds from {edit.base}, but the manifest's end is {manifest.end}")
    grown = replace(
        manifest,
        end=edit.end,
        leader_epochs=_assign(manifest.leader_epochs, edit.leader_epochs),
        producers=edit.producers,
        segments=(*manifest.segments, *_stored(manifest, edit.segments)),
    )
    if edit.is_deleted:
        assert not edit.segments, "segments of deleted records"
        return _set_log_start(grown, SetLogStart(edit.end))
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
    manifest: Manifest, edit: ReplaceSegments, lists: Mapping[str, SegmentList]
) -> Applied | AlreadyApplied | Void | NeedsLists:
    assert edit.replaced
    assert len(edit.added) <= len(edit.replaced)
    base, end = edit.replaced[0].base, edit.replaced[-1].end
    assert entries_problem(edit.replaced, end) is None
    assert entries_problem(edit.added, end) is None
    assert all(base <= added.base for added in edit.added)

    def living(segments: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
        return tuple(segment for segment in segments if segment.end > manifest.log_start)

    replaced, added = living(edit.replaced), _stored(manifest, living(edit.added))
    if not replaced:
        return Void(f"all of [{base}, {end}) is below log start {manifest.log_start}")
    missing = _missing(manifest.lists, base, end, lists)
    if missing:
        return NeedsLists(missing)

    rewrite = _Rewrite(manifest, added, base, end, lists)
    kept = rewrite.lists(manifest.lists)
    segments = rewrite.segments(manifest.segments)
    found = living(rewrite.found)
    if found == replaced:
        cleaned_end = max(manifest.cleaned_end, edit.cleaned_end)
        rewritten = replace(manifest, lists=kept, segments=segments, cleaned_end=cleaned_end)
        return Applied(rewritten, rewrite.stored)
    if added and found == added:
        return AlreadyApplied()
    gone = [ref.key for ref in replaced if ref not in found]
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

    ``found``: every segment within the replaced range, in order, also below log start.  The walk is
    discarded unless those above it are exactly the segments that the edit names.
    """

    def __init__(
        self,
        manifest: Manifest,
        added: tuple[SegmentRef, ...],
        base: int,
        end: int,
        lists: Mapping[str, SegmentList],
    ) -> None:
        self.found: list[SegmentRef] = []
        self.stored: dict[str, SegmentList] = {}
        self._manifest = manifest
        self._added = list(added)
        self._base = base
        self._end = end
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
            # Each added one goes where the first that it replaces was: no list outgrows its limit.
            while self._added and self._added[0].base < segment.end:
                kept.append(self._added.pop(0))
            self.found.append(segment)
        return tuple(kept)


# ── Log start ──


def _set_log_start(manifest: Manifest, edit: SetLogStart) -> Applied | AlreadyApplied | Void:
    assert edit.log_start >= 0
    if edit.log_start <= manifest.log_start:
        return AlreadyApplied()
    if edit.log_start > manifest.end:
        return Void(f"log start {edit.log_start} is beyond the manifest's end {manifest.end}")
    return Applied(
        replace(
            manifest,
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


# ── Compaction ──


def _set_cleaned_end(manifest: Manifest, edit: SetCleanedEnd) -> Applied | AlreadyApplied | Void:
    if edit.cleaned_end <= manifest.cleaned_end:
        return AlreadyApplied()
    if edit.cleaned_end > manifest.end:
        return Void(f"cleaned end {edit.cleaned_end} is beyond the manifest's end {manifest.end}")
    return Applied(replace(manifest, cleaned_end=edit.cleaned_end), {})


def _set_busy(manifest: Manifest, edit: SetBusy) -> Applied | AlreadyApplied | Void:
    if edit.busy == manifest.busy:
        return AlreadyApplied()
    if edit.was != manifest.busy:
        return Void(f"busy is {manifest.busy}")
    return Applied(replace(manifest, busy=edit.busy), {})
