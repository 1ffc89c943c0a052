"""Idempotent producers are remembered by age, in a budget; a full one refuses new ones alone."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.producer_budget import ProducerSettings
from driftlog_agents.protocol.errors import RefusedError
from driftlog_tiering.batches.producers import PRODUCER_BYTES, SILENT_MS, SILENT_WINDOW, WINDOW
from tests.agents.log.lives import SETTINGS, Life, World, on_virtual_time

MINUTE_MS = 60_000.0


def with_memory(
    *, producers: int = 1_000_000, expiration_ms: float = 30 * MINUTE_MS, segment_ms: float = 1e9
) -> EngineSettings:
    """Room for about so many producers of one batch each."""
    return replace(
        SETTINGS,
        producers=ProducerSettings(
            expiration_ms=expiration_ms, state_bytes=producers * (PRODUCER_BYTES + 16)
        ),
        seal=SealSettings(segment_ms=segment_ms, small_ms=segment_ms),
    )


async def write(life: Life, producer: int, sequence: int = 0) -> int:
    """A committed batch of one record; its offset."""
    admitted, request = life.admit(b"x", producer=producer, epoch=0, sequence=sequence)
    if not admitted.answered:
        assert "committed" == await request.answer()
    return admitted.base_offset


async def write_many(life: Life, producers: range) -> None:
    """A committed batch of each."""
    requests = [life.produce(b"x", producer=n, epoch=0, sequence=0) for n in producers]
    for request in requests:
        await request.answer()


def outcome(life: Life, producer: int, sequence: int = 0) -> int | str:
    """The offset that a batch gets, or Kafka's error."""
    try:
        return life.admit(b"x", producer=producer, epoch=0, sequence=sequence)[0].base_offset
    except RefusedError as error:
        return error.code.name


# ── By age ──


@on_virtual_time
async def test_a_retry_behind_5000_other_producers_is_a_duplicate() -> None:
    """
    With the offset of the first.
    """
    life = await World(t=1).start()
    assert 0 == await write(life, 1)

    await write_many(life, range(1_000, 6_000))

    assert 0 == await write(life, 1)


@on_virtual_time
async def test_a_retry_behind_5000_others_is_a_duplicate_after_sealing_and_a_restart() -> None:
    """
    The snapshot has them all.
    """
    world = World(t=1)
    life = await world.start()
    assert 0 == await write(life, 1)
    await write_many(life, range(1_000, 6_000))
    await life.seal()
    await write(life, 2)
    await life.stop()
    life = await world.start()
    await life.engine.loaded(life.log())

    assert [0, 5_001] == [await write(life, 1), await write(life, 2)]


@on_virtual_time
async def test_snapshots_are_made_and_read_off_the_event_loop() -> None:
    """
    With thousands of producers each takes longer than a keep-alive may be late.
    """
    world = World(t=1)
    life = await world.start()
    await write(life, 1)
    await life.seal()
    await write(life, 1, sequence=1)
    await life.seal()
    assert {"producer_snapshot", "decode"} <= world.offloaded
    await life.stop()
    world.offloaded.clear()
    life = await world.start()
    await life.engine.loaded(life.log())

    assert {"decode", "remember_from"} <= world.offloaded


@on_virtual_time
async def test_a_producer_that_is_silent_for_long_is_forgotten() -> None:
    """
    Where it writes, and behind a start from the snapshot of a segment: not before its time.
    """
    world = World(t=1)
    settings = with_memory(expiration_ms=20 * MINUTE_MS, segment_ms=MINUTE_MS)
    life = await world.start(settings)
    await write(life, 1)
    await asyncio.sleep(19 * 60)
    await write(life, 2)
    assert [True, True] == [n in life.log().producers for n in (1, 2)]
    await asyncio.sleep(90)
    assert [False, True] == [n in life.log().producers for n in (1, 2)]
    assert 2 == life.log().sealed_end
    await write(life, 3)
    await asyncio.sleep(62)
    assert 3 == life.log().sealed_end
    await life.stop()

    life = await world.start(settings)
    await life.engine.loaded(life.log())

    assert [False, True, True] == [n in life.log().producers for n in (1, 2, 3)]


@on_virtual_time
async def test_an_expiration_that_changes_holds_for_producers_and_snapshots_at_once() -> None:
    """
    It is a dynamic config: a longer one keeps who is there, a shorter one forgets.
    """
    world = World(t=1)
    settings = with_memory(expiration_ms=20 * MINUTE_MS, segment_ms=MINUTE_MS)
    life = await world.start(settings)
    await write(life, 1)
    settings.producers.expiration_ms = 60 * MINUTE_MS
    await asyncio.sleep(40 * 60)
    await write(life, 2)
    await asyncio.sleep(90)
    assert 2 == life.log().sealed_end
    await life.stop()
    life = await world.start(settings)
    await life.engine.loaded(life.log())
    assert [True, True] == [n in life.log().producers for n in (1, 2)]
    settings.producers.expiration_ms = 30 * MINUTE_MS
    await write(life, 3)
    await asyncio.sleep(90)
    assert 3 == life.log().sealed_end

    assert [False, True, True] == [n in life.log().producers for n in (1, 2, 3)]


@on_virtual_time
async def test_a_producer_that_writes_is_remembered_over_restarts_and_wrong_clocks() -> None:
    """
    A wall clock that jumps by less than the expiration makes no agent forget it.
    """
    world = World(t=1)
    settings = with_memory(expiration_ms=20 * MINUTE_MS, segment_ms=MINUTE_MS)
    for n, skew_minutes in enumerate((0, 12, -5, 9, -9, 0)):
        world.wall_skew_ms = skew_minutes * MINUTE_MS
        life = await world.start(settings)
        await life.engine.loaded(life.log())
        await write(life, 1, sequence=n)
        await asyncio.sleep(90)
        assert n + 1 == life.log().sealed_end
        assert n == outcome(life, 1, sequence=n)
        await life.stop()


