"""Every kind of damage in real objects is found, with its range and its object, and nothing else.

If it failed: `driftlog verify`, or an agent's weekly pass, would call a damaged log right, or alarm
an operator about a log that is right.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from driftlog_metadata.schema.model import Topic
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.accepted_loss import AcceptedLoss, encode_accepted_loss
from driftlog_tiering.formats.bucket_files import TopicFile, encode_topic
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    AddSegments,
    ProducerSnapshotRef,
    ReplaceSegments,
    SegmentRef,
    SetCleanedEnd,
    SetLogStart,
)
from driftlog_tiering.formats.manifests import load_newest
from driftlog_tiering.formats.stored_json import encode_json
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.segment import footer_start
from driftlog_tiering.stores.object_store import Listing, ObjectStore
from driftlog_tiering.verification.findings import DamageKind, PartitionReport
from driftlog_tiering.verification.lost_manifests import LostManifests
from driftlog_tiering.verification.object_reads import ObjectReads, ReadLimits
from driftlog_tiering.verification.partition_verifier import PartitionVerifier
from tests.support.sealed_topics import Message, SealedTopic, make_batch

ROW_GROUP_BYTES: Final = 20_000
"""Of this many bytes a segment of 300 records of 200 bytes has several row groups."""


@pytest.fixture
def topic(tmp_path: Path) -> SealedTopic:
    """An empty topic in a directory."""
    location = str(tmp_path / "objects")
    return SealedTopic(location, "flights", row_group_bytes=ROW_GROUP_BYTES).create()


def messages(count: int, first: int = 0) -> list[Message | None]:
    """Records of 200 bytes; the largest timestamp is in the middle."""
    return [
        Message(1_700_000_000_000 - abs(count // 2 - n), b"k%d" % (first + n), b"v" * 200)
        for n in range(count)
    ]


def verify(
    topic: SealedTopic, *, deep: bool = False, at_least: int = 0, partition: int = 0
) -> PartitionReport:
    """The report of one partition."""

    async def main(store: ObjectStore) -> PartitionReport:
        verifier = PartitionVerifier(ObjectReads(store), asyncio.to_thread, deep=deep, pause_s=0.0)
        return await verifier.verify(topic.name, topic.tp(partition), at_least)

    return topic.with_store(main)


def found(report: PartitionReport) -> list[tuple[DamageKind, int, int | None, str]]:
    """Kind, range and object of each damage."""
    return [(one.kind, one.base, one.end, one.key) for one in report.damage]


def path(topic: SealedTopic, key: str) -> Path:
    """The file of an object."""
    return Path(topic.location) / key


def flip(topic: SealedTopic, key: str, at: int) -> None:
    """Change one bit."""
    body = bytearray(path(topic, key).read_bytes())
    body[at] ^= 1
    path(topic, key).write_bytes(body)


def forget_footer_crc(topic: SealedTopic, partition: int, ref: SegmentRef) -> None:
    """Make *ref* one as of format 1."""
    old = replace(ref, footer_crc=None)
    topic.edit(partition, ReplaceSegments(replaced=(ref,), added=(old,)))


def rewrite_json(topic: SealedTopic, key: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a stored JSON object, and give it a CRC that fits."""
    fields = json.loads(path(topic, key).read_bytes())
    del fields["crc32"]
    change(fields)
    kind, version = fields.pop("format"), fields.pop("format_version")
    path(topic, key).write_bytes(encode_json(kind, version, fields))


def manifest_key(topic: SealedTopic) -> str:
    """Key of the newest manifest."""

    async def main(store: ObjectStore) -> str:
        manifest = await load_newest(store, topic.name, topic.tp(0))
        assert manifest is not None
        return manifest.key

    return topic.with_store(main)


