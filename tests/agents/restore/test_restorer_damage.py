"""A restore from a damaged bucket gives an offset out twice, or hides what is lost.

Real engines write the bucket; then objects are damaged or gone.
"""

import asyncio
from dataclasses import replace

import pytest

from driftlog_agents.log.recovery.lost_partition import NotLostError
from driftlog_metadata.schema.codec import decode_leader, decode_topic
from driftlog_metadata.schema.keys import CLUSTER_KEY, leader_key, topic_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import TopicFile, encode_topic
from driftlog_tiering.verification.object_reads import ObjectReads
from driftlog_tiering.verification.partition_verifier import PartitionVerifier
from tests.agents.log.lives import SETTINGS, Life, on_virtual_time
from tests.agents.restore.lost_cluster import Lost, at_once, flip, records
from tests.support.clusters import AUTHOR

UNKNOWN = 2**31
"""Offsets that a lost object may have had."""


async def lost_after(*values: bytes, partitions: int = 1) -> Lost:
    """A cluster whose first partition had these records, unsealed and one flush each; its metadata
    store is gone."""
    world = Lost(t=partitions)
    life = await world.begin()
    for value in values:
        assert "committed" == await life.produce(value).answer()
    for partition in range(1, partitions):
        assert "committed" == await life.produce(b"v", partition=partition).answer()
    life.kill()
    world.lose_everything()
    return world


@on_virtual_time
async def test_a_damaged_record_takes_its_partition_offline_and_its_object_is_named() -> None:
    """
    An accepted loss is no way out: it would give the offsets of all unsealed records out again.
    """
    world = await lost_after(b"a", b"b", b"c", b"d", b"e", partitions=2)
    damaged = world.bucket.keys("flush/")[3]
    whole = await world.bucket.get(damaged)
    await flip(world, damaged, 60)

    report = await world.restore()

    assert ["t-0"] == list(report.offline)
    assert damaged in report.offline["t-0"]
    kv = await world.metadata.get(CLUSTER_KEY)
    assert kv is not None
    life = Life(world, SETTINGS, world.metadata, StoreWitness(lambda: 0.0, kv.value))
    async with asyncio.timeout(60):
        while life.engine.log("t", 1) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    tp = TopicPartition(world.topics["t"].topic_id, 0)
    with pytest.raises(NotLostError, match="driftlog restore"):
        await life.engine.losses.examine(tp)
    await world.bucket.delete([damaged])
    await world.bucket.put(damaged, [whole])
    assert (await world.restore(from_id=report.from_id)).is_whole
    life.kill()
    await asyncio.sleep(60)  # its lease ends
    life = await world.come_back()
    assert {0: b"a", 1: b"b", 2: b"c", 3: b"d", 4: b"e"} == await records(life)
    life.kill()


@on_virtual_time
async def test_records_before_a_damaged_one_come_back_if_damage_is_to_be_skipped() -> None:
    """
    The partition goes on above those behind it; also in a second run, for an offline partition.
    """
    for is_second_run in (False, True):
        world = await lost_after(b"a", b"b", b"c", b"d")
        damaged = world.bucket.keys("flush/")[2]
        await flip(world, damaged, 60)
        if is_second_run:
            assert ["t-0"] == list((await world.restore()).offline)

        report = await world.restore(skip_damaged=True, from_id=AUTHOR.cluster_id)

        assert ([], [damaged]) == (list(report.offline), list(report.unreadable))
        assert [("t-0", 2, 4)] == [(one.partition, one.base, one.end) for one in report.empty]
        assert 2 == report.joined_records
        life = await world.come_back()
        assert {0: b"a", 1: b"b"} == await records(life)
        assert 4 == life.admit(b"new")[0].base_offset
        life.kill()


@on_virtual_time
async def test_offsets_of_a_skipped_object_are_not_given_out_again() -> None:
    """
    Which records it had is not known: a consumer may have read the last one.
    """
    world = await lost_after(b"a", b"b", b"c")
    world.bucket.damage(world.bucket.keys("flush/")[2])

    await world.restore(skip_damaged=True)

    life = await world.come_back()
    assert {0: b"a", 1: b"b"} == await records(life)
    assert 2 + UNKNOWN == life.admit(b"new")[0].base_offset
    life.kill()


