"""What a version names and a later one does not, over whole trees: else live objects go."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_agents.log.garbage.sealed.manifest_names import EVERYTHING, difference, named_within
from driftlog_tiering.formats.manifest import (
    Manifest,
    ReplaceSegments,
    SegmentList,
    SegmentListRef,
    SetLogStart,
)
from driftlog_tiering.formats.manifest_edits import Applied, NeedsLists
from tests.tiering.formats.test_manifest import Bucket, add, segment


def everything(manifest: Manifest, lists: dict[str, SegmentList]) -> set[str]:
    """All that *manifest* names, read from its whole tree."""
    named = {s.key for s in manifest.segments if s.end > manifest.log_start}
    pending: list[SegmentListRef] = list(manifest.lists)
    while pending:
        ref = pending.pop()
        content = lists[ref.key]
        named |= {ref.key} | {s.key for s in content.segments if s.end > manifest.log_start}
        pending.extend(content.lists)
    return named


def read(
    older: Manifest,
    newer: Manifest,
    stored: dict[str, SegmentList],
    window: tuple[int, int] = EVERYTHING,
) -> tuple[set[str], int]:
    """The difference, and how many lists were read for it."""
    lists: dict[str, SegmentList | None] = {}
    while isinstance(step := difference(older, newer, lists, window), NeedsLists):
        lists |= {ref.key: stored[ref.key] for ref in step.refs}
    return set(step), len(lists)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_difference_is_that_of_whole_trees(data: st.DataObject) -> None:
    """
    Of neighbours and of distant versions, after additions, replacements and log starts: an object
    that both name is never in it, and one that only the older names always is.  Taken window by
    window, it is the same, and each object is in one part.
    """
    bucket = Bucket()
    versions = [bucket.manifest]
    for _ in range(data.draw(st.integers(1, 6))):
        base = bucket.manifest.end
        many = data.draw(st.sampled_from((1, 3, 900, 1_600)))
        bucket.apply(add(*(segment(i, i + 1) for i in range(base, base + many))))
        versions.append(bucket.manifest)
        named = bucket.named()
        start = data.draw(st.integers(0, len(named) - 1))
        run = tuple(named[start : start + data.draw(st.integers(1, 700))])
        added = (replace(run[0], key=f"{run[0].key}.{bucket.edits}", end=run[-1].end),)
        if isinstance(bucket.apply(ReplaceSegments(replaced=run, added=added)), Applied):
            versions.append(bucket.manifest)
        log_start = data.draw(st.integers(0, bucket.manifest.end - 1))
        if isinstance(bucket.apply(SetLogStart(log_start)), Applied):
            versions.append(bucket.manifest)
    older = data.draw(st.integers(0, len(versions) - 1))
    newer = data.draw(st.integers(older, len(versions) - 1))

    gone, _ = read(versions[older], versions[newer], bucket.lists)
    cuts = data.draw(st.lists(st.integers(1, bucket.manifest.end), unique=True, max_size=4))
    parts: set[str] = set()
    for window in pairwise([0, *sorted(cuts), 2**63]):
        part, _ = read(versions[older], versions[newer], bucket.lists, window)
        assert parts.isdisjoint(part)
        parts |= part

    assert gone == parts
    before = everything(versions[older], bucket.lists)
    assert before - everything(versions[newer], bucket.lists) == gone


def test_neighbours_share_what_is_not_opened() -> None:
    """
    The difference of two neighbours costs what their edit has changed, however large the tree is.
    """
    bucket = Bucket()
    for base in range(0, 40_000, 400):
        bucket.apply(add(*(segment(i, i + 1) for i in range(base, base + 400))))
    full = bucket.manifest
    bucket.apply(add(segment(40_000, 40_001)))
    added = bucket.manifest
    bucket.apply(SetLogStart(750))
    moved = bucket.manifest

    assert (set(), 1) == read(full, added, bucket.lists)  # it spilled into one list
    gone, opened = read(added, moved, bucket.lists)
    assert everything(added, bucket.lists) - everything(moved, bucket.lists) == gone
    assert len(full.lists) > 70
    assert 2 == opened  # the list that log start has left, and the one that it is in


def test_a_list_that_was_collected_adds_nothing_and_one_that_is_needed_is_asked_for() -> None:
    """
    A list of the older version goes after everything in it.  Without a list of the newer one
    nothing is known to be unnamed: to take it for empty would delete what it names.
    """
    bucket = Bucket()
    bucket.apply(add(*(segment(i, i + 1) for i in range(2_000))))
    full = bucket.manifest
    bucket.apply(SetLogStart(500))
    emptied = bucket.manifest
    bucket.apply(SetLogStart(600))
    (ref,) = [ref for ref in full.lists if ref.key not in {r.key for r in emptied.lists}]
    (needed,) = emptied.lists

    assert {ref.key: 0} == difference(full, emptied, {ref.key: None})
    gone = difference(emptied, bucket.manifest, {needed.key: None})
    assert isinstance(gone, NeedsLists)
    assert (needed,) == gone.refs


def test_names_within_a_range_are_those_of_the_whole_tree() -> None:
    """
    A listing judges one page of objects at a time, and opens the lists of its range only.
    """
    bucket = Bucket()
    bucket.apply(add(*(segment(i, i + 1) for i in range(3_000))))
    bucket.apply(SetLogStart(620))
    lists: dict[str, SegmentList | None] = {}
    while isinstance(
        named := named_within(bucket.manifest, (700, 1_100), (0, 0), lists), NeedsLists
    ):
        lists |= {ref.key: bucket.lists[ref.key] for ref in named.refs}

    assert named <= everything(bucket.manifest, bucket.lists)
    assert {segment(i, i + 1).key for i in range(700, 1_100)} <= named
    assert {segment(i, i + 1).key for i in range(620)}.isdisjoint(named)
    assert len(lists) < len(bucket.lists)