def seal_raw(topic: SealedTopic, base: int, end: int) -> SegmentRef:
    """Batches as they came, of 10 records each."""
    batches: list[Buffer] = []
    for start in range(base, end, 10):
        batch = make_batch(start, [Message(1, value=b"v")] * 10)
        assert batch is not None
        batches.append(batch)
    size = sum(map(len, batches))
    ref = SegmentRef(
        key=layout.segment_key(topic.name, topic.tp(0), base, end, "raw", SegmentKind.RAW),
        kind=SegmentKind.RAW,
        base=base,
        end=end,
        size_bytes=size,
        records=end - base,
        raw_bytes=size,
        max_timestamp_ms=1,
    )
    topic.with_store(lambda store: store.put(ref.key, batches))
    topic.edit(0, _added(base, end, (ref,)))
    return ref


def _added(base: int, end: int, refs: tuple[SegmentRef, ...]) -> AddSegments:
    return AddSegments(base=base, end=end, segments=refs, leader_epochs=(), producers=None)


# ── Logs that are right ──


@pytest.mark.parametrize("deep", [False, True])
def test_a_log_that_is_right_has_no_damage(topic: SealedTopic, deep: bool) -> None:
    """
    Parquet in several row groups, batches as they came, an empty topic.
    """
    assert (None, []) == (verify(topic, deep=deep).manifest, verify(topic, deep=deep).damage)
    first, second = topic.seal(0, 0, messages(300), messages(100, 300))
    raw = seal_raw(topic, 400, 430)

    report = verify(topic, deep=deep)

    assert [] == report.damage
    assert (3, 1, 430, 0) == (
        report.segments,
        report.undecodable,
        report.records,
        report.gap_offsets,
    )
    assert sum(ref.size_bytes for ref in (first, second, raw)) == report.size_bytes
    assert (0, 430, manifest_key(topic)) == (report.log_start, report.end, report.manifest)


def test_what_is_damaged_below_log_start_is_gone_anyway(topic: SealedTopic) -> None:
    """
    Log start in the middle of a segment: its first row group is of deleted records.
    """
    (ref,) = topic.seal(0, 0, messages(300))
    topic.edit(0, SetLogStart(250))
    flip(topic, ref.key, 10)

    assert [] == verify(topic).damage
    flip(topic, ref.key, 10)
    path(topic, ref.key).unlink()
    assert [(DamageKind.MISSING, 250, 300, ref.key)] == found(verify(topic))
    topic.edit(0, SetLogStart(300))
    assert [] == verify(topic).damage


@pytest.mark.parametrize("deep", [False, True])
def test_compacted_segments_with_gaps_are_right(topic: SealedTopic, deep: bool) -> None:
    """
    Cleaned end says that compaction has been there; before its first run has ended, the topic's
    policy does.
    """
    kept = [one if n % 3 == 0 else None for n, one in enumerate(messages(300))]
    topic.seal(0, 0, kept)
    topic.edit(0, SetCleanedEnd(300))

    report = verify(topic, deep=deep)

    assert ([], 200) == (report.damage, report.gap_offsets)


def test_a_topic_that_was_compacted_once_may_have_gaps(topic: SealedTopic) -> None:
    """
    A run that ended half-way has moved no cleaned end, and the policy may have changed since.
    """
    topic.seal(0, 0, [None, *messages(9, 1)])
    assert [DamageKind.HOLE] == [one.kind for one in verify(topic).damage]
    for version, policy in ((2, "compact,delete"), (3, "delete")):
        now = Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=1,
            configs={"cleanup.policy": policy},
        )
        body = encode_topic(TopicFile(version, now))
        key = layout.topic_key(topic.name, topic.topic_id, version)
        topic.with_store(lambda store, k=key, b=body: store.create(k, [b]))  # type: ignore[misc]

    assert [] == verify(topic).damage


def test_a_loss_that_was_accepted_is_no_damage(topic: SealedTopic) -> None:
    """
    Only as far as it was accepted.
    """
    topic.seal(0, 0, messages(10))
    topic.edit(0, _added(10, 30, ()))
    topic.seal(0, 30, messages(10, 30))
    key = manifest_key(topic)
    assert [(DamageKind.HOLE, 10, 30, key)] == found(verify(topic))
    loss = AcceptedLoss(
        topic=topic.name,
        tp=topic.tp(0),
        leader_epoch=3,
        session_id="s",
        accepted_at_ms=1,
        reasons=(),
        lost=((10, 25),),
        objects=(),
        sealed_end=10,
        manifest_version=1,
        goes_on_at=25,
    )
    topic.with_store(lambda store: store.create(loss.key, [encode_accepted_loss(loss)]))
    assert [(DamageKind.HOLE, 25, 30, key)] == found(verify(topic))
    more = replace(loss, leader_epoch=4, lost=((25, 30),))
    topic.with_store(lambda store: store.create(more.key, [encode_accepted_loss(more)]))

    report = verify(topic)

    assert ([], 20) == (report.damage, report.gap_offsets)


