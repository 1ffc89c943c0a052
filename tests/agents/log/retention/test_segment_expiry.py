"""Expired records go, in time, and nothing else goes: else logs grow for ever, or lose data."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.retention.policy import RetentionSettings, TopicRetention
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_metadata.schema.codec import (
    decode_partition_state,
    encode_configs,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    CONFIGS_PREFIX,
    FLUSHES_PREFIX,
    TOPICS_PREFIX,
    configs_key,
    partition_key,
    topic_key,
)
from driftlog_metadata.schema.model import ConfigsOwner, PartitionState, TopicPartition
from driftlog_metadata.stores.store import Delete, MetadataStore, Put
from driftlog_tiering.formats import manifest_edits
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments
from driftlog_tiering.formats.manifests import commit_edit, load_newest
from driftlog_tiering.stores.object_store import ObjectInfo
from tests.agents.log.job_edits import merge
from tests.agents.log.lives import SETTINGS, Life, World, now_ms, on_virtual_time

INTERVAL_S = 10.0
RETAINED_S = 100.0
CHECKED = replace(SETTINGS, retention=RetentionSettings(check_interval_ms=INTERVAL_S * 1000))
LATE_S = 3 * INTERVAL_S
"""A phase and an interval until a check, and a moment for the manifest."""


def by_time(seconds: float = RETAINED_S) -> TopicRetention:
    return TopicRetention(ms=int(seconds * 1000))


async def start(retention: TopicRetention) -> Life:
    """An agent with one partition, whose batches are sealed when a test says so."""
    world = World(t=1)
    world.retention["t"] = retention
    return await world.start(CHECKED)


async def put(life: Life, *values: bytes, sealed: bool = True, age_ms: int = 0) -> int:
    """Commit a batch with the time of now, less *age_ms*; returns its size as received."""
    before = life.log().unsealed_bytes
    request = life.produce(*values, timestamp_ms=life.world.wall_ms() - age_ms)
    assert "committed" == await request.answer()
    size = life.log().unsealed_bytes - before
    if sealed:
        await life.seal()
    return size


async def newest(life: Life) -> Manifest:
    """The manifest in the bucket."""
    log = life.log()
    found = await load_newest(life.world.bucket, "t", TopicPartition(log.topic_id, 0))
    assert found is not None
    return found


async def stored(life: Life) -> PartitionState:
    """The partition's key."""
    kv = await life.world.metadata.get(partition_key(TopicPartition(life.log().topic_id, 0)))
    assert kv is not None
    return decode_partition_state(kv.value)