@on_virtual_time
async def test_a_gap_below_committed_records_is_a_loss() -> None:
    """
    The partition is offline; if damage is to be skipped, the records before the gap come back.
    """
    world = await lost_after(b"a", b"b", b"c")
    await world.bucket.delete([world.bucket.keys("flush/")[1]])

    looked = await world.restore(dry_run=True)
    report = await world.restore()
    skipped = await world.restore(skip_damaged=True, from_id=report.from_id)

    assert ["t-0"] == list(looked.offline) == list(report.offline)
    assert "offsets 1 to 1" in report.offline["t-0"]
    assert not skipped.is_whole
    assert not skipped.offline
    life = await world.come_back()
    assert {0: b"a"} == await records(life)
    assert 3 == life.admit(b"new")[0].base_offset
    life.kill()


@on_virtual_time
async def test_an_empty_range_is_no_damage_for_verify() -> None:
    """
    An audit record says that a restore made it.
    """
    world = await lost_after(b"a", b"b", b"c")
    await world.bucket.delete([world.bucket.keys("flush/")[1]])

    report = await world.restore(skip_damaged=True)

    assert [("t-0", 1, 3)] == [(one.partition, one.base, one.end) for one in report.empty]
    tp = TopicPartition(world.topics["t"].topic_id, 0)
    verifier = PartitionVerifier(ObjectReads(world.bucket), at_once, pause_s=0.0)
    assert [] == list((await verifier.verify("t", tp)).damage)


@on_virtual_time
async def test_a_partition_that_is_restored_later_gets_a_later_leader_epoch() -> None:
    """
    Clients ignore a leader of an earlier epoch than they know.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    newest = world.bucket.keys("/00000/manifest/")[0]
    whole = await world.bucket.get(newest)
    world.bucket.damage(newest)
    tp = TopicPartition(world.topics["t"].topic_id, 0)

    async def epoch() -> int:
        kv = await world.metadata.get(leader_key(tp))
        assert kv is not None
        return decode_leader(kv.value).leader_epoch

    report = await world.restore()
    offline = await epoch()
    await world.bucket.delete([newest])
    await world.bucket.put(newest, [whole])
    again = await world.restore(from_id=report.from_id)

    assert again.is_whole
    assert offline < 2**22
    assert offline < await epoch()


async def sealed_then_lost(world: Lost) -> list[str]:
    """Two records are sealed one after the other, and their flush objects collected; the metadata
    store is gone.  Returns the keys of the partition's manifests, the newest first."""
    life = await world.begin()
    for value in (b"a", b"b"):
        assert "committed" == await life.produce(value).answer()
        await life.seal()
    assert "committed" == await life.produce(b"unsealed").answer()
    await world.bucket.delete(world.bucket.keys("flush/")[:2])
    life.kill()
    world.lose_everything()
    return world.bucket.keys("/00000/manifest/")


@pytest.mark.parametrize("lost", ["all", "newest"])
@on_virtual_time
async def test_sealed_objects_without_their_manifest_take_the_partition_offline(lost: str) -> None:
    """
    Else the log would go on without the records, and the collector would delete the segments.
    """
    world = Lost(t=2)
    manifests = await sealed_then_lost(world)
    assert 2 == len(manifests)
    gone = manifests if lost == "all" else manifests[:1]
    bodies = {key: bytes(await world.bucket.get(key)) for key in gone}
    await world.bucket.delete(gone)

    looked = await world.restore(dry_run=True)
    report = await world.restore()

    assert ["t-0"] == list(looked.offline) == list(report.offline)
    assert "newest manifest: missing" in report.offline["t-0"]
    await world.bucket.delete(gone)  # the fence's, of the same name
    for key, body in bodies.items():
        await world.bucket.put(key, [body])
    assert (await world.restore(from_id=report.from_id)).is_whole
    life = await world.come_back()
    assert {0: b"a", 1: b"b", 2: b"unsealed"} == await records(life)
    life.kill()