# ── Damaged segments ──


@pytest.mark.parametrize("deep", [False, True])
def test_a_flipped_bit_is_damage_of_its_row_group(topic: SealedTopic, deep: bool) -> None:
    """
    The row groups beside it are right.
    """
    ref, other = topic.seal(0, 0, messages(300), messages(10, 300))
    flip(topic, ref.key, 1_000)

    report = verify(topic, deep=deep)

    (one,) = report.damage
    assert (DamageKind.CRC, ref.key) == (one.kind, one.key)
    assert (100, 200) == (one.base, one.end)
    assert (1, other.records) == (report.segments, report.records)


@pytest.mark.parametrize("damage", ["cut", "longer", "empty"])
def test_an_object_of_another_size_is_damage(topic: SealedTopic, damage: str) -> None:
    """
    Cut off, with more bytes, or empty.
    """
    ref, _ = topic.seal(0, 0, messages(30), messages(10, 30))
    body = path(topic, ref.key).read_bytes()
    bodies = {"cut": body[:-1], "longer": body + b"x", "empty": b""}
    path(topic, ref.key).write_bytes(bodies[damage])

    assert [(DamageKind.SIZE, 0, 30, ref.key)] == found(verify(topic))


def test_a_missing_segment_is_damage(topic: SealedTopic) -> None:
    """
    And only its range.
    """
    _, ref, _ = topic.seal(0, 0, messages(5), messages(5, 5), messages(5, 10))
    path(topic, ref.key).unlink()

    report = verify(topic)

    assert [(DamageKind.MISSING, 5, 10, ref.key)] == found(report)
    assert (2, 10, 0) == (report.segments, report.records, report.gap_offsets)


@pytest.mark.parametrize("crc", [True, False])
def test_swapped_objects_are_damage(topic: SealedTopic, crc: bool) -> None:
    """
    Each is whole, of the right size even, and another partition's.
    """
    refs = [topic.seal(partition, 0, messages(5))[0] for partition in (1, 2)]
    if not crc:
        forget_footer_crc(topic, 1, refs[0])
    assert refs[0].size_bytes == refs[1].size_bytes
    bodies = [path(topic, ref.key).read_bytes() for ref in refs]
    for ref, body in zip(refs, reversed(bodies), strict=True):
        path(topic, ref.key).write_bytes(body)

    report = verify(topic, partition=1)

    kind = DamageKind.FOOTER if crc else DamageKind.CONTENT
    assert [(kind, 0, 5, refs[0].key)] == found(report)
    detail = report.damage[0].detail
    assert crc or detail == "the object is a segment of flights-2 [0, 5)"


def test_a_flipped_bit_of_a_footer_is_damage_of_the_segment(topic: SealedTopic) -> None:
    """
    Arrow would end the process at some of them: the report names the segment each time.
    """
    ref, _ = topic.seal(0, 0, messages(300), messages(10, 300))
    body = path(topic, ref.key).read_bytes()
    rng = random.Random(5)
    for _ in range(40):
        bad = bytearray(body)
        bad[rng.randrange(footer_start(body, len(body)), len(body))] ^= 1 << rng.randrange(8)
        path(topic, ref.key).write_bytes(bad)

        assert [(DamageKind.FOOTER, 0, 300, ref.key)] == found(verify(topic))