async def becomes(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until it *holds*."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@on_virtual_time
async def test_segments_go_when_they_are_older_than_retention_ms() -> None:
    """
    One after the other, each within a check interval; key and manifest say so, and the counters.
    """
    life = await start(by_time())
    await put(life, b"a", b"b")
    await asyncio.sleep(50)
    await put(life, b"c")

    await asyncio.sleep(49)
    assert 0 == life.log().log_start
    await asyncio.sleep(LATE_S)
    assert 2 == life.log().log_start == (await stored(life)).log_start
    manifest = await newest(life)
    assert (2, [(2, 3)]) == (manifest.log_start, [(s.base, s.end) for s in manifest.segments])
    await asyncio.sleep(50)

    assert (3, 3) == (life.log().log_start, (await newest(life)).log_start)
    assert {"time": 3} == life.engine.counters.expired_records
    assert life.engine.counters.expired_bytes["time"] > 0


@on_virtual_time
async def test_a_partition_that_does_not_change_costs_no_request_until_it_is_due() -> None:
    """
    Also under a leader that has just taken it over: that one reads the manifest once.
    """
    life = await start(by_time(2_000))
    await put(life, b"a")
    await life.stop()
    life = await life.world.start(CHECKED)
    await asyncio.sleep(60)
    before = life.world.bucket.requests

    await asyncio.sleep(1_800)

    assert (0, before) == (life.log().log_start, life.world.bucket.requests)
    await becomes(lambda: life.log().log_start == 1, 140 + LATE_S)


@on_virtual_time
async def test_a_changed_config_holds_from_the_next_check_on() -> None:
    """
    Without a restart; without a limit nothing goes.
    """
    life = await start(TopicRetention())
    await put(life, b"a")
    await asyncio.sleep(1_000)
    assert 0 == life.log().log_start

    life.world.retention["t"] = by_time(2_000)
    await asyncio.sleep(LATE_S)
    assert 0 == life.log().log_start
    life.world.retention["t"] = by_time()

    await becomes(lambda: life.log().log_start == 1, LATE_S)


@on_virtual_time
@pytest.mark.parametrize("changed", [TopicRetention(), by_time(10**10), None])
async def test_a_config_that_is_changed_during_a_check_holds_at_once(
    monkeypatch: pytest.MonkeyPatch, changed: TopicRetention | None
) -> None:
    """
    The store is slow, and the change was answered before log start is written; None: the topic is
    deleted.
    """
    life = await start(by_time())
    request = life.produce(b"a", timestamp_ms=-1)
    assert "committed" == await request.answer()
    await life.seal()
    stat, asked = life.world.bucket.stat, asyncio.Event()

    async def slow(key: str) -> ObjectInfo:
        found = await stat(key)
        if not asked.is_set():
            asked.set()
            await asyncio.sleep(5)
        return found

    monkeypatch.setattr(life.world.bucket, "stat", slow)
    async with asyncio.timeout(RETAINED_S + LATE_S):
        await asked.wait()
    life.world.retention["t"] = changed or TopicRetention()
    if changed is None:
        del life.world.retention["t"]
    with capture_logs() as lines:
        await asyncio.sleep(LATE_S)
    kept = life.log().log_start
    life.world.retention["t"] = by_time(RETAINED_S + 1)
    await becomes(lambda: life.log().log_start == 1, LATE_S)

    assert (0, []) == (kept, lines)


@on_virtual_time
async def test_a_config_that_is_changed_while_a_key_is_written_holds_at_once() -> None:
    """
    Log start waits for a deletion that a client has asked for, whose answer from the metadata store
    is late.
    """
    world = World(t=1)
    world.retention["t"] = by_time()
    store = SlowWrites(cast(MetadataStore, world.metadata))
    life = await world.start(CHECKED, metadata=lambda _: cast(MetadataStore, store))
    await put(life, b"a", b"b", age_ms=-int(1_000 * INTERVAL_S))
    await asyncio.sleep(RETAINED_S)
    store.answers.clear()
    deleted = asyncio.create_task(life.engine.deletion.delete_to(life.log(), 1))

    await asyncio.sleep(LATE_S)
    world.retention["t"] = TopicRetention()
    store.answers.set()

    assert 1 == await deleted
    await asyncio.sleep(1)
    assert 1 == life.log().log_start


@on_virtual_time
async def test_by_size_as_much_stays_as_was_asked_for() -> None:
    """
    In bytes as received; the unsealed tail counts, and the size that is shown is what is counted.
    """
    life = await start(TopicRetention())
    size = await put(life, b"x" * 1_000)
    for _ in range(4):
        await put(life, b"x" * 1_000)
    await put(life, b"x" * 1_000, sealed=False)
    assert 6 * size == life.engine.upkeep.retention.size_bytes(life.log())

    life.world.retention["t"] = TopicRetention(size_bytes=3 * size + 1)
    await asyncio.sleep(LATE_S)

    assert 2 == life.log().log_start
    assert 4 * size == life.engine.upkeep.retention.size_bytes(life.log())
    assert {"size": 2} == life.engine.counters.expired_records
    await put(life, b"x" * 1_000, sealed=False)
    await becomes(lambda: life.log().log_start == 3, LATE_S)


@on_virtual_time
async def test_a_tail_of_which_nothing_is_left_is_sealed_without_a_segment() -> None:
    """
    Its records go at the first check behind `retention.ms`, and the log says that they were not
    sealed; its flush records go with the seal.
    """
    life = await start(by_time())
    life.world.sealing["t"] = TopicSealPolicy(longest_ms=400_000)
    await put(life, b"a", b"b", sealed=False)

    with capture_logs() as lines:
        await asyncio.sleep(RETAINED_S + LATE_S)
    (line,) = (line for line in lines if line["event"] == "segments_expired")
    assert (2, 2, 1) == (line["unsealed_offsets"], line["records"], line["by_time"])
    assert (2, 0) == (life.log().log_start, life.log().sealed_end)
    assert 0 == life.engine.upkeep.retention.size_bytes(life.log())
    await asyncio.sleep(400)

    assert (2, 2) == (life.log().sealed_end, (await newest(life)).log_start)
    assert [] == life.world.bucket.keys(".parquet")
    _, records = await life.world.metadata.get_prefix(FLUSHES_PREFIX)
    assert [] == records
    await put(life, b"c")
    assert [(2, 3)] == [(s.base, s.end) for s in (await newest(life)).segments]


@on_virtual_time
async def test_a_partition_that_is_always_written_keeps_no_record_for_long() -> None:
    """
    Its tail never expires as a whole: batches are sealed at `retention.ms`, and go with their
    segments.
    """
    life = await start(by_time())
    life.world.sealing["t"] = TopicSealPolicy(segment_ms=86_400_000, longest_ms=RETAINED_S * 1000)
    written_s: list[float] = []
    for _ in range(200):
        written_s.append(now_ms() / 1000)
        await put(life, b"x", sealed=False)
        start_at = life.log().log_start
        oldest_s = now_ms() / 1000 - written_s[start_at]
        assert oldest_s <= 2 * RETAINED_S + LATE_S
        assert start_at == 0 or now_ms() / 1000 - written_s[start_at - 1] > RETAINED_S
        await asyncio.sleep(5)

    assert life.log().log_start > 100


@on_virtual_time
async def test_old_records_go_at_the_next_check() -> None:
    """
    Record timestamps count, as in Kafka; one from the future holds what is behind it.
    """
    life = await start(by_time())
    await put(life, b"old", sealed=False, age_ms=10**9)
    await becomes(lambda: life.log().log_start == 1, LATE_S)

    await put(life, b"future", age_ms=-(10**6))
    await put(life, b"old", age_ms=10**9)
    await asyncio.sleep(500)

    assert 1 == life.log().log_start


@on_virtual_time
async def test_a_check_that_fails_is_repeated() -> None:
    """
    Nothing goes while the bucket does not answer, and all of it afterwards.
    """
    life = await start(by_time())
    await put(life, b"a")
    life.world.bucket.lists_fail = True

    await asyncio.sleep(RETAINED_S + 10 * INTERVAL_S)
    assert 0 == life.log().log_start
    life.world.bucket.lists_fail = False

    await becomes(lambda: life.log().log_start == 1, LATE_S + 30)


@on_virtual_time
async def test_the_key_moves_before_the_manifest() -> None:
    """
    The key fences: a manifest that moved first would move another leader's log start.
    """
    life = await start(by_time())
    await put(life, b"a")
    await asyncio.sleep(RETAINED_S - INTERVAL_S)
    life.world.bucket.refused_creates = True

    await becomes(lambda: life.log().log_start == 1, LATE_S + INTERVAL_S)
    assert (1, 0) == ((await stored(life)).log_start, (await newest(life)).log_start)
    life.world.bucket.refused_creates = False
    await asyncio.sleep(60)

    assert 1 == (await newest(life)).log_start


@on_virtual_time
async def test_nothing_goes_by_a_manifest_of_long_ago() -> None:
    """
    A compaction by another process may have made room since: the newest one counts.
    """
    life = await start(TopicRetention())
    for value in (b"a", b"b"):
        await put(life, value * 1_000)
    size = life.engine.upkeep.retention.size_bytes(life.log())
    await asyncio.sleep(200)
    manifest = await newest(life)
    last = manifest.segments[-1]
    await commit_edit(
        life.world.bucket,
        manifest,
        ReplaceSegments(replaced=(last,), added=(replace(last, received_bytes=1),)),
        "compacted",
        author=life.engine.session.author,
        read_at_ms=int(now_ms()),
        deadline_ms=int(now_ms()) + 10_000,
        now_ms=lambda: int(now_ms()),
    )

    life.world.retention["t"] = TopicRetention(size_bytes=size // 2)
    await asyncio.sleep(LATE_S)

    assert 0 == life.log().log_start


@on_virtual_time
async def test_a_restart_keeps_what_is_left() -> None:
    """
    Log start never goes back, and what expires meanwhile goes under the next leader.
    """
    life = await start(by_time())
    await put(life, b"a")
    await asyncio.sleep(60)
    await put(life, b"b")
    await asyncio.sleep(60 + INTERVAL_S)
    assert 1 == life.log().log_start
    life.kill()
    life = await life.world.start(CHECKED)
    assert 1 == life.log().log_start

    await becomes(lambda: life.log().log_start == 2, 40 + LATE_S)


@on_virtual_time
async def test_segments_expire_after_a_job_has_replaced_them_and_the_old_ones_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    An idle partition's leader has the manifest of before, whose lists are gone.
    """
    monkeypatch.setattr(manifest_edits, "MAX_ENTRIES", 4)
    monkeypatch.setattr(manifest_edits, "SPILLED_ENTRIES", 2)
    life = await start(TopicRetention())
    sizes = [await put(life, b"a", b"b") for _ in range(9)]
    before = await newest(life)
    assert before.lists
    await merge(life, before.segments[-1].size_bytes * 4 + 1)
    merged = await newest(life)
    left = {ref.key for ref in merged.lists}
    await life.world.bucket.delete([ref.key for ref in before.lists if ref.key not in left])

    life.world.retention["t"] = TopicRetention(size_bytes=sum(sizes) // 2)
    await becomes(lambda: life.log().log_start > 0, 3 * LATE_S)


@on_virtual_time
async def test_a_bucket_that_does_not_answer_makes_no_manifest_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Else an outage would cost a manifest of each partition, and the sealer would read all again.
    """
    monkeypatch.setattr(manifest_edits, "MAX_ENTRIES", 4)
    monkeypatch.setattr(manifest_edits, "SPILLED_ENTRIES", 2)
    life = await start(TopicRetention())
    sizes = [await put(life, b"a", b"b") for _ in range(9)]
    manifest = await newest(life)
    life.world.bucket.withheld = {ref.key for ref in manifest.lists}

    with capture_logs() as lines:
        life.world.retention["t"] = TopicRetention(size_bytes=sum(sizes) - sizes[0])
        await becomes(lambda: bool(lines), LATE_S + 60)
    assert "retention_failed" == lines[0]["event"]
    assert manifest == life.engine.manifests.known(life.log())
    life.world.bucket.withheld = set()
    await becomes(lambda: life.log().log_start == 2, LATE_S)


class SlowWrites:
    """A metadata store whose transactions are made when the test says so."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.answers = asyncio.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, *args: Any) -> Any:
        """As the store's."""
        await self.answers.wait()
        return await self._store.txn(*args)


class OldView:
    """A metadata store whose changes under *late* come when the test says so."""

    def __init__(self, store: MetadataStore, late: str) -> None:
        self._store = store
        self._late = late
        self.shown = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[Any]:
        """As the store's."""
        async for events in self._store.watch(prefix, start_revision):
            if prefix == self._late:
                await self.shown.wait()
            yield events


ALL_BROKERS = configs_key(ConfigsOwner())
OF_SECOND = configs_key(ConfigsOwner(node_id=2))


@pytest.mark.parametrize(
    ("late", "change"),
    [
        (TOPICS_PREFIX, Put(topic_key("t"), encode_topic(World(t=1).topics["t"]))),
        (CONFIGS_PREFIX, Put(ALL_BROKERS, encode_configs({"log.retention.ms": "-1"}))),
        (CONFIGS_PREFIX, Delete(ALL_BROKERS)),
        (CONFIGS_PREFIX, Put(OF_SECOND, encode_configs({"log.retention.ms": "-1"}))),
    ],
    ids=["topic", "all brokers", "deleted", "own broker"],
)
@on_virtual_time
async def test_a_leader_expires_nothing_by_configs_that_are_older_than_its_claim(
    late: str, change: Put | Delete
) -> None:
    """
    The leader before has accepted records under a longer retention, and the new leader's watch of
    the topics, or of what they inherit, is late: it waits for it.
    """
    first = await start(by_time(10**6))
    await put(first, b"a", b"b", age_ms=500_000)
    world = first.world.other_disk()
    world.retention["t"] = by_time(1)
    await world.metadata.txn((), [Put(ALL_BROKERS, encode_configs({"log.retention.ms": "1"}))])
    store = OldView(cast(MetadataStore, world.metadata), late)
    second = await world.start(CHECKED, ready=False, metadata=lambda _: cast(MetadataStore, store))
    await asyncio.sleep(5)
    await world.metadata.txn((), [change])
    first.kill()
    await becomes(lambda: second.engine.log("t", 0) is not None, 120)

    await asyncio.sleep(3 * LATE_S)
    kept = second.log().log_start
    store.shown.set()
    await becomes(lambda: second.log().log_start == 2, LATE_S)

    assert 0 == kept
