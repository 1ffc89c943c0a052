"""A compacted partition is compacted in time, whatever fails: else its log grows for ever."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_newest
from tests.agents.log.lives import SETTINGS, Life, World, now_ms, on_virtual_time

BACKOFF_S = 5.0
COMPACTING = replace(SETTINGS, compaction=CompactionSettings(backoff_ms=BACKOFF_S * 1000))


async def start() -> Life:
    """An agent with one compacted partition, whose batches are sealed when a test says so."""
    world = World(t=1)
    world.compaction["t"] = CompactionPolicy()
    return await world.start(COMPACTING)


async def put(life: Life, *values: bytes) -> None:
    """Commit and seal records without keys: compaction removes them."""
    assert "committed" == await life.produce(*values).answer()
    await life.seal()


async def newest(life: Life) -> Manifest:
    """The manifest in the bucket."""
    found = await load_newest(life.world.bucket, "t", TopicPartition(life.log().topic_id, 0))
    assert found is not None
    return found


def compactions(life: Life) -> int:
    """Runs so far."""
    return life.engine.counters.compactions


@on_virtual_time
async def test_a_partition_is_compacted_and_costs_nothing_until_it_changes() -> None:
    """
    Its local copies are forgotten with the edit; an idle partition makes no request.
    """
    life = await start()
    await put(life, b"a", b"b")
    assert read_local(life.log(), 0, 1 << 20) is not None

    await asyncio.sleep(3 * BACKOFF_S)
    manifest = await newest(life)
    assert (2, ()) == (manifest.cleaned_end, manifest.segments)
    assert (1, 2) == (compactions(life), life.engine.counters.compaction_removed_records)
    assert read_local(life.log(), 0, 1 << 20) is None
    requests = life.world.bucket.requests
    await asyncio.sleep(20 * BACKOFF_S)
    assert requests == life.world.bucket.requests
    await put(life, b"c")
    await asyncio.sleep(3 * BACKOFF_S)
    assert 3 == (await newest(life)).cleaned_end


@on_virtual_time
async def test_a_backoff_that_becomes_shorter_ends_the_wait() -> None:
    """
    It is a dynamic config: nobody restarts an agent, or waits for what held before.
    """
    world = World(t=1)
    world.compaction["t"] = CompactionPolicy()
    settings = replace(SETTINGS, compaction=CompactionSettings(backoff_ms=86_400_000))
    life = await world.start(settings)
    await put(life, b"a", b"b")
    await asyncio.sleep(60)
    assert 0 == compactions(life)
    settings.compaction.backoff_ms = 1_000
    await asyncio.sleep(20)

    assert 1 == compactions(life)


@pytest.mark.parametrize("error", [OSError(28, "no space left on device"), MemoryError()])
@on_virtual_time
async def test_a_full_disk_or_memory_delays_compaction_and_ends_nothing(error: Exception) -> None:
    """
    The spool cannot be written: the run is repeated until it can.
    """
    life = await start()
    await put(life, b"a")
    spool, failures = life.world.spool, 0

    @contextlib.contextmanager
    def full() -> Iterator[Any]:
        nonlocal failures
        failures += 1
        raise error
        yield

    life.world.spool = full
    await asyncio.sleep(10 * BACKOFF_S)
    assert failures > 3
    assert 0 == compactions(life)
    life.world.spool = spool
    await asyncio.sleep(3 * BACKOFF_S)

    assert 1 == compactions(life)
    assert life.engine.session.alive


@on_virtual_time
async def test_a_damaged_segment_is_read_again_ever_less_often() -> None:
    """
    Each run reads and stores much before it finds the damage.
    """
    life = await start()
    await put(life, b"a")
    life.world.bucket.damage(".parquet")

    await asyncio.sleep(20 * BACKOFF_S)
    before = life.world.bucket.requests
    await asyncio.sleep(200 * BACKOFF_S)
    assert life.world.bucket.requests - before < 60
    assert 0 == compactions(life)


@on_virtual_time
async def test_local_copies_are_forgotten_where_the_edit_has_no_answer() -> None:
    """
    It may have been made: its tombstones may be gone, and older values are local.
    """
    life = await start()
    await put(life, b"a", b"b")
    life.world.bucket.lost_creates = 1_000_000

    await asyncio.sleep(3 * BACKOFF_S)

    assert read_local(life.log(), 0, 1 << 20) is None


@on_virtual_time
async def test_a_config_that_is_changed_during_a_run_holds_before_its_next_edit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A run over much takes hours: what an answer said is kept, is kept.
    """
    life = await start()
    await put(life, b"a", b"b")
    get, changed = life.world.bucket.get, asyncio.Event()

    async def slow(key: str, *span: Any) -> bytes:
        if key.endswith(".parquet") and not changed.is_set():
            del life.world.compaction["t"]
            changed.set()
        return await get(key, *span)

    monkeypatch.setattr(life.world.bucket, "get", slow)
    with capture_logs() as lines:
        async with asyncio.timeout(3 * BACKOFF_S):
            await changed.wait()
        await asyncio.sleep(3 * BACKOFF_S)
    kept = await newest(life)
    life.world.compaction["t"] = CompactionPolicy()
    await asyncio.sleep(3 * BACKOFF_S)

    assert [2] == [segment.records for segment in kept.segments]
    assert (1, ()) == (compactions(life), (await newest(life)).segments)
    assert ["compaction_void"] == [line["event"] for line in lines]


@on_virtual_time
async def test_records_without_timestamps_are_as_old_as_the_put_of_their_segment() -> None:
    """
    `min.compaction.lag.ms` holds for them too; a consumer that is late finds older values.
    """
    life = await start()
    life.world.wall_ms = lambda: int(now_ms())  # the store's clock
    life.world.compaction["t"] = CompactionPolicy(min_lag_ms=100_000)
    assert "committed" == await life.produce(b"a", b"b", timestamp_ms=-1).answer()
    await life.seal()

    await asyncio.sleep(90)
    young = compactions(life)
    requests = life.world.bucket.requests
    await asyncio.sleep(20 + 3 * BACKOFF_S)

    assert (0, 1) == (young, compactions(life))
    assert requests < 20