@pytest.mark.parametrize("hours", [25, 10_000])
@on_virtual_time
async def test_a_leader_whose_clock_is_ahead_forgets_nobody(hours: int) -> None:
    """
    For as long as it leads: a retry is still a duplicate under the next leader.
    """
    world = World(t=1)
    life = await world.start()
    await write(life, 1)
    await life.seal()
    await life.stop()
    world.wall_skew_ms = hours * 60 * MINUTE_MS
    life = await world.start()
    for n in range(3):
        await write(life, 2, sequence=n)
        await life.seal()
    await life.stop()
    world.wall_skew_ms = 0
    life = await world.start()
    await life.engine.loaded(life.log())

    assert 0 == outcome(life, 1)


@on_virtual_time
async def test_a_silent_producer_is_known_by_its_last_five_batches() -> None:
    """
    One that writes, by 64.
    """
    life = await World(t=1).start()
    for n in range(1, WINDOW + 10):
        for producer in (1, 2):
            life.produce(b"x", producer=producer, epoch=0, sequence=n)
    await asyncio.sleep(SILENT_MS / 2000)
    await write(life, 2, sequence=WINDOW + 10)
    await asyncio.sleep(SILENT_MS / 2000)

    windows = {producer: len(batches) for producer, _, batches in life.log().producers.items()}
    assert {1: SILENT_WINDOW, 2: WINDOW} == windows


@on_virtual_time
async def test_a_sweep_does_not_turn_the_loop_for_each_partition() -> None:
    """
    An agent may have thousands, and sweeps every second.
    """
    life = await World(t=250).start()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await life.engine.producers.sweep(life.engine.logs())
    counting.cancel()

    assert 1 <= turns <= 5


# ── The budget ──


@on_virtual_time
async def test_a_full_budget_refuses_new_producers_and_no_others() -> None:
    """
    With an error that every client retries without losing its sequence; known ones, duplicates,
    and batches without a producer go on, in all partitions.
    """
    life = await World(t=2).start(with_memory(producers=50))
    await write_many(life, range(50))
    await asyncio.sleep(2)

    assert "NOT_ENOUGH_REPLICAS" == outcome(life, 1_000)
    assert [50, 0, 51] == [outcome(life, 7, sequence=1), outcome(life, 0), outcome(life, -1, -1)]
    with pytest.raises(RefusedError, match="memory for idempotent producers is used up"):
        life.admit(b"x", producer=7, epoch=0, sequence=0, partition=1)
    assert (50, 2) == (life.engine.producers.producers, life.engine.counters.producers_refused)


@on_virtual_time
async def test_age_makes_room_for_new_producers() -> None:
    """
    And it is said once that there is none, and once that there is.
    """
    with structlog.testing.capture_logs() as logs:
        life = await World(t=1).start(with_memory(producers=50, expiration_ms=15 * MINUTE_MS))
        await write_many(life, range(50))
        await asyncio.sleep(60)
        assert {"NOT_ENOUGH_REPLICAS"} == {outcome(life, 1_000 + n) for n in range(20)}
        await asyncio.sleep(15 * 60)
        assert 50 == outcome(life, 1_000)

    events = [entry["event"] for entry in logs if "producer_state" in entry["event"]]
    assert ["producer_state_full", "producer_state_has_room"] == events


@on_virtual_time
async def test_what_comes_behind_a_refused_batch_does_not_pass_for_the_first() -> None:
    """
    Its second batch arrives when there is room again: it waits for the first.
    """
    life = await World(t=1).start(with_memory(producers=50, expiration_ms=15 * MINUTE_MS))
    await write_many(life, range(50))
    await asyncio.sleep(2)
    memory = life.engine.producers
    while outcome(life, 1_000) == "NOT_ENOUGH_REPLICAS":
        await asyncio.sleep(0.1)
        last = life.engine.counters.producers_refused
    assert last
    assert not memory.full

    assert "NOT_LEADER_OR_FOLLOWER" == outcome(life, 1_001, sequence=1)
    assert [51, 52] == [outcome(life, 1_001), outcome(life, 1_001, sequence=1)]
    await asyncio.sleep(6)
    assert 53 == outcome(life, 1_002, sequence=5)


@on_virtual_time
async def test_who_is_refused_does_not_keep_a_gap_of_another_from_being_told() -> None:
    """
    A budget may be used up for hours; what was lost of a producer that is known is told at once.
    """
    world = World(t=1)
    life = await world.start(with_memory(producers=1_000))
    await write_many(life, range(50))
    await life.stop()

    life = await world.start(with_memory(producers=10))
    await life.engine.loaded(life.log())
    await asyncio.sleep(7)

    assert "NOT_ENOUGH_REPLICAS" == outcome(life, 1_000)
    assert "NOT_ENOUGH_REPLICAS" == outcome(life, 1_000, sequence=1)
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" == outcome(life, 7, sequence=5)


@on_virtual_time
async def test_a_takeover_knows_every_producer_however_small_the_budget_is() -> None:
    """
    What is committed must be known; the agent refuses new producers until age makes room.
    """
    world = World(t=1)
    life = await world.start(with_memory(producers=1_000))
    await write_many(life, range(200))
    await life.seal()
    await write_many(life, range(200, 400))
    await life.stop()

    life = await world.start(with_memory(producers=10))
    await life.engine.loaded(life.log())
    await asyncio.sleep(2)

    assert list(range(400)) == [outcome(life, n) for n in range(400)]
    assert "NOT_ENOUGH_REPLICAS" == outcome(life, 1_000)