@pytest.mark.parametrize("lost", ["all", "newest"])
@on_virtual_time
async def test_a_missing_manifest_can_be_skipped(lost: str) -> None:
    """
    No offset of a sealed record is given out again.
    """
    world = Lost(t=1)
    manifests = await sealed_then_lost(world)
    await world.bucket.delete(manifests if lost == "all" else manifests[:1])
    await world.bucket.delete(world.bucket.keys("flush/"))

    report = await world.restore(skip_damaged=True)

    assert ["the newest manifest of t-0"] == list(report.unreadable)
    assert not report.is_whole
    start = 0 if lost == "all" else 1
    assert [("t-0", start, 2)] == [(one.partition, one.base, one.end) for one in report.empty]
    life = await world.come_back()
    assert 2 == life.admit(b"new")[0].base_offset
    life.kill()


@on_virtual_time
async def test_what_an_interrupted_attempt_to_seal_left_is_no_damage() -> None:
    """
    It has sealed objects before the first manifest; its flush objects have the same records.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"a").answer()
    await life.seal()
    life.kill()
    world.lose_everything()
    await world.bucket.delete(world.bucket.keys("/00000/manifest/"))

    assert (await world.restore()).is_whole

    life = await world.come_back()
    assert {0: b"a"} == await records(life)
    life.kill()


@on_virtual_time
async def test_a_topic_that_is_altered_while_a_dry_run_reads_is_not_damaged() -> None:
    """
    Agents write newer versions of its file, and delete old ones behind the listing.
    """
    world = await lost_after(b"a")
    topic, get = world.topics["t"], world.bucket.get
    (listed,) = world.bucket.keys(layout.topic_file_prefix("t", topic.topic_id))

    async def altered(key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == listed and world.bucket.keys(listed):
            newer = layout.topic_key("t", topic.topic_id, 2)
            await world.bucket.put(newer, [encode_topic(TopicFile(2, topic))])
            await world.bucket.delete([listed])
        return await get(key, start, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.bucket, "get", altered)
        report = await world.restore(dry_run=True)

    assert [layout.topic_key("t", topic.topic_id, 2)] == world.bucket.keys("/topic/")
    assert {} == report.unreadable


@on_virtual_time
@pytest.mark.parametrize("lists_older", [True, False])
async def test_a_newest_file_that_is_gone_is_not_replaced_by_the_one_before(
    lists_older: bool,
) -> None:
    """
    Its configs are not known, and the older file's retention would delete records.
    """
    world = await lost_after(b"a")
    topic, get = world.topics["t"], world.bucket.get
    older = replace(topic, configs={"retention.ms": "1000"})
    (first,) = world.bucket.keys(layout.topic_file_prefix("t", topic.topic_id))
    newest = layout.topic_key("t", topic.topic_id, 3)
    for version in (2, 3):
        where = layout.topic_key("t", topic.topic_id, version)
        await world.bucket.put(where, [encode_topic(TopicFile(version, older))])

    async def lost(key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == newest:
            await world.bucket.delete([newest])
            if not lists_older:
                world.bucket.hidden_keys = set(world.bucket.keys("/topic/"))
        return await get(key, start, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.bucket, "get", lost)
        report = await world.restore(dry_run=False)
    world.bucket.hidden_keys = set()

    kv = await world.metadata.get(topic_key("t"))
    assert kv is not None
    assert decode_topic(kv.value).configs["retention.ms"] == "-1"
    assert newest in report.unreadable
    assert first in world.bucket.keys("/topic/")


@on_virtual_time
async def test_a_topic_whose_file_is_lost_keeps_all_its_records_and_is_named() -> None:
    """
    Its configs are not known: by the default ones its records would be deleted after a week.
    """
    for is_older_left in (False, True):
        world = await lost_after(b"a")
        topic = world.topics["t"]
        folder = layout.topic_file_prefix("t", topic.topic_id)
        (newest,) = world.bucket.keys(folder)
        if is_older_left:
            newest = layout.topic_key("t", topic.topic_id, 2)
            await world.bucket.put(newest, [b"damaged"])
        else:
            await world.bucket.delete([newest])

        report = await world.restore()

        assert [newest if is_older_left else folder] == list(report.unreadable)
        assert not report.is_whole
        kv = await world.metadata.get(topic_key("t"))
        assert kv is not None
        keep = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
        assert keep.items() <= decode_topic(kv.value).configs.items()
