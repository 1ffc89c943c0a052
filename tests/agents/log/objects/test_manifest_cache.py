"""The newest known manifest never goes back, whatever reads manifests beside the sealer."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.partition.known_manifests import COMPACTED_AGE_MS
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import AddSegments, Manifest, empty_manifest
from driftlog_tiering.formats.manifests import commit_edit
from tests.agents.log.lives import World, on_virtual_time
from tests.support.clusters import AUTHOR
from tests.support.memory_object_store import MemoryObjectStore

TP = TopicPartition(UUID(int=3), 0)


class Bucket(MemoryObjectStore):
    """One whose answers to a GET, made at once, come when a test lets them."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        found = await super().get(key, start, end)
        self.asked += 1
        await self.gate.wait()
        return found


async def grown(bucket: Bucket, manifest: Manifest) -> Manifest:
    """The next version, in the bucket, with ten offsets more."""
    end = manifest.end + 10
    edit = AddSegments(base=manifest.end, end=end, segments=(), leader_epochs=(), producers=None)
    return await commit_edit(
        bucket,
        manifest,
        edit,
        f"n{end}",
        author=AUTHOR,
        read_at_ms=0,
        deadline_ms=1_000,
        now_ms=lambda: 0,
    )


@pytest.mark.parametrize("key_first", [True, False])
async def test_a_read_that_began_before_a_seal_does_not_undo_it(key_first: bool) -> None:
    """
    A fetch that found an object missing has dropped what was known and asks again; the answer is
    of before the segment that is sealed meanwhile, whose key is written sooner or later.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    known = await grown(bucket, empty_manifest("t", TP))
    log.manifest_version = known.version
    bucket.gate.clear()
    reading = asyncio.create_task(manifests.get(log))
    while not bucket.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    sealed = await grown(bucket, known)
    manifests.put(log, sealed)
    if key_first:
        log.manifest_version = sealed.version
    bucket.gate.set()
    await reading
    log.manifest_version = sealed.version

    assert sealed == await manifests.get(log)


async def test_what_was_dropped_while_it_was_read_is_read_again() -> None:
    """
    Two fetches found objects missing, and between them a segment was sealed.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    known = await grown(bucket, empty_manifest("t", TP))
    bucket.gate.clear()
    reading = asyncio.create_task(manifests.get(log))
    while not bucket.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    sealed = await grown(bucket, known)
    manifests.put(log, sealed)
    log.manifest_version = sealed.version
    manifests.drop(log)
    bucket.gate.set()

    assert sealed == await reading
    assert sealed == await manifests.get(log)


@pytest.mark.parametrize("moment", ["before", "while it is read", "after it was sealed"])
async def test_of_a_partition_that_is_not_led_any_more_nothing_is_kept(moment: str) -> None:
    """
    Else each that moves would stay in memory with all that is known of its producers.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    known = await grown(bucket, empty_manifest("t", TP))
    log.manifest_version = known.version
    if moment == "before":
        await manifests.get(log)
    bucket.gate.clear()
    manifests.drop(log)
    reading = asyncio.create_task(manifests.get(log))
    while bucket.asked == 0:  # noqa: ASYNC110
        await asyncio.sleep(0)
    if moment != "while it is read":
        bucket.gate.set()
        await reading
    log.close()
    manifests.forget(log)
    bucket.gate.set()
    if moment == "after it was sealed":
        manifests.put(log, known)

    assert known == await reading
    kept = [each for each in vars(manifests).values() if isinstance(each, dict | KeyedLock)]
    assert {0} == {len(each) for each in kept}


@on_virtual_time
async def test_an_answer_that_is_lost_is_waited_for_a_few_seconds_a_slow_store_longer() -> None:
    """
    Producers wait behind it; and a store whose answers all take long is waited for in the end.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    log.manifest_version = (await grown(bucket, empty_manifest("t", TP))).version
    bucket.gate.clear()
    took: list[float] = []
    loop = asyncio.get_running_loop()
    for _ in range(4):
        began = loop.time()
        with pytest.raises(TimeoutError):
            await manifests.get(log)
        took.append(round(loop.time() - began))
    bucket.gate.set()
    await manifests.get(log)
    bucket.gate.clear()
    manifests.drop(log)
    began = loop.time()
    with pytest.raises(TimeoutError):
        await manifests.get(log)

    assert [6, 12, 24, 30] == took
    assert 6 == round(loop.time() - began)


async def test_a_strange_object_among_manifests_is_said_once() -> None:
    """
    It sorts before all of them, and hides none.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    known = await grown(bucket, empty_manifest("t", TP))
    log.manifest_version = known.version
    strange = f"{layout.manifest_prefix('t', TP)}.keep"
    await bucket.put(strange, [b""])

    with capture_logs() as said:
        first = await manifests.get(log)
        manifests.drop(log)
        second = await manifests.get(log)

    assert [known, known] == [first, second]
    assert [("foreign_key_found", strange)] == [(line["event"], line["key"]) for line in said]


@on_virtual_time
async def test_a_strange_object_is_said_once_by_all_who_list_manifests() -> None:
    """
    Who claims the partition, and then who reads it.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"v").answer()
    await life.seal()
    log = life.log()
    await life.stop()
    strange = f"{layout.manifest_prefix('t', TopicPartition(log.topic_id, 0))}.keep"
    await world.bucket.put(strange, [b""])

    with capture_logs() as said:
        life = await world.start()
        await life.engine.loaded(life.log())
        life.engine.manifests.drop(life.log())
        await life.engine.manifests.get(life.log())

    assert [strange] == [line["key"] for line in said if line["event"] == "foreign_key_found"]


async def test_edits_are_noticed_once() -> None:
    """
    The collector walks partitions that were edited here; one whose manifest was only read, or has
    one version, costs it nothing.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    first = await grown(bucket, empty_manifest("t", TP))
    manifests.put(log, first)
    none = manifests.take_edited()
    second = await grown(bucket, first)
    manifests.drop(log)
    await manifests.get(log)
    read = manifests.take_edited()
    manifests.put(log, second)
    manifests.put(log, second)

    assert [] == none == read
    assert [("t", TP)] == manifests.take_edited()
    assert [] == manifests.take_edited()


async def test_an_older_version_that_comes_late_is_not_cached() -> None:
    """
    The sealer reads back what it has written, and compaction commits the next version meanwhile.
    """
    bucket = Bucket()
    log = PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)
    manifests = ManifestCache(bucket, lambda: 0)
    sealed = await grown(bucket, empty_manifest("t", TP))
    compacted = await grown(bucket, sealed)

    manifests.put(log, compacted)
    manifests.put(log, sealed)

    assert compacted == manifests.known(log)


async def test_a_compacted_partitions_manifest_is_read_again_after_five_minutes() -> None:
    """
    Another may have edited it: a reader must find its tombstones.  Other partitions' are not.
    """
    now_ms = 0.0
    bucket = Bucket()
    logs = [
        PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0) for _ in range(2)
    ]
    manifests = ManifestCache(bucket, lambda: now_ms)
    known = await grown(bucket, empty_manifest("t", TP))
    for log, cleaned_end in zip(logs, (10, 0), strict=True):
        manifests.put(log, replace(known, cleaned_end=cleaned_end))
    following = await grown(bucket, known)

    now_ms = COMPACTED_AGE_MS
    assert [1, 1] == [(await manifests.get(log)).version for log in logs]
    now_ms += 1
    assert [following.version, 1] == [(await manifests.get(log)).version for log in logs]
