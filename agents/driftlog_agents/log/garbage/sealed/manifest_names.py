"""Which objects a manifest version names: its tree of lists, its segments, its producer snapshot.

    version 7    lists A B C    segments …    snapshot s7      named by 7 and not by 8:
    version 8    lists   B C D  segments …    snapshot s8      A, segments of A, s7, …

A version names every list of its tree, and every segment in it that ends above its log start.  A
difference is taken over whole trees: segments move from the manifest into a list, lists into a list
of lists, and log start moves through a list that stays as it is.

What two versions share is not opened: the lists of both trees are compared level by level, from the
highest down, so the difference of two neighbours costs what the edit between them has changed.

Lists are read by the caller, as for `formats/manifest.apply`: with `NeedsLists` it calls again.  A
list of the older version that is not there was collected, after everything in it: it adds nothing.
A list of the newer version that is not there is needed: nothing is known to be unnamed without it.

An edit may change a hundred lists.  Then `windows` cut the offsets, and the difference is taken
window by window: an object is in the window of its base, in both versions the same one, and only
the lists that overlap a window are opened for it.

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    overlaps,
)
from driftlog_tiering.formats.manifest_edits import NeedsLists

Lists = Mapping[str, SegmentList | None]
"""List objects by key; None: it is not there."""

Sizes = dict[str, int]
"""Sizes of objects by key; 0 where the manifest does not state one."""

Window = tuple[int, int]
"""Offsets ``[base, end)``."""

EVERYTHING: Final[Window] = (0, 2**63)

WINDOW_SEGMENTS: Final = 8_000
"""Segments of the lists that one window opens, about.  More: fewer passes over the manifests, and
0.7 KB of memory each."""


@dataclass(slots=True)
class _Tree:
    """A version, as far as it is opened."""

    log_start: int
    window: Window
    named: Sizes = field(default_factory=dict)
    refs: dict[int, dict[str, SegmentListRef]] = field(default_factory=dict)
    """Lists that were found and overlap the window, by level and key."""

    def add(self, lists: Iterable[SegmentListRef], segments: Iterable[SegmentRef]) -> None:
        base, end = self.window
        for ref in lists:
            if overlaps(ref, base, end):
                self.refs.setdefault(ref.level, {})[ref.key] = ref
            if base <= ref.base < end:
                self.named[ref.key] = 0
        for segment in segments:
            if segment.end > self.log_start and base <= segment.base < end:
                self.named[segment.key] = segment.size_bytes


def windows(needs: NeedsLists) -> list[Window]:
    """Windows that cover all offsets, of which each overlaps a bounded part of the lists."""
    cuts: list[int] = []
    here = 0
    for ref in sorted(needs.refs, key=lambda ref: ref.base):
        here += ref.segments
        parts = here // WINDOW_SEGMENTS
        if parts:
            # The segments of a larger list are taken to be equally large.
            cuts += [ref.base + (ref.end - ref.base) * n // parts for n in range(1, parts + 1)]
            here = 0
    first, last = EVERYTHING
    return [(a, b) for a, b in pairwise([first, *sorted(set(cuts) - {first}), last])]


def difference(
    older: Manifest, newer: Manifest, lists: Lists, window: Window = EVERYTHING
) -> Sizes | NeedsLists:
    """The objects in *window* that *older* names and *newer* does not."""
    trees = old, new = _tree(older, window), _tree(newer, window)
    level = max((ref.level for ref in (*older.lists, *newer.lists)), default=0)
    while level > 0:
        missing: list[SegmentListRef] = []
        here = [tree.refs.get(level, {}) for tree in trees]
        for tree, other in ((old, here[1]), (new, here[0])):
            for ref in tree.refs.get(level, {}).values():
                if ref.key in other and not _log_start_moves_through(ref, older, newer):
                    continue
                content = lists.get(ref.key)
                if content is not None:
                    tree.add(content.lists, content.segments)
                elif tree is new or ref.key not in lists:
                    missing.append(ref)
        if missing:
            return NeedsLists(tuple({ref.key: ref for ref in missing}.values()))
        level -= 1
    return {key: size for key, size in old.named.items() if key not in new.named}


def named_within(
    manifest: Manifest, segments: Window, of_lists: Window, lists: Lists
) -> frozenset[str] | NeedsLists:
    """The objects that *manifest* names, but only some of the segments and lists that stand in
    lists: of those the lists that overlap *segments* and *of_lists* are opened."""
    tree = _tree(manifest, EVERYTHING)
    missing: list[SegmentListRef] = []
    pending = list(manifest.lists)
    while pending:
        ref = pending.pop()
        if not overlaps(ref, *segments) and (ref.level == 1 or not overlaps(ref, *of_lists)):
            continue
        content = lists.get(ref.key)
        if content is None:
            missing.append(ref)
            continue
        tree.add(content.lists, content.segments)
        pending.extend(content.lists)
    return NeedsLists(tuple(missing)) if missing else frozenset(tree.named)


def _tree(manifest: Manifest, window: Window) -> _Tree:
    tree = _Tree(manifest.log_start, window)
    tree.add(manifest.lists, manifest.segments)
    if manifest.producers is not None and window[0] <= manifest.producers.offset < window[1]:
        tree.named[manifest.producers.key] = 0
    return tree


def _log_start_moves_through(ref: SegmentListRef, older: Manifest, newer: Manifest) -> bool:
    """Whether the list has segments that *older* names and *newer* does not."""
    return older.log_start < newer.log_start and ref.base < newer.log_start
