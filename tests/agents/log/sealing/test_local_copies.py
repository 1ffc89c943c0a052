"""If it failed: a consumer would read an older value of a key, and never the deletion of the key.

A job compacts the partition, and its leader has the sealed batches in memory.
"""

import asyncio
from dataclasses import replace

import pytest

from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.sealing.local_copies import KEPT_MS, LOOK_MS
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_tiering.batches.batch import build_batch, check_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from tests.agents.log.job_edits import POLICY, compact, fetched, newest
from tests.agents.log.lives import (
    ALL,
    SETTINGS,
    Life,
    Request,
    World,
    now_ms,
    on_virtual_time,
    values_of,
)
from tests.tiering.compaction.test_cleaner import inline

READER_S = CleanerSettings().reader_ms / 1000
NO_CLEANER = replace(SETTINGS, compaction=CompactionSettings(enabled=False))


async def start(*, compacted: bool = True) -> Life:
    """An agent that compacts nothing itself."""
    world = World(t=1)
    if compacted:
        world.compaction["t"] = POLICY
    return await world.start(NO_CLEANER)


async def put(life: Life, *values: bytes) -> None:
    """Commit and seal records without keys, which compaction removes."""
    assert "committed" == await life.produce(*values).answer()
    await life.seal()


def local(log: PartitionLog, offset: int = 0) -> bool:
    """Whether a fetch is answered without the bucket."""
    return read_local(log, offset, 1 << 20) is not None


@on_virtual_time
async def test_local_copies_of_a_compacted_topic_are_forgotten_before_a_deletion_may_go() -> None:
    """
    Those that were sealed later stay longer; what is not sealed stays.
    """
    life = await start()
    await put(life, b"old")
    await asyncio.sleep(KEPT_MS / 2000)
    await put(life, b"new")
    await life.produce(b"tail").answer()
    assert (True, True) == (local(life.log(), 0), local(life.log(), 1))

    await asyncio.sleep((KEPT_MS / 2 + 2 * LOOK_MS) / 1000)
    assert (False, True, True) == tuple(local(life.log(), n) for n in range(3))
    await asyncio.sleep((KEPT_MS / 2) / 1000)
    assert (False, False, True) == tuple(local(life.log(), n) for n in range(3))
    assert KEPT_MS + 2 * LOOK_MS < CleanerSettings().reader_ms


