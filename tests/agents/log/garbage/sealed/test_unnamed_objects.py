"""The look by listing: it deletes what failed attempts left, and nothing that any version names."""

import pytest

from driftlog_metadata.schema.keys import partition_key
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Delete
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import AddSegments
from driftlog_tiering.stores.object_store import Listing
from tests.agents.log.garbage.sealed.partition_history import (
    GRACE_H,
    LIVE,
    PARTITION,
    TOPIC,
    TP,
    History,
)


@pytest.fixture
async def history() -> History:
    """A partition with two sealed segments."""
    made = await History().begin()
    await made.seal()
    await made.seal()
    return made


async def test_what_no_version_names_goes_when_it_is_older_than_grace(history: History) -> None:
    """
    Segments, lists and snapshots of attempts that failed.
    """
    left = [
        (await history.put_segment(20, 30)).key,
        layout.producer_snapshot_key("t", TP, 30, "left"),
        layout.segment_list_key("t", TP, 9, 1, 0, 20, "left"),
    ]
    for key in left[1:]:
        await history.bucket.put(key, [b"x"])
    named = sorted(set(await history.keys()) - set(left))
    history.now_h += GRACE_H - 0.01
    await history.list_with(history.listings())
    early = await history.keys()
    history.now_h += 0.01

    await history.list_with(history.listings())

    assert sorted([*named, *left]) == early
    assert named == await history.keys()


async def test_what_an_older_version_names_stays(history: History) -> None:
    """
    The newest does not name it any more; the walk by edits deletes it when its grace is over.
    """
    history.now_h += 2 * GRACE_H
    await history.delete_records(20)

    assert await history.list_with(history.listings())

    assert [] == history.bucket.deleted
    assert [PARTITION] == history.handed_over


async def test_an_object_that_is_named_meanwhile_stays(history: History) -> None:
    """
    Its age counts when the reading of the names begins: a page that is judged hours later is judged
    by names that were read after it.
    """
    segment = await history.put_segment(20, 30)
    history.now_h += GRACE_H / 2 - 0.1
    unnamed = history.listings()
    pages = [page async for page in history.bucket.list("topics/")]
    await history.edit(
        AddSegments(base=20, end=30, segments=(segment,), leader_epochs=(), producers=None)
    )
    history.now_h += GRACE_H / 2 + 0.2

    (page,) = pages
    late = Listing(page.objects, page.store_now_ms)
    assert not await unnamed.look(LIVE, late)  # nothing of the page was older than grace
    history.now_h += GRACE_H
    await history.list_with(history.listings())

    assert [] == history.bucket.deleted


async def test_a_page_is_thrown_away_when_its_names_come_too_late(history: History) -> None:
    """
    An agent was suspended between the page and its names.
    """
    await history.put_segment(20, 30)
    history.now_h += GRACE_H
    (page,) = [page async for page in history.bucket.list("topics/")]
    history.now_h += GRACE_H / 2 + 0.1

    assert {TOPIC.topic_id} == await history.listings().look(LIVE, page)

    assert [] == history.bucket.deleted


async def test_each_object_is_judged_once(history: History) -> None:
    """
    The second listing of an idle partition costs no request beside its pages.
    """
    history.now_h += GRACE_H
    unnamed = history.listings()
    await history.list_with(unnamed)
    asked = len(history.bucket.gets)
    history.now_h += 2 * GRACE_H

    await history.list_with(unnamed)

    assert 0 < asked == len(history.bucket.gets)


async def test_what_could_not_be_deleted_is_judged_again(history: History) -> None:
    """
    The bucket refuses the delete: the look goes on with other partitions, and the next one judges
    these objects again.  After three partitions in a row the look ends.
    """
    unnamed = history.listings()
    for n in range(5):
        await history.put_segment(20, 30 + n)
    history.now_h += GRACE_H
    history.bucket.deletes_fail = True
    for _ in range(2):
        assert not await history.list_with(unnamed)
    with pytest.raises(UnavailableError):
        await history.list_with(unnamed)
    history.bucket.deletes_fail = False

    assert await history.list_with(unnamed)

    assert 5 == len(history.bucket.deleted)
    assert 2 == len([key for key in await history.keys() if key.endswith(".parquet")])


async def test_damage_keeps_everything(history: History) -> None:
    """
    The newest version is unreadable, or missing, or the partition's key is: then nothing is sure.
    """
    await history.put_segment(20, 30)
    history.now_h += GRACE_H
    await history.bucket.delete([history.newest.key])
    missing = await history.list_with(history.listings())
    await history.bucket.put(history.newest.key, [b"{"])
    damaged = await history.list_with(history.listings())
    told = len(history.damaged)
    await history.metadata.txn((), [Delete(partition_key(TP))])
    unknown = await history.list_with(history.listings())
    history.bucket.deleted.remove(history.newest.key)

    assert [False, False, False] == [missing, damaged, unknown]
    assert 2 == told
    assert [] == history.bucket.deleted