def test_a_wrong_footer_is_damage(topic: SealedTopic) -> None:
    """
    Unreadable, or of another segment.
    """
    (ref,) = topic.seal(0, 0, messages(30))
    body = path(topic, ref.key).read_bytes()
    path(topic, ref.key).write_bytes(body[:-60] + b"\xff" * 30 + body[-30:])
    assert [(DamageKind.FOOTER, 0, 30, ref.key)] == found(verify(topic))
    path(topic, ref.key).write_bytes(body[:-4] + b"PAR2")
    assert [(DamageKind.FOOTER, 0, 30, ref.key)] == found(verify(topic))
    other = body.replace(b'"codec": "none"', b'"codec": "gzip"')
    assert len(other) == len(body)
    path(topic, ref.key).write_bytes(other)
    assert [(DamageKind.FOOTER, 0, 30, ref.key)] == found(verify(topic))


def test_a_wrong_row_count_is_damage(topic: SealedTopic) -> None:
    """
    The reference says another number of records than its object has.
    """
    (ref,) = topic.seal(0, 0, messages(30))
    topic.edit(0, ReplaceSegments(replaced=(ref,), added=(replace(ref, records=29),)))

    assert [(DamageKind.COUNT, 0, 30, ref.key)] == found(verify(topic))


def test_a_wrong_latest_record_is_seen_by_deep(topic: SealedTopic) -> None:
    """
    Only the rows say which record has the largest timestamp.
    """
    (ref,) = topic.seal(0, 0, messages(30))
    wrong = replace(ref, max_timestamp_offset=ref.max_timestamp_offset + 1)
    topic.edit(0, ReplaceSegments(replaced=(ref,), added=(wrong,)))

    assert [] == verify(topic).damage
    assert [(DamageKind.FOOTER, 0, 30, ref.key)] == found(verify(topic, deep=True))


@pytest.mark.parametrize("deep", [False, True])
def test_offsets_without_a_record_are_a_hole(topic: SealedTopic, deep: bool) -> None:
    """
    Within a row group, whose rows say exactly where; at the end of a segment; between segments.
    """
    inside: list[Message | None] = messages(20)
    inside[7] = None
    first, second = topic.seal(0, 0, inside, [*messages(9, 20), None])
    topic.edit(0, _added(30, 35, ()))
    topic.seal(0, 35, messages(5, 35))

    report = verify(topic, deep=deep)

    key = manifest_key(topic)
    exactly = (7, 8) if deep else (0, 20)
    assert [
        (DamageKind.HOLE, *exactly, first.key),
        (DamageKind.HOLE, 29, 30, second.key),
        (DamageKind.HOLE, 30, 35, key),
    ] == found(report)
    assert 7 == report.gap_offsets


def test_damage_of_batches_as_they_came(topic: SealedTopic) -> None:
    """
    A flipped bit is the damage of its batch; a missing batch, or one that is too much, of all.
    """
    ref = seal_raw(topic, 0, 30)
    body = path(topic, ref.key).read_bytes()
    third = len(body) // 3
    flip(topic, ref.key, third + 70)
    assert [(DamageKind.CRC, 10, 20, ref.key)] == found(verify(topic))
    path(topic, ref.key).write_bytes(body[third:] + body[:third])
    assert [(DamageKind.CONTENT, 0, 30, ref.key)] == found(verify(topic))
    path(topic, ref.key).write_bytes(body[:third])
    assert [(DamageKind.SIZE, 0, 30, ref.key)] == found(verify(topic))


def test_a_segment_under_the_name_of_another_range_is_damage(topic: SealedTopic) -> None:
    """
    Agents read by reference; the collector and people read by name.
    """
    (ref,) = topic.seal(0, 0, messages(5))
    key = layout.segment_key(topic.name, topic.tp(0), 0, 6, "x")
    path(topic, ref.key).rename(path(topic, key))
    topic.edit(0, ReplaceSegments(replaced=(ref,), added=(replace(ref, key=key),)))

    assert [(DamageKind.NAME, 0, 5, key)] == found(verify(topic))


# ── Damaged lists, manifests and snapshots ──