@on_virtual_time
async def test_local_copies_are_forgotten_in_time_while_a_seal_waits_for_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A round of seals may last longer than a deletion stays.
    """
    life = await start()
    await put(life, b"old")
    waiting = asyncio.Event()

    async def hang(log: PartitionLog, end: int | None = None) -> int:
        waiting.set()
        await asyncio.sleep(600)
        return log.sealed_end

    monkeypatch.setattr(life.engine.sealer, "seal", hang)
    life.world.sealing["t"] = TopicSealPolicy(segment_ms=1_000)
    await life.produce(b"tail").answer()
    await waiting.wait()

    await asyncio.sleep((KEPT_MS + 2 * LOOK_MS) / 1000)
    assert (False, True) == (local(life.log(), 0), local(life.log(), 1))


@on_virtual_time
async def test_local_copies_of_other_topics_stay() -> None:
    life = await start(compacted=False)
    await put(life, b"old")
    await asyncio.sleep(2 * READER_S)
    assert local(life.log())


@on_virtual_time
@pytest.mark.parametrize("reads", ["local copies", "segments"])
async def test_a_leader_that_compacts_nothing_learns_what_a_job_has_compacted(reads: str) -> None:
    """
    Within `reader_ms`, though it had the manifest of before the first compaction.
    """
    life = await start()
    await put(life, b"old")
    if reads == "segments":
        life.engine.sealer.sealed_cache.forget(life.log(), 1)
    assert [b"old"] == await fetched(life)
    await compact(life)
    assert (1, ()) == ((await newest(life)).cleaned_end, (await newest(life)).segments)

    assert [b"old"] == await fetched(life)
    await asyncio.sleep(READER_S)
    assert [] == await fetched(life)
    await put(life, b"next")
    assert [b"next"] == await fetched(life, 1)


RETENTION_MS = 60_000
ROUND_S = 15.0
DAY_MS = 86_400_000


async def commit_keyed(life: Life, key: bytes, value: bytes | None) -> None:
    """Commit one record."""
    section = encode_record(Record(0, 0, key, value, ()))
    batch = build_batch(
        section,
        base_offset=0,
        last_offset_delta=0,
        record_count=1,
        attributes=0,
        base_timestamp=1,
        max_timestamp=1,
    )
    header, request = check_batch(batch), Request()
    facts = (1, header.attributes, -1, -1, -1, 0, 1)
    life.engine.admission.admit(
        life.log(), memoryview(batch), facts, ALL, ConnectionActivity(now_ms()), request
    )
    assert "committed" == await request.answer()


async def put_keyed(life: Life, key: bytes, value: bytes | None) -> None:
    """Commit and seal one record."""
    await commit_keyed(life, key, value)
    await life.seal()


async def offsets_from(life: Life, offset: int, max_bytes: int = 1 << 20) -> list[int]:
    """Of the records that a consumer gets with one fetch."""
    reader = LogReader(
        store=life.world.bucket, offload=inline, manifests=life.engine, now_ms=now_ms
    )
    batches = await reader.read(life.log(), offset, max_bytes, zstd=True)
    return [at for batch in batches for at, _, _ in values_of(batch)]


@on_virtual_time
@pytest.mark.parametrize("rounds", [0, 4, 10, 16, 19, 24, 30, 60])
async def test_a_consumer_that_has_read_a_value_gets_its_deletion(rounds: int) -> None:
    """
    It reads on within ``delete.retention.ms``, and what is local goes in between; a job compacts
    all the while.
    """
    life = await start()
    policy = CompactionPolicy(min_dirty_ratio=0, delete_retention_ms=RETENTION_MS)
    await put_keyed(life, b"k", b"value")
    await put_keyed(life, b"k", None)

    async def more() -> None:
        await put_keyed(life, b"other", b"value")
        await compact(life, policy)
        await asyncio.sleep(ROUND_S)

    for _ in range(rounds):
        await more()
    has_value = await offsets_from(life, 0, 1) == [0]
    life.engine.sealer.sealed_cache.forget(life.log(), life.log().sealed_end)
    for _ in range(int(RETENTION_MS / 1000 / ROUND_S) - 1):
        await more()

    has_deletion = 1 in await offsets_from(life, 1)
    assert has_deletion or not has_value
    assert has_value or rounds


@on_virtual_time
async def test_a_new_leader_serves_no_sealed_offset_from_a_consolidated_object() -> None:
    """
    Else a consumer would read a value whose deletion has left the segments.  The sealed end is in
    the middle of the object's slice: a leader knows that slice as several flushes, the next leader
    as one.
    """
    world = World(t=1)
    world.compaction["t"] = POLICY
    consolidation = replace(SETTINGS.consolidation, age_ms=1_000, records=4, dead_age_ms=DAY_MS)
    settings = replace(NO_CLEANER, consolidation=consolidation)
    life = await world.start(settings)
    policy = replace(POLICY, delete_retention_ms=RETENTION_MS)
    for key, value in ((b"k", b"1"), (b"k", None), (b"other", b"2"), (b"tail", b"3")):
        await commit_keyed(life, key, value)
    while not life.engine.flush_records.rewrites:  # noqa: ASYNC110
        await asyncio.sleep(1)
    for end in (2, 3):
        await life.engine.sealer.seal(life.log(), end)
        await compact(life, policy)
        await asyncio.sleep(RETENTION_MS / 1000 + READER_S + 60)

    await life.stop()
    life = await world.other_disk().start(settings)
    log = life.log()
    assert [(0, 4)] == [(tail.base, tail.end) for tail in log.slices]
    assert 3 == log.sealed_end
    assert [[2], [3]] == [await offsets_from(life, 0), await offsets_from(life, 3)]
    assert 1 << 31 == log.bytes_from(2)
