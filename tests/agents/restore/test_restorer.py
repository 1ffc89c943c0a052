"""A restore gives an offset to another record, or loses one that was acknowledged with acks=all.

Real engines write the bucket; then metadata store and disk are gone.
"""

import asyncio
from random import Random
from typing import Any
from uuid import UUID

import pytest

from driftlog_agents.groups.offsets import Committed
from driftlog_agents.groups.storage_format import encode_page
from driftlog_agents.log.objects.bucket_probe import probe_bucket
from driftlog_agents.restore.metadata_writes import NotEmptyError
from driftlog_agents.restore.report import RestoreReport
from driftlog_agents.restore.restorer import WrongBucketError
from driftlog_metadata.schema.codec import decode_topic, encode_configs
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    CONFIGS_PREFIX,
    GROUPS_PREFIX,
    deleted_key,
    topic_key,
)
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.group_snapshot import GroupSnapshot, encode_group_snapshot
from tests.agents.log.lives import (
    SETTINGS,
    Life,
    now_ms,
    on_virtual_time,
)
from tests.agents.restore.lost_cluster import Lost, records
from tests.support.clusters import AUTHOR
from tests.support.memory_store import MemoryMetadataStore


@on_virtual_time
async def test_sealed_and_unsealed_records_come_back_three_times() -> None:
    """
    And what was not acknowledged may come back, but at no offset of another record.
    """
    world = Lost(t=2)
    life = await world.begin()
    expected: dict[int, bytes] = {}
    ids = [AUTHOR.cluster_id]
    for turn in range(4):
        first = life.log().high_watermark
        values = [b"%d.%d" % (turn, n) for n in range(6)]
        for number, value in enumerate(values[:3]):
            assert "committed" == await life.produce(value).answer()
            expected[first + number] = value
        await life.seal()
        for number, value in enumerate(values[3:], 3):
            assert "committed" == await life.produce(value).answer()
            expected[first + number] = value
        life.kill()
        world.lose_everything()
        report = await world.restore()
        ids.append(await world.cluster_id())
        assert report.is_whole
        assert (ids[-2], ids[-1]) == (report.from_id, report.to_id)
        life = await world.come_back()
        assert expected == await records(life)
    assert len(ids) == len(set(ids))
    life.kill()


@on_virtual_time
async def test_a_dry_run_writes_nothing_and_counts_the_same() -> None:
    """
    Neither into the bucket nor into the metadata store.
    """
    world = Lost(t=2)
    life = await world.begin()
    for value in (b"a", b"b", b"c"):
        assert "committed" == await life.produce(value).answer()
    life.kill()
    metadata = world.lose_everything()
    before = world.bucket.keys()

    looked = await world.restore(dry_run=True)

    assert before == world.bucket.keys()
    assert [] == metadata.snapshot()
    done = await world.restore()
    assert (3, 1, 2) == (looked.joined_records, looked.topics, looked.partitions)
    assert (3, 1, 2) == (done.joined_records, done.topics, done.partitions)


@on_virtual_time
async def test_a_damaged_manifest_takes_one_partition_offline_until_it_is_put_back() -> None:
    """
    An older version is no substitute: its end is below records that were acknowledged.
    """
    world = Lost(t=2)
    life = await world.begin()
    for partition in range(2):
        assert "committed" == await life.produce(b"v", partition=partition).answer()
    for value in (b"w", b"x"):
        await life.seal()
        assert "committed" == await life.produce(value).answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    newest = world.bucket.keys("/00000/manifest/")[0]
    whole = await world.bucket.get(newest)
    world.bucket.damage(newest)

    report = await world.restore()

    assert ["t-0"] == list(report.offline)
    assert newest in report.offline["t-0"]
    kv = await world.metadata.get(CLUSTER_KEY)
    assert kv is not None
    life = Life(world, SETTINGS, world.metadata, StoreWitness(now_ms, kv.value))
    async with asyncio.timeout(60):
        while life.engine.log("t", 1) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert life.engine.log("t", 0) is None
    assert {0: b"v"} == await records(life, 1)
    await world.bucket.delete([newest])
    await world.bucket.put(newest, [whole])
    again = await world.restore(from_id=report.from_id)
    assert again.is_whole
    life.kill()
    await asyncio.sleep(60)  # its lease ends
    life = await world.come_back()
    assert {0: b"v", 1: b"w", 2: b"x"} == await records(life)
    life.kill()


