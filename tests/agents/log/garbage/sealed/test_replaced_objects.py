"""
If this fails, a list is deleted before what is in it, or a lost list of a newer version counts as
empty: objects stay for ever, or objects go that a version still names.
"""

from uuid import UUID

import pytest

from driftlog_agents.log.garbage.sealed.replaced_objects import (
    ListsRead,
    MissingListError,
    ReplacedObjects,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import SegmentList, SegmentListRef, empty_manifest

TP = TopicPartition(UUID(int=1), 0)
NEWER = empty_manifest("t", TP)


def list_key(level: int, base: int) -> str:
    return layout.segment_list_key("t", TP, 9, level, base, base + 10, "n")


def ref(base: int) -> SegmentListRef:
    return SegmentListRef(
        key=list_key(1, base),
        level=1,
        base=base,
        end=base + 10,
        segments=1,
        size_bytes=1,
        records=1,
        raw_bytes=1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


def test_lists_go_after_what_is_in_them() -> None:
    """
    Segments and snapshots go as they are found, then lists, the lowest level first.
    """
    segment = layout.segment_key("t", TP, 0, 10, "n")
    snapshot = layout.producer_snapshot_key("t", TP, 10, "n")
    replaced = ReplacedObjects()

    at_once = replaced.add({list_key(2, 0): 0, segment: 5, list_key(1, 0): 0})
    at_once += replaced.add({list_key(1, 10): 0, snapshot: 0})

    assert [segment, snapshot] == [one.key for one in at_once]
    assert [[list_key(1, 0), list_key(1, 10)], [list_key(2, 0)]] == [
        [one.key for one in level] for level in replaced.lists()
    ]


def test_a_list_that_is_needed_again_is_missing() -> None:
    """
    A comparison asks twice only for a list that a newer version names and that is not there.
    """
    read = ListsRead()
    read.require(ref(0), NEWER)
    read.add(ref(0), None)

    with pytest.raises(MissingListError) as missing:
        read.require(ref(0), NEWER)

    assert (ref(0).key, NEWER) == (missing.value.key, missing.value.newer)


def test_one_missing_list_is_remembered_beside_those_that_are_there() -> None:
    """
    Then the objects of the topic are judged once more.
    """
    read = ListsRead()
    read.add(ref(0), SegmentList(1))
    before = read.missing
    read.add(ref(10), None)
    read.add(ref(20), SegmentList(1))
    after = read.missing
    read.free()

    assert (False, True, {}) == (before, after, read.lists)