def test_lists_are_followed_and_verified(topic: SealedTopic) -> None:
    """
    A missing or unreadable list, and one with other sums, is damage of its range; a segment in it
    only of that segment.
    """
    refs = topic.seal(0, 0, *[messages(1, n) for n in range(1_010)])
    report = verify(topic)
    assert ([], 1_010, 1) == (report.damage, report.segments, report.lists)
    (key,) = [
        str(one.relative_to(topic.location))
        for one in Path(topic.location).rglob("manifest-lists/*.json")
    ]
    path(topic, refs[3].key).unlink()
    assert [(DamageKind.MISSING, 3, 4, refs[3].key)] == found(verify(topic))
    body = path(topic, key).read_bytes()
    path(topic, key).unlink()
    report = verify(topic)
    assert [(DamageKind.MISSING, 0, 500, key)] == found(report)
    assert 510 == report.segments
    path(topic, key).write_bytes(body.replace(b'"base":3,', b'"base":4,'))
    assert [(DamageKind.MANIFEST, 0, 500, key)] == found(verify(topic))

    def one_byte_more(fields: dict[str, Any]) -> None:
        fields["segments"][0]["raw_bytes"] += 1

    path(topic, key).write_bytes(body)
    rewrite_json(topic, key, one_byte_more)
    assert [
        (DamageKind.FOOTER, 0, 1, refs[0].key),
        (DamageKind.COUNT, 0, 500, key),
        (DamageKind.MISSING, 3, 4, refs[3].key),
    ] == sorted(found(verify(topic)), key=lambda one: (one[1], one[2] or 0))


def test_damage_of_the_newest_manifest(topic: SealedTopic) -> None:
    """
    No older version takes its place; neither does one that the metadata store is ahead of.
    """
    topic.seal(0, 0, messages(5))
    topic.seal(0, 5, messages(5, 5))
    key = manifest_key(topic)
    assert [] == verify(topic, at_least=2).damage
    flip(topic, key, 40)
    assert [(DamageKind.MANIFEST, 0, None, key)] == found(verify(topic))
    path(topic, key).unlink()
    assert [] == verify(topic).damage  # the older one is the newest, as far as the bucket says
    assert [(DamageKind.MISSING, 0, None, key)] == found(verify(topic, at_least=2))


def test_damage_of_a_producer_snapshot(topic: SealedTopic) -> None:
    """
    Missing, damaged, or of another offset than the sealed end.
    """

    def seal(base: int, at: int) -> str:
        key = layout.producer_snapshot_key(topic.name, topic.tp(0), base + 5, "p")
        states = ProducerStates()
        states.append(7, 0, 0, 1, base)
        topic.with_store(lambda store: store.put(key, [states.encode(at)]))
        topic.seal(0, base, messages(4, base))
        snapshot = ProducerSnapshotRef(base + 5, key)
        topic.edit(0, replace(_added(base + 4, base + 5, ()), producers=snapshot))
        topic.edit(0, SetCleanedEnd(base + 5))
        return key

    key = seal(0, 5)
    assert [] == verify(topic).damage
    body = path(topic, key).read_bytes()
    flip(topic, key, len(body) - 1)
    assert [(DamageKind.PRODUCERS, 5, None, key)] == found(verify(topic))
    path(topic, key).unlink()
    assert [(DamageKind.MISSING, 5, None, key)] == found(verify(topic))
    key = seal(5, 9)
    assert [(DamageKind.PRODUCERS, 10, None, key)] == found(verify(topic))


# ── A log that is rewritten meanwhile ──


class _Replaced:
    """A store in which a rewrite happens before the first read of one object."""

    def __init__(self, store: ObjectStore, key: str, rewrite: Callable[[], None]) -> None:
        self._store = store
        self._key = key
        self._rewrite: Callable[[], None] | None = rewrite
        self.list, self.stat = store.list, store.stat

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        if key == self._key and self._rewrite is not None:
            rewrite, self._rewrite = self._rewrite, None
            await asyncio.to_thread(rewrite)
        return await self._store.get(key, start, end)