@on_virtual_time
async def test_a_damaged_flush_object_ends_the_restore_unless_it_is_to_be_skipped() -> None:
    """
    Its records would be an empty range for ever; skipped, those before it come back.
    """
    for skip_damaged in (False, True):
        world = Lost(t=1)
        life = await world.begin()
        for value in (b"a", b"b", b"c"):
            assert "committed" == await life.produce(value).answer()
        life.kill()
        world.lose_everything()
        damaged = world.bucket.keys("flush/")[1]
        whole = await world.bucket.get(damaged)
        world.bucket.damage(damaged)
        with pytest.raises(CorruptError, match=damaged):
            await world.restore()
        if not skip_damaged:
            await world.bucket.delete([damaged])
            await world.bucket.put(damaged, [whole])

        report = await world.restore(skip_damaged=skip_damaged, from_id=AUTHOR.cluster_id)

        life = await world.come_back()
        found = await records(life)
        life.kill()
        assert report.is_whole != skip_damaged
        if skip_damaged:
            assert [damaged, "offsets 1 to 1 of t-0"] == list(report.unreadable)
            assert {0: b"a"} == found
            empty = [(one.partition, one.base, one.end) for one in report.empty]
            assert [("t-0", 1, 3 + 2**31)] == empty
        else:
            assert {0: b"a", 1: b"b", 2: b"c"} == found


@on_virtual_time
async def test_a_store_in_use_and_another_bucket_are_refused() -> None:
    """
    Nothing is written.
    """
    world = Lost(t=1)
    life = await world.begin()
    life.kill()
    before = world.bucket.keys()

    with pytest.raises(NotEmptyError):
        await world.restore()
    world.lose_everything()
    with pytest.raises(WrongBucketError):
        await world.restore(from_id="another")

    assert before == world.bucket.keys()
    assert [] == world.metadata.snapshot()


@on_virtual_time
async def test_of_two_restores_one_wins() -> None:
    """
    Into two metadata stores at once: the bucket has one cluster, and the other one refuses.
    """
    for seed in range(20):
        world = Lost(t=2)
        world.rng = Random(seed)
        life = await world.begin()
        assert "committed" == await life.produce(b"v").answer()
        life.kill()
        world.lose_everything()
        stores = [MemoryMetadataStore(lambda: int(now_ms())) for _ in range(2)]

        async def wait() -> None:
            await asyncio.sleep(0.01)

        outcomes = await asyncio.gather(
            *(world.restore(store, wait=wait, from_id=AUTHOR.cluster_id) for store in stores),
            return_exceptions=True,
        )

        won = [
            store
            for store, outcome in zip(stores, outcomes, strict=True)
            if isinstance(outcome, RestoreReport)
        ]
        assert 1 == len(won), outcomes
        (world.metadata,) = won
        life = await world.come_back()
        assert {0: b"v"} == await records(life)
        life.kill()


class Interrupted(Exception):
    """The process of the restore is killed."""


