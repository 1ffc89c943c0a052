"""The walk by edits: it deletes what edits replaced, all of it, late, and nothing that is named."""

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.garbage.common.version_pairs import Wait
from driftlog_agents.log.garbage.sealed.replaced_objects import ListsRead
from driftlog_metadata.schema.grace import HOUR_MS
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import ReplaceSegments
from driftlog_tiering.formats.manifests import MissingManifestError, iter_segments
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.garbage.sealed.partition_history import GRACE_H, PARTITION, TP, History


@pytest.fixture
async def history() -> History:
    """A partition without a manifest."""
    return await History().begin()


async def test_deleted_records_free_their_segments_a_grace_later(history: History) -> None:
    """
    Segments below log start go, with superseded snapshots and versions; the newest version and what
    it names stay.
    """
    old = await history.seal(segments=3)
    await history.seal()
    await history.delete_records(20)
    history.now_h += GRACE_H - 0.01
    before = await history.keys()
    await history.walks.walk(PARTITION)
    early = await history.keys()
    history.now_h += 0.01

    assert (await history.walks.walk(PARTITION)).next is None

    there = await history.keys()
    assert before == early
    assert [3] == await history.versions()
    assert [old[0].key, old[1].key] == sorted(set(before) - set(there))[:2]
    left = [s.key async for s in iter_segments(history.bucket, history.newest)]
    assert [old[2].key] == left[:1]
    kept = {*left, history.newest.key, history.newest.producers.key}  # type: ignore[union-attr]
    assert kept == set(there)


async def test_each_version_waits_for_its_own_grace(history: History) -> None:
    """
    A reader that holds a list of files of the version before the newest is entitled to them.
    """
    first = await history.seal()
    history.now_h += 5
    await history.seal()
    history.now_h += 5
    await history.delete_records(10)
    history.now_h += 7

    walked = await history.walks.walk(PARTITION)

    assert [2, 3] == await history.versions()
    assert first[0].key in await history.keys()
    assert Wait(5 * HOUR_MS) == walked.next


async def test_segments_of_lists_go_with_their_lists(history: History) -> None:
    """
    Thousands of segments are in lists: log start moves through one, and leaves others.
    """
    await history.seal(count=1, segments=2_600)
    await history.delete_records(700)
    await history.delete_records(1_300)
    history.now_h += GRACE_H

    assert (await history.walks.walk(PARTITION)).next is None

    there = await history.keys()
    segments = [k for k in there if k.endswith(".parquet")]
    lists = {k for k in there if "/manifest-lists/" in k}
    assert 1_300 == len(segments)
    assert {ref.key for ref in history.newest.lists} == lists
    assert 1_300 == len([s async for s in iter_segments(history.bucket, history.newest)])


async def test_a_replaced_segment_goes_and_what_replaced_it_stays(history: History) -> None:
    """
    Also where the replaced one is inside of a list, whose path was copied.
    """
    segments = await history.seal(count=1, segments=1_600)
    new = await history.put_segment(3, 5)
    await history.edit(ReplaceSegments(replaced=tuple(segments[3:5]), added=(new,)))
    history.now_h += GRACE_H

    await history.walks.walk(PARTITION)

    there = await history.keys()
    assert new.key in there
    gone = {segment.key for segment in segments} - set(there)
    assert {segments[3].key, segments[4].key} == gone


async def test_a_version_stays_until_its_objects_are_gone(history: History) -> None:
    """
    Deletes fail: the version is the only thing that knows them.  The next walk finds them again.
    """
    await history.seal()
    await history.delete_records(10)
    history.now_h += GRACE_H
    history.bucket.deletes_fail = True
    with pytest.raises(UnavailableError):
        await history.walks.walk(PARTITION)
    during = await history.versions()
    history.bucket.deletes_fail = False

    await history.walks.walk(PARTITION)

    assert [1, 2] == during
    assert [2] == await history.versions()
    last = history.bucket.deleted[-1]
    assert 1 == layout.parse_manifest_key(last).version


async def test_a_walk_that_was_cut_short_goes_on_with_the_lists_that_are_left(
    history: History,
) -> None:
    """
    A list goes after the segments in it, so a missing one of a superseded version hides nothing.
    """
    await history.seal(count=1, segments=1_600)
    (ref,) = history.newest.lists[:1]
    await history.delete_records(1_600)
    history.now_h += GRACE_H
    history.bucket.deletes_left = 1_601  # of the segments, and of the list
    with pytest.raises(UnavailableError):
        await history.walks.walk(PARTITION)
    there = await history.keys()
    history.bucket.deletes_left = 10_000

    assert (await history.walks.walk(PARTITION)).next is None

    assert ref.key not in there
    assert [] == [key for key in there if key.endswith(".parquet")]
    assert [2] == await history.versions()
    assert 2 == len(await history.keys())  # the newest version and its snapshot