@pytest.mark.parametrize("is_right", [True, False])
def test_what_the_newest_manifest_names_no_more_is_no_damage(
    topic: SealedTopic, is_right: bool
) -> None:
    """
    The segments in its place are verified: damage in them is found.
    """
    first, second, _ = topic.seal(0, 0, messages(5), messages(5, 5), messages(5, 10))
    (merged,) = topic.put(0, 0, messages(10))

    def rewrite() -> None:
        topic.edit(0, ReplaceSegments(replaced=(first, second), added=(merged,)))
        path(topic, first.key).unlink()
        path(topic, second.key).unlink()
        if not is_right:
            flip(topic, merged.key, 10)

    async def main(store: ObjectStore) -> PartitionReport:
        reads = ObjectReads(_Replaced(store, first.key, rewrite))  # type: ignore[arg-type]
        return await PartitionVerifier(reads, asyncio.to_thread, pause_s=0.0).verify(
            topic.name, topic.tp(0)
        )

    report = topic.with_store(main)

    if is_right:
        assert [] == report.damage
        assert report.records >= 15
    else:
        assert [(DamageKind.CRC, 0, 10, merged.key)] == found(report)


class _Forgetful:
    """A store that lists no manifest after the first time, and then *happens*."""

    def __init__(self, store: ObjectStore, happens: Callable[[], None]) -> None:
        self._store = store
        self._happens = happens
        self._lists = 0
        self.get, self.stat = store.get, store.stat

    async def list(self, prefix: str, **options: Any) -> AsyncIterator[Listing]:
        if "/manifest/" in prefix:
            self._lists += 1
            if self._lists == 2:
                await asyncio.to_thread(self._happens)
            if self._lists > 1:
                yield Listing((), 0)
                return
        async for page in self._store.list(prefix, **options):
            yield page


@pytest.mark.parametrize("then", ["nothing", "the manifest goes", "the topic is deleted"])
def test_a_list_that_shows_no_manifest_hides_no_damage(topic: SealedTopic, then: str) -> None:
    """
    The manifest that was there is read by its key.  Where that is gone, too, what seemed damaged is
    damage, but in a topic that was deleted.
    """
    _, ref = topic.seal(0, 0, messages(5), messages(5, 5))
    path(topic, ref.key).unlink()
    key, deleted = manifest_key(topic), layout.deleted_key(topic.name, topic.tp(0).topic_id)

    def happen() -> None:
        if then != "nothing":
            path(topic, key).unlink()
        if then == "the topic is deleted":
            path(topic, deleted).write_bytes(b"{}")

    async def main(store: ObjectStore) -> PartitionReport:
        reads = ObjectReads(_Forgetful(store, happen))  # type: ignore[arg-type]
        verifier = PartitionVerifier(reads, asyncio.to_thread, pause_s=0.0)
        report = await verifier.verify(topic.name, topic.tp(0))
        await LostManifests(reads, pauses_s=()).look(report)
        return report

    report = topic.with_store(main)

    segment, manifest = (
        (DamageKind.MISSING, 5, 10, ref.key),
        (DamageKind.MISSING, 0, None, key),
    )
    damage = {"nothing": [segment], "the manifest goes": [manifest, segment]}
    assert damage.get(then, []) == found(report)
    assert (then == "the topic is deleted") == report.is_deleted


def test_reads_are_limited_in_size(topic: SealedTopic) -> None:
    """
    No request asks for more than a chunk, and no more than the limit are in flight.
    """
    topic.seal(0, 0, *[messages(50, 50 * n) for n in range(40)])
    largest, in_flight, most = 0, 0, 0

    class Counting:
        def __init__(self, store: ObjectStore) -> None:
            self._store = store
            self.list, self.stat = store.list, store.stat

        async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
            nonlocal largest, in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            largest = max(largest, (end or 0) - start)
            await asyncio.sleep(0)
            try:
                return await self._store.get(key, start, end)
            finally:
                in_flight -= 1

    async def main(store: ObjectStore) -> PartitionReport:
        reads = ObjectReads(Counting(store), ReadLimits(at_once=3))  # type: ignore[arg-type]
        return await PartitionVerifier(reads, asyncio.to_thread).verify(topic.name, topic.tp(0))

    assert ([], 40) == ((report := topic.with_store(main)).damage, report.segments)
    assert (True, 3) == (largest <= 4 * 1024 * 1024 + 1, most)