class Killing:
    """A store of which the request of a number is the last one; perhaps it happens."""

    def __init__(self, store: Any, left: list[int], rng: Random) -> None:
        self._store = store
        self._left = left
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("put", "create", "delete", "txn"):
            return method

        async def counted(*args: Any, **options: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Interrupted
            if not self._left[0]:
                if self._rng.random() < 0.5:
                    await method(*args, **options)
                raise Interrupted
            error = self._rng.random()
            if error < 0.1:
                raise UnavailableError("slow down")
            answer = await method(*args, **options)
            if error < 0.2 and name in ("put", "delete", "txn"):
                raise OutcomeUnknownError("no answer")
            return answer

        return counted


@on_virtual_time
async def test_an_interrupted_restore_goes_on_when_it_is_run_again() -> None:
    """
    Killed at each of its writes in turn; stores refuse requests and lose answers meanwhile.
    """
    steps = 0
    finished = False
    while not finished:
        steps += 1
        world = Lost(t=2)
        life = await world.begin()
        assert "committed" == await life.produce(b"a").answer()
        await life.seal()
        assert "committed" == await life.produce(b"b").answer()
        assert "committed" == await life.produce(b"c", partition=1).answer()
        life.kill()
        metadata = world.lose_everything()
        bucket = world.bucket
        left, rng = [steps], Random(steps)
        world.bucket = Killing(bucket, left, rng)  # type: ignore[assignment]
        try:
            killing: Any = Killing(metadata, left, rng)
            report = await world.restore(killing, from_id=AUTHOR.cluster_id)
            finished = True
            assert report.is_whole
        except Interrupted:
            pass
        world.bucket = bucket
        again = await world.restore(from_id=AUTHOR.cluster_id)
        assert again.is_whole
        life = await world.come_back()
        assert {0: b"a", 1: b"b"} == await records(life)
        assert {0: b"c"} == await records(life, 1)
        life.kill()
    assert steps > 10


@on_virtual_time
async def test_groups_come_back_and_new_records_begin_above_their_offsets() -> None:
    """
    A consumer that committed an offset of a lost record reads every new one.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"v").answer()
    life.kill()
    topic = world.topics["t"]
    page = encode_page({0: Committed(offset=7)}, "n")
    values = {"g": b"{}", f"g/offsets/{topic.topic_id}/0": page}
    for revision, some in ((9, {"g": b"{}"}), (10, values)):
        snapshot = GroupSnapshot(AUTHOR.cluster_id, revision, some)
        key = layout.group_snapshot_key(AUTHOR.cluster_id, revision)
        await world.bucket.put(key, [encode_group_snapshot(snapshot)])
    world.lose_everything()

    report = await world.restore()

    _, kvs = await world.metadata.get_prefix(GROUPS_PREFIX)
    assert values == {kv.key.removeprefix(GROUPS_PREFIX): kv.value for kv in kvs}
    assert (1, 10) == (report.groups, report.groups_revision)
    assert [("t-0", 1, 7)] == [(one.partition, one.base, one.end) for one in report.empty]
    life = await world.come_back()
    admitted, request = life.admit(b"new")
    assert "committed" == await request.answer()
    assert 7 == admitted.base_offset
    life.kill()


@on_virtual_time
async def test_topics_come_back_as_the_bucket_knows_them() -> None:
    """
    A deleted one does not; one whose file was not written yet comes back by its records.
    """
    world = Lost(t=1, u=1, gone=1)
    life = await world.begin()
    for topic in ("t", "u", "gone"):
        assert "committed" == await life.produce(b"v", topic=topic).answer()
    gone, u = world.topics["gone"].topic_id, world.topics["u"].topic_id
    mark = bucket_files.DeletedTopic("gone", gone, 0)
    await world.bucket.put(layout.deleted_key("gone", gone), [bucket_files.encode_deleted(mark)])
    await world.bucket.delete([layout.topic_key("u", u, 1)])
    life.kill()
    world.lose_everything()

    await world.restore()

    for name, there in (("t", True), ("u", True), ("gone", False)):
        assert there == (await world.metadata.get(topic_key(name)) is not None)


@on_virtual_time
async def test_a_topic_that_only_flush_objects_know_replaces_no_other_topic() -> None:
    """
    It is perhaps deleted, and its mark is gone; and that one topic is left out is no success.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"ghost").answer()
    ghost = world.topics["t"]
    life.kill()
    world.lose_everything()
    await world.bucket.delete([layout.topic_key("t", ghost.topic_id, 1)])
    live = Topic(name="t", topic_id=UUID(int=99), partitions=3)
    file = bucket_files.encode_topic(bucket_files.TopicFile(1, live))
    await world.bucket.put(layout.topic_key("t", live.topic_id, 1), [file])

    report = await world.restore()

    kv = await world.metadata.get(topic_key("t"))
    assert kv is not None
    assert live.topic_id == decode_topic(kv.value).topic_id
    assert [str(ghost.topic_id)] == [one.split()[-1] for one in report.left_out]
    assert not report.is_whole


