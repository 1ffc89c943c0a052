"""
If this fails, the collector judges an object before its grace is over, or never, or reads the names
of each partition at every listing.
"""

from collections.abc import Sequence

from driftlog_agents.log.garbage.sealed.unjudged_objects import ListedPartition, UnjudgedObjects
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectInfo
from tests.agents.log.garbage.sealed.partition_history import LIVE, TP

GRACE = Grace()
NOW_MS = 10 * GRACE.ms


def segment(base: int, put_ms: int, tp: TopicPartition = TP) -> ObjectInfo:
    return ObjectInfo(layout.segment_key("t", tp, base, base + 10, "n"), 7, put_ms)


def manifest(version: int, put_ms: int, tp: TopicPartition = TP) -> ObjectInfo:
    return ObjectInfo(layout.manifest_key("t", tp, version), 7, put_ms)


def looked(
    unjudged: UnjudgedObjects, objects: Sequence[ObjectInfo], now_ms: int = NOW_MS
) -> list[ListedPartition]:
    page = [(layout.parse_key(info.key), info) for info in objects]
    return list(unjudged.of_page(LIVE, page, now_ms))


def test_an_object_is_judged_when_its_grace_is_over_and_not_before() -> None:
    """
    An edit may still name an object whose PUT is younger than grace.
    """
    due, young = segment(0, NOW_MS - GRACE.ms), segment(10, NOW_MS - GRACE.ms + 1)

    (found,) = looked(UnjudgedObjects(GRACE), [due, young])

    assert [due.key] == list(found.objects)


def test_an_object_is_judged_once() -> None:
    """
    After a whole look only what has become older than grace since then is judged.
    """
    unjudged = UnjudgedObjects(GRACE)
    unjudged.looked(LIVE.keys(), set(), NOW_MS)
    old, new = segment(0, NOW_MS - GRACE.ms), segment(10, NOW_MS - GRACE.ms + 1)

    (found,) = looked(unjudged, [old, new], NOW_MS + 1)

    assert [new.key] == list(found.objects)


def test_what_was_left_is_judged_by_the_next_look() -> None:
    """
    A store gave no answer for a partition of the topic, or the topic's objects are judged again.
    """
    objects = [segment(0, NOW_MS - GRACE.ms)]
    left, again = UnjudgedObjects(GRACE), UnjudgedObjects(GRACE)
    left.looked(LIVE.keys(), LIVE.keys(), NOW_MS)
    again.looked(LIVE.keys(), set(), NOW_MS)
    again.judge_again(TP.topic_id)

    found = [len(looked(one, objects, NOW_MS + 1)[0].objects) for one in (left, again)]

    assert [1, 1] == found


def test_a_pair_of_versions_may_be_on_two_pages() -> None:
    """
    The newest version is the last object of one page, and the older one the first of the next.
    """
    unjudged = UnjudgedObjects(GRACE)

    (first,) = looked(unjudged, [manifest(8, NOW_MS)])
    (second,) = looked(unjudged, [manifest(7, 0)])

    assert (None, False) == (first.is_overdue, second.is_overdue)


def test_a_pair_is_overdue_by_the_put_of_its_later_version() -> None:
    """
    Until that PUT readers got the older version.  Versions of two partitions are no pair.
    """
    other = TopicPartition(TP.topic_id, TP.partition + 1)

    found = looked(
        UnjudgedObjects(GRACE),
        [manifest(9, NOW_MS), manifest(8, 0), manifest(7, 0), manifest(1, 0, other)],
    )

    assert [True, None] == [one.is_overdue for one in found]


def test_lists_are_opened_for_the_offsets_of_the_judged_objects_only() -> None:
    """
    A partition of a year has thousands of lists.
    """
    old_ms = NOW_MS - GRACE.ms
    of_list = ObjectInfo(layout.segment_list_key("t", TP, 9, 1, 40, 90, "n"), 7, old_ms)

    (found,) = looked(UnjudgedObjects(GRACE), [segment(20, old_ms), segment(50, old_ms), of_list])

    ranges = (found.range_of(layout.SegmentKey), found.range_of(layout.SegmentListKey))
    assert ((20, 60), (40, 90)) == ranges


def test_unnamed_objects_are_garbage() -> None:
    """
    Those that a version names stay.
    """
    old_ms = NOW_MS - GRACE.ms
    named, unnamed = segment(0, old_ms), segment(10, old_ms)
    (found,) = looked(UnjudgedObjects(GRACE), [named, unnamed])

    assert [unnamed.key] == [one.key for one in found.garbage({unnamed.key})]