async def test_a_missing_version_is_not_an_empty_one(history: History) -> None:
    """
    Another collector deletes the later version between the listing and its read: to take it for
    empty would delete what the versions behind it name.
    """
    for _ in range(4):
        await history.seal()
    history.now_h += GRACE_H
    missing = layout.manifest_key("t", TP, 2)
    get = history.bucket.get

    async def not_there(key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == missing:
            raise NotFoundError(key)
        return await get(key, start, end)

    history.bucket.get = not_there  # type: ignore[method-assign]
    with capture_logs() as lines:
        walked = await history.walks.walk(PARTITION)

    assert Wait(0) == walked.next
    assert walked.interrupted
    assert [] == history.bucket.deleted
    assert ["version_walk_interrupted"] == [line["event"] for line in lines]


async def test_a_gap_between_versions_ends_no_walk(history: History) -> None:
    """
    Neighbours in one listing are a pair: both are read, and grace runs from the later one's PUT.
    """
    for _ in range(4):
        await history.seal()
    history.now_h += GRACE_H
    await history.bucket.delete([layout.manifest_key("t", TP, 2)])
    history.bucket.deleted.clear()

    assert (await history.walks.walk(PARTITION)).next is None

    assert [4] == await history.versions()
    assert 4 == len([key for key in await history.keys() if key.endswith(".parquet")])


async def test_a_missing_list_of_the_newest_version_stops_the_walk(history: History) -> None:
    """
    It is damage: what it names cannot be known.
    """
    await history.seal(count=1, segments=1_600)
    await history.seal(count=1)
    await history.delete_records(100)
    history.now_h += GRACE_H
    for ref in history.newest.lists:
        await history.bucket.delete([ref.key])
    history.bucket.deleted.clear()

    with pytest.raises(MissingManifestError):
        await history.walks.walk(PARTITION)

    assert [] == [key for key in history.bucket.deleted if key.endswith(".parquet")]


async def test_a_listing_behind_the_partitions_key_is_not_believed(history: History) -> None:
    """
    The version that the key names is missing: nothing is deleted by an older one.
    """
    await history.seal()
    await history.seal()
    await history.delete_records(10)
    history.now_h += GRACE_H
    await history.bucket.delete([history.newest.key])
    history.bucket.deleted.clear()

    with pytest.raises(CorruptError):
        await history.walks.walk(PARTITION)

    assert [] == history.bucket.deleted


async def test_a_walk_asks_for_what_edits_have_changed_only(history: History) -> None:
    """
    One LIST, and a GET for each version: no segment and no shared list is asked for.
    """
    await history.seal(count=1, segments=2_600)
    for _ in range(5):
        await history.seal(count=1)
    history.now_h += GRACE_H
    history.bucket.gets.clear()

    await history.walks.walk(PARTITION)

    assert 6 == len(history.bucket.gets)
    assert all("/manifest/" in key for key in history.bucket.gets)


async def test_a_walk_beside_another_one_reports_no_damage(history: History) -> None:
    """
    The other walk is two pairs ahead, and has deleted the lists of a version that this one has read
    already: they are not lost, and the operator has nothing to restore.
    """
    await history.seal(count=1, segments=1_600)
    lists = {ref.key for ref in history.newest.lists}
    await history.delete_records(10)
    await history.delete_records(1_000)
    await history.delete_records(1_600)
    history.now_h += GRACE_H
    get, ahead = history.bucket.get, False

    async def other_first(key: str, start: int = 0, end: int | None = None) -> bytes:
        nonlocal ahead
        if key in lists and not ahead:
            ahead = True
            await history.walks.walk(PARTITION)
        return await get(key, start, end)

    history.bucket.get = other_first  # type: ignore[method-assign]

    walked = await history.walks.walk(PARTITION)

    assert walked.interrupted
    assert [4] == await history.versions()
    assert 2 == len(await history.keys())


async def test_a_put_in_the_future_does_not_hold_up_the_versions_behind_it(
    history: History,
) -> None:
    """
    The store's clock was ten years ahead for one PUT: its grace runs from the first listing, and
    the log says so.
    """
    await history.seal()
    history.now_h += 87_600
    await history.delete_records(10)
    history.now_h -= 87_600
    with capture_logs() as lines:
        first = await history.walks.walk(PARTITION)
    history.now_h += GRACE_H
    await history.walks.walk(PARTITION)

    assert Wait(12 * HOUR_MS) == first.next
    assert [2] == await history.versions()
    assert ["put_time_in_future"] == [line["event"] for line in lines]


@pytest.mark.verify
async def test_a_large_deletion_is_collected_in_bounded_parts(history: History) -> None:
    """
    All records of a partition of 40,000 segments are deleted: the lists are read and freed in
    parts, not all at once.
    """
    for _ in range(40):
        await history.seal(count=1, segments=1_000)
    await history.delete_records(40_000)
    history.now_h += GRACE_H
    read = ListsRead()
    older, newest = [
        await history.reads.manifest(PARTITION, version)
        for version in (await history.reads.versions(PARTITION)).ascending[-2:]  # type: ignore[union-attr]
    ]
    assert older is not None
    assert newest is not None
    held = [
        (len(read.lists), len(gone))
        async for gone in history.reads.replaced(older, newest, newest, read)
    ]
    await history.walks.walk(PARTITION)

    assert max(lists for lists, _ in held) <= 40 < len(older.lists)
    assert max(gone for _, gone in held) <= 10_000
    assert 2 == len(await history.keys())


async def test_lists_are_freed_off_the_event_loop_one_at_a_time(history: History) -> None:
    """
    Forty lists that are freed at once hold up every request of the agent for 20 ms.
    """
    for _ in range(30):
        await history.seal(count=1, segments=1_000)
    await history.delete_records(30_000)
    history.now_h += GRACE_H
    await history.walks.walk(PARTITION)

    freed = [read for name, read in history.offloaded if name == "free"]
    assert len(freed) >= 2
    assert all(not read.lists for read in freed)
    assert 2 == len(await history.keys())