@on_virtual_time
async def test_objects_without_a_topic_s_file_replace_no_topic() -> None:
    """
    A stray segment is newer than every topic; its folder would be restored in place of the records.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"v").answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    stray = TopicPartition(UUID(int=99), 0)
    await world.bucket.put(layout.segment_key("t", stray, 5, 6, "0" * 16), [b"stray"])

    report = await world.restore()

    kv = await world.metadata.get(topic_key("t"))
    assert kv is not None
    assert world.topics["t"].topic_id == decode_topic(kv.value).topic_id
    assert [str(stray.topic_id)] == [one.split()[-1] for one in report.left_out]
    life = await world.come_back()
    assert {0: b"v"} == await records(life)
    life.kill()


@on_virtual_time
async def test_a_deleted_topic_of_which_only_the_mark_is_left_gets_its_tombstone() -> None:
    """
    Without it the collector would never delete the mark.
    """
    world = Lost(t=1)
    life = await world.begin()
    life.kill()
    gone = UUID(int=99)
    mark = bucket_files.DeletedTopic("gone", gone, 0)
    await world.bucket.put(layout.deleted_key("gone", gone), [bucket_files.encode_deleted(mark)])
    world.lose_everything()

    assert (await world.restore()).is_whole

    assert await world.metadata.get(deleted_key(gone)) is not None


@on_virtual_time
async def test_an_import_that_had_not_ended_is_deleted() -> None:
    """
    Some of its segments and manifests are there; a topic would have a part of the records.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    await life.seal()
    life.kill()
    begun = Topic(name="t", topic_id=UUID(int=99), partitions=1)
    key = layout.import_key("t", begun.topic_id)
    await world.bucket.put(key, [bucket_files.encode_import(begun)])
    tp = TopicPartition(begun.topic_id, 0)
    await world.bucket.put(layout.segment_key("t", tp, 0, 1, "n"), [b"x"])
    world.lose_everything()

    report = await world.restore()

    assert report.is_whole
    assert await world.metadata.get(deleted_key(begun.topic_id)) is not None
    kv = await world.metadata.get(topic_key("t"))
    assert kv is not None
    assert begun.topic_id != decode_topic(kv.value).topic_id


async def mark_import(world: Lost) -> Topic:
    """A bulk import began the topic."""
    topic = world.topics["t"]
    key = layout.import_key("t", topic.topic_id)
    await world.bucket.put(key, [bucket_files.encode_import(topic)])
    return topic


@on_virtual_time
async def test_a_published_import_is_restored() -> None:
    """
    Its mark stays beside its file; no agent has written to it yet.
    """
    world = Lost(t=1)
    life = await world.begin()
    topic = await mark_import(world)
    assert "committed" == await life.produce(b"a").answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    await world.bucket.delete(world.bucket.keys("flush/"))

    report = await world.restore()

    assert report.is_whole
    kv = await world.metadata.get(topic_key("t"))
    assert kv is not None
    assert topic == decode_topic(kv.value)
    assert await world.metadata.get(deleted_key(topic.topic_id)) is None


