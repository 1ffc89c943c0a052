"""Two runs of one restore damage the new cluster, or a run does not go on where another one ended.

Both runs write into one metadata store: the new cluster's id is the same.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from driftlog_agents.restore.evidence import FlushEvidence, UnsealedObject
from driftlog_metadata.schema.keys import deleted_key, partition_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import DeclinedError, FencedError
from driftlog_metadata.stores.store import Delete
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import Life, on_virtual_time
from tests.agents.restore.lost_cluster import Lost, records
from tests.support.clusters import AUTHOR


class Overtaken:
    """A bucket: before the listing of a prefix begins, *then* happens, once."""

    def __init__(self, store: Any, prefix: str, then: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._prefix = prefix
        self._then: Callable[[], Awaitable[None]] | None = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, prefix: str, **options: Any) -> AsyncIterator[Any]:
        """As the port says."""
        if prefix.startswith(self._prefix) and self._then is not None:
            then, self._then = self._then, None
            await then()
        async for page in self._store.list(prefix, **options):
            yield page


@on_virtual_time
@pytest.mark.parametrize("prefix", [layout.TOPICS_PREFIX, layout.FLUSH_PREFIX, layout.AUDIT_PREFIX])
async def test_a_run_that_another_one_overtakes_writes_nothing_any_more(prefix: str) -> None:
    """
    It would seal what agents of the new cluster have flushed, and not committed.
    """
    world = Lost(t=1)
    life = await world.begin()
    for value in (b"a", b"b", b"c"):
        assert "committed" == await life.produce(value).answer()
    life.kill()
    world.lose_everything()
    bucket = world.bucket
    lives: list[Life] = []
    before: list[str] = []

    async def overtake() -> None:
        world.bucket = bucket
        assert (await world.restore(from_id=AUTHOR.cluster_id)).is_whole
        lives.append(await world.come_back())
        assert "committed" == await lives[0].produce(b"d").answer()
        before.extend(bucket.keys())

    world.bucket = Overtaken(bucket, prefix, overtake)  # type: ignore[assignment]
    with pytest.raises(FencedError, match="another run"):
        await world.restore(from_id=AUTHOR.cluster_id)

    world.bucket = bucket
    assert before == bucket.keys()
    assert "committed" == await lives[0].produce(b"e").answer()
    await lives[0].seal()
    assert {0: b"a", 1: b"b", 2: b"c", 3: b"d", 4: b"e"} == await records(lives[0])
    lives[0].kill()


class Dying:
    """A metadata store that fails for ever when a topic's key is to be written."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, compares: Any, then: Any, otherwise: Any = ()) -> Any:
        """As the port says."""
        if any(getattr(one, "key", "").endswith("/topics/t") for one in then):
            raise DeclinedError("killed")
        return await self._store.txn(compares, then, otherwise)


@on_virtual_time
async def test_a_second_run_counts_what_the_first_one_has_restored_and_reads_it_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It would keep the footers of all flush objects in memory.
    """
    kept: list[int] = []
    real = FlushEvidence.possible

    def possible(self: FlushEvidence, refuted: Mapping[str, str]) -> list[UnsealedObject]:
        found = real(self, refuted)
        kept.append(len(found))
        return found

    monkeypatch.setattr(FlushEvidence, "possible", possible)
    world = Lost(t=2, gone=1)
    life = await world.begin()
    for number in range(10):
        assert "committed" == await life.produce(b"%d" % number).answer()
    await life.seal()
    assert "committed" == await life.produce(b"x", partition=1).answer()
    for _ in range(5):
        assert "committed" == await life.produce(b"y", topic="gone").answer()
    gone = world.topics["gone"].topic_id
    mark = bucket_files.DeletedTopic("gone", gone, 0)
    await world.bucket.put(layout.deleted_key("gone", gone), [bucket_files.encode_deleted(mark)])
    life.kill()
    metadata = world.lose_everything()
    dying: Any = Dying(metadata)
    with pytest.raises(DeclinedError):
        await world.restore(dying, from_id=AUTHOR.cluster_id)

    again = await world.restore(from_id=AUTHOR.cluster_id)
    finished = await world.restore(from_id=AUTHOR.cluster_id)

    assert [1, 0, 0] == kept
    assert [(1, 2), (1, 2)] == [(one.topics, one.partitions) for one in (again, finished)]
    assert await metadata.get(deleted_key(gone)) is not None


class Losing:
    """A bucket that does not return an object that it has listed, so many times."""

    def __init__(self, store: Any, part: str, times: int) -> None:
        self._store = store
        self._part = part
        self._left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str, *args: Any) -> Any:
        """As the port says."""
        if self._part in key and self._left:
            self._left -= 1
            raise NotFoundError(key)
        return await self._store.get(key, *args)


@on_virtual_time
async def test_a_manifest_that_is_listed_before_it_is_returned_is_waited_for() -> None:
    """
    The partition would be offline.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    world.bucket = Losing(world.bucket, "/manifest/", 1)  # type: ignore[assignment]

    assert (await world.restore()).is_whole


@on_virtual_time
async def test_agents_may_collect_flush_objects_while_a_later_run_reads() -> None:
    """
    Those of the new cluster are not needed.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    life.kill()
    world.lose_everything()
    report = await world.restore()
    old = world.bucket.keys("flush/")
    life = await world.come_back()
    await asyncio.sleep(60)
    assert "committed" == await life.produce(b"b").answer()
    (new,) = set(world.bucket.keys("flush/")) - set(old)
    life.kill()
    bucket = world.bucket
    for key, is_whole in ((new, True), (old[0], False)):
        world.bucket = Losing(bucket, key, 1_000)  # type: ignore[assignment]
        again = await world.restore(from_id=report.from_id, skip_damaged=True)
        assert is_whole == again.is_whole


@on_virtual_time
async def test_a_later_run_leaves_a_partition_that_an_agent_leads() -> None:
    """
    Also if its key is lost: its leader goes on, and has batches that are not committed.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    life.kill()
    metadata = world.lose_everything()
    report = await world.restore()
    life = await world.come_back()
    assert "committed" == await life.produce(b"b").answer()
    key = partition_key(TopicPartition(world.topics["t"].topic_id, 0))
    await metadata.txn((), [Delete(key)])
    before = world.bucket.keys()

    await world.restore(from_id=report.from_id)

    assert before == world.bucket.keys()
    assert await metadata.get(key) is None
    life.kill()
