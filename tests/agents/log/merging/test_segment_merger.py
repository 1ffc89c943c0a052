"""Small segments of led partitions become few: else files multiply, and reads slow down."""

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.formats.manifest import Busy, Manifest, SegmentRef, SetBusy
from driftlog_tiering.formats.manifests import commit_edit, iter_segments, load_newest
from tests.agents.log.lives import SETTINGS, Life, World, now_ms, on_virtual_time

INTERVAL_S: Final = 5.0
FACTOR: Final = 3
MERGING: Final = replace(
    SETTINGS,
    merging=MergeSettings(interval_ms=INTERVAL_S * 1000, factor=FACTOR),
    compaction=CompactionSettings(enabled=False),
)


async def start(partitions: int = 1, *, compacted: bool = False) -> Life:
    """An agent whose batches are sealed when a test says so."""
    world = World(t=partitions)
    world.retention["t"] = TopicRetention()
    settings = MERGING
    if compacted:
        world.compaction["t"] = CompactionPolicy(min_dirty_ratio=0)
        settings = replace(MERGING, compaction=CompactionSettings(backoff_ms=INTERVAL_S * 1000))
    return await world.start(settings)


async def put(life: Life, count: int, partition: int = 0) -> None:
    """Seal *count* segments of one record each."""
    for n in range(count):
        assert "committed" == await life.produce(b"v%d" % n, partition=partition).answer()
        await life.seal(partition)


async def newest(life: Life, partition: int = 0) -> Manifest:
    """The manifest in the bucket."""
    tp = TopicPartition(life.log().topic_id, partition)
    found = await load_newest(life.world.bucket, "t", tp)
    assert found is not None
    return found


async def segments(life: Life, partition: int = 0) -> list[SegmentRef]:
    """What the manifest in the bucket names."""
    manifest = await newest(life, partition)
    return [ref async for ref in iter_segments(life.world.bucket, manifest)]


async def set_busy(life: Life, busy: Busy | None) -> None:
    """As a job does it."""
    manifest, now = await newest(life), int(now_ms())
    await commit_edit(
        life.world.bucket,
        manifest,
        SetBusy(manifest.busy, busy),
        f"job{now}",
        author=life.engine.session.author,
        read_at_ms=now,
        deadline_ms=now + 30_000,
        now_ms=lambda: int(now_ms()),
        wanted=lambda: True,
        grace=Grace(),
    )


@on_virtual_time
async def test_as_many_as_the_factor_become_one_and_then_no_request_is_made() -> None:
    """
    Fewer stay; an idle partition costs nothing; the next ones are merged as well.
    """
    life = await start()
    await put(life, FACTOR - 1)
    await asyncio.sleep(3 * INTERVAL_S)
    assert FACTOR - 1 == len(await segments(life))

    await put(life, 1)
    await asyncio.sleep(3 * INTERVAL_S)
    (merged,) = await segments(life)
    assert (0, FACTOR, FACTOR, 1) == (merged.base, merged.end, merged.records, merged.merges)
    counters = life.engine.counters
    assert (1, FACTOR) == (counters.merges, counters.merged_segments)
    requests = life.world.bucket.requests
    await asyncio.sleep(50 * INTERVAL_S)
    assert requests == life.world.bucket.requests

    for _ in range(FACTOR - 1):
        await put(life, FACTOR)
        await asyncio.sleep(3 * INTERVAL_S)
    (merged,) = await segments(life)
    assert (0, FACTOR * FACTOR, 2) == (merged.base, merged.end, merged.merges)


@on_virtual_time
async def test_a_partition_that_a_job_rewrites_waits_and_retention_does_not() -> None:
    """
    Sealing and log start go on; when the job ends early, merging begins within minutes.
    """
    life = await start()
    await put(life, 1)
    await set_busy(life, Busy("a job", int(now_ms()) + 3_600_000))
    await put(life, FACTOR)
    life.world.retention["t"] = TopicRetention(size_bytes=0)
    await asyncio.sleep(700)
    assert 0 == life.engine.counters.merges
    assert (FACTOR + 1, FACTOR + 1) == (life.log().log_start, (await newest(life)).log_start)

    await put(life, FACTOR)
    life.world.retention["t"] = TopicRetention()
    await asyncio.sleep(100)
    assert 0 == life.engine.counters.merges
    await set_busy(life, None)
    await asyncio.sleep(300 + 2 * INTERVAL_S)
    assert 1 == life.engine.counters.merges
    assert [(FACTOR + 1, 2 * FACTOR + 1)] == [(s.base, s.end) for s in await segments(life)]


@pytest.mark.parametrize("until_s", [-1.0, 7 * 3_600.0], ids=["is over", "is longer than allowed"])
@on_virtual_time
async def test_a_note_that_does_not_count_delays_nothing(until_s: float) -> None:
    """
    A job that died and one whose clock is wrong stop neither merging nor compaction.
    """
    life = await start()
    await put(life, 1)
    await set_busy(life, Busy("a job", int(now_ms() + until_s * 1000)))
    await put(life, FACTOR - 1)
    await asyncio.sleep(3 * INTERVAL_S)

    assert 1 == life.engine.counters.merges


@on_virtual_time
async def test_compaction_waits_for_a_job_as_well() -> None:
    """
    Both would rewrite the same segments, and one would have worked in vain.
    """
    life = await start(compacted=True)
    await put(life, 1)
    await set_busy(life, Busy("a job", int(now_ms()) + 100_000))
    await put(life, 1)
    done = life.engine.counters.compactions
    await asyncio.sleep(60)
    assert done == life.engine.counters.compactions
    await asyncio.sleep(60)

    assert done + 1 == life.engine.counters.compactions


@on_virtual_time
async def test_a_partition_that_is_compacted_delays_no_other() -> None:
    """
    Compaction of one partition gets no answer for its segment; the other one is merged.
    """
    life = await start(2, compacted=True)
    bucket = life.world.bucket
    await put(life, 1)
    bucket.silent.update(bucket.keys("/00000/0"))
    await put(life, FACTOR)
    await asyncio.sleep(INTERVAL_S + 1)
    await put(life, FACTOR, partition=1)
    await asyncio.sleep(2 * INTERVAL_S)

    assert 0 == life.engine.counters.compactions
    assert 1 == life.engine.counters.merges
    assert 1 == len(await segments(life, 1))


@on_virtual_time
async def test_a_damaged_segment_is_read_again_ever_less_often() -> None:
    """
    And ends nothing.
    """
    life = await start()
    await put(life, FACTOR)
    life.world.bucket.damage(".parquet")
    await asyncio.sleep(20 * INTERVAL_S)
    before = life.world.bucket.requests
    await asyncio.sleep(200 * INTERVAL_S)

    assert life.world.bucket.requests - before < 40
    assert 0 == life.engine.counters.merges
    assert life.engine.session.alive


@on_virtual_time
async def test_an_edit_whose_answer_is_lost_is_not_repeated() -> None:
    """
    It was made all the same: its segment counts, once.
    """
    life = await start()
    await put(life, FACTOR)
    life.world.bucket.lost_creates = 1
    await asyncio.sleep(5 * INTERVAL_S)

    (merged,) = await segments(life)
    assert (0, FACTOR, FACTOR) == (merged.base, merged.end, merged.records)
    assert (
        1 == len({key for key in life.world.bucket.keys(f"-{FACTOR:020d}-") if ".parq" in key}) - 1
    )