@pytest.mark.parametrize("sealed", [0, 1, 2])
@on_virtual_time
async def test_a_published_import_whose_file_is_lost_keeps_all_records(sealed: int) -> None:
    """
    An agent has written to it: a second manifest version, or a flush object.  It is no import that
    did not end.
    """
    world = Lost(t=1)
    life = await world.begin()
    topic = await mark_import(world)
    values = [b"a", b"b"]
    for number, value in enumerate(values):
        assert "committed" == await life.produce(value).answer()
        if number < sealed:
            await life.seal()
    life.kill()
    if sealed == 2:
        await world.bucket.delete(world.bucket.keys("flush/"))
    world.lose_everything()
    await world.bucket.delete([layout.topic_key("t", topic.topic_id, 1)])

    report = await world.restore()

    assert [layout.topic_file_prefix("t", topic.topic_id)] == list(report.unreadable)
    assert await world.metadata.get(deleted_key(topic.topic_id)) is None
    kv = await world.metadata.get(topic_key("t"))
    assert kv is not None
    assert "-1" == decode_topic(kv.value).configs["retention.ms"]
    life = await world.come_back()
    assert values == list((await records(life)).values())
    life.kill()


@on_virtual_time
async def test_a_group_key_of_a_later_release_is_left_out() -> None:
    """
    All others come back, and the report names it.
    """
    world = Lost(t=1)
    life = await world.begin()
    life.kill()
    world.lose_everything()
    snapshot = GroupSnapshot(AUTHOR.cluster_id, 5, {"a/future/1": b"x", "g": b"{}"})
    key = layout.group_snapshot_key(AUTHOR.cluster_id, 5)
    await world.bucket.put(key, [encode_group_snapshot(snapshot)])

    report = await world.restore()

    _, kvs = await world.metadata.get_prefix(GROUPS_PREFIX)
    assert [f"{GROUPS_PREFIX}g"] == [kv.key for kv in kvs]
    assert 1 == report.groups
    assert ["key a/future/1 of groups"] == list(report.unreadable)


@on_virtual_time
async def test_configs_come_back_but_for_those_of_one_broker() -> None:
    """
    Without log.retention.ms of all brokers, agents would delete what it keeps; a node id may be
    another machine's.
    """
    world = Lost(t=1)
    life = await world.begin()
    life.kill()
    world.lose_everything()
    of_all = encode_configs({"log.retention.ms": "-1"})
    configs = {"brokers": of_all, "groups/g": b"{}", "brokers/7": b"{}", "future": b"x"}
    snapshot = GroupSnapshot(AUTHOR.cluster_id, 5, {}, configs)
    key = layout.group_snapshot_key(AUTHOR.cluster_id, 5)
    await world.bucket.put(key, [encode_group_snapshot(snapshot)])

    report = await world.restore()

    _, kvs = await world.metadata.get_prefix(CONFIGS_PREFIX)
    found = {kv.key.removeprefix(CONFIGS_PREFIX): kv.value for kv in kvs}
    assert {"brokers": of_all, "groups/g": b"{}"} == found
    assert ["configs of broker 7"] == list(report.left_out)
    assert ["key future of configs"] == list(report.unreadable)


class Counting:
    """A bucket that counts listings of manifests and reads."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.listed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, prefix: str, **options: Any) -> Any:
        """As the port says."""
        self.listed += "/manifest/" in prefix
        return self._store.list(prefix, **options)


@on_virtual_time
async def test_a_partition_without_unsealed_records_is_read_once() -> None:
    """
    A cluster has many idle partitions, and each listing takes a while.
    """
    world = Lost(t=9)
    life = await world.begin()
    assert "committed" == await life.produce(b"v").answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    bucket = world.bucket
    counting = Counting(bucket)
    world.bucket = counting  # type: ignore[assignment]

    assert 9 == (await world.restore()).partitions

    assert 9 == counting.listed
    world.bucket = bucket
    life = await world.come_back()
    assert {0: b"v"} == await records(life)
    life.kill()


@on_virtual_time
async def test_probes_of_the_bucket_are_no_flush_objects() -> None:
    """
    An agent has put one hours before the restore, and the collector has not deleted it.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    assert await probe_bucket(world.bucket, 1, "0" * 16) is None
    life.kill()
    world.lose_everything()

    report = await world.restore()

    assert report.is_whole
    assert 1 == report.flush_objects
