"""`segment.ms` counts from the flush, under every leader, however often leaders change."""

import asyncio
from dataclasses import replace

from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_metadata.schema.codec import decode_partition_state
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, PARTITIONS_PREFIX
from tests.agents.log.lives import SETTINGS, Keys, World, now_ms, on_virtual_time

MINUTE_MS, DAY_MS = 60_000.0, 86_400_000.0


def sealing(age_ms: float) -> SealSettings:
    """A partition is sealed at this age, whatever its size."""
    return SealSettings(segment_ms=age_ms, small_ms=age_ms)


async def sealed_ends(world: World, *, lives: int, life_s: float, age_ms: float) -> list[int]:
    """The sealed end at the end of each of *lives*, in each of which one record is produced."""
    settings = replace(SETTINGS, seal=sealing(age_ms))
    ends = []
    for _ in range(lives):
        life = await world.start(settings)
        life.produce(b"x" * 1_000)
        await asyncio.sleep(life_s)
        ends.append(life.log().sealed_end)
        await life.stop()
    return ends


@on_virtual_time
async def test_restarts_more_often_than_segment_ms_do_not_postpone_sealing() -> None:
    """
    An agent that is restarted every 50 seconds seals what is a minute old; what is unsealed, and
    what the metadata store holds of it, stay what two lives have made.
    """
    world = World(t=1)

    ends = await sealed_ends(world, lives=30, life_s=50, age_ms=MINUTE_MS)

    assert [] == [(n, end) for n, end in enumerate(ends) if end < n]
    _, records = await world.metadata.get_prefix(FLUSHES_PREFIX)
    assert len(records) <= 2


@on_virtual_time
async def test_what_is_consolidated_keeps_the_time_of_its_flush() -> None:
    """
    A rewrite, and a rewrite of a rewrite, are as old as what is in them.
    """
    world = World(t=1)
    settings = replace(
        SETTINGS,
        seal=sealing(10 * MINUTE_MS),
        consolidation=replace(
            SETTINGS.consolidation, age_ms=1_000, dead_age_ms=500, records=2, large_records=2
        ),
    )
    rewrites = 0
    began_ms = now_ms()
    for _ in range(12):
        life = await world.start(settings)
        for _ in range(3):
            await life.produce(b"x" * 1_000).answer()
        await asyncio.sleep(50)
        rewrites += life.engine.flush_records.rewrites
        end = life.log().sealed_end
        await life.stop()

    assert now_ms() - began_ms < 12 * MINUTE_MS
    assert rewrites > 12
    assert end >= 3


@on_virtual_time
async def test_a_wall_clock_that_stands_does_not_postpone_sealing() -> None:
    """
    What this leader has known for `segment.ms` by a clock that runs is due.
    """
    world = World(t=1)
    world.wall_ms = lambda: 1_700_000_000_000
    settings = replace(SETTINGS, seal=sealing(MINUTE_MS))
    life = await world.start(settings)
    await life.produce(b"x").answer()

    await asyncio.sleep(62)

    assert 1 == life.log().sealed_end


@on_virtual_time
async def test_a_wall_clock_that_was_set_back_does_not_postpone_sealing() -> None:
    """
    Neither that of a flush that is in the future now, nor, behind a restart, what follows it.
    """
    world = World(t=1)
    settings = replace(SETTINGS, seal=sealing(MINUTE_MS))
    life = await world.start(settings)
    world.wall_skew_ms = DAY_MS
    await life.produce(b"x").answer()
    world.wall_skew_ms = 0.0
    await asyncio.sleep(40)
    assert 0 == life.log().sealed_end
    await life.produce(b"y").answer()
    await asyncio.sleep(21)
    assert 2 == life.log().sealed_end

    world.wall_skew_ms = DAY_MS
    await life.produce(b"z").answer()
    world.wall_skew_ms = 0.0
    await life.stop()
    life = await world.start(settings)
    await life.produce(b"z").answer()
    await asyncio.sleep(40)
    await life.stop()
    life = await world.start(settings)
    await asyncio.sleep(25)

    assert 4 == life.log().sealed_end


@on_virtual_time
async def test_a_wall_clock_that_was_set_forward_seals_early_once() -> None:
    """
    What comes after it is as old as it is.
    """
    world = World(t=1)
    life = await world.start(replace(SETTINGS, seal=sealing(MINUTE_MS)))
    await life.produce(b"x").answer()
    world.wall_skew_ms = DAY_MS
    await asyncio.sleep(3)
    assert 1 == life.log().sealed_end
    await life.produce(b"y").answer()
    await asyncio.sleep(55)

    assert 1 == life.log().sealed_end


@on_virtual_time
async def test_the_sessions_in_a_partitions_key_are_bounded() -> None:
    """
    Forty restarts within `segment.ms`, each with a record: the list is as long as the bound and a
    little, and the flush records go with it.
    """
    world = World(t=1)
    settings = replace(SETTINGS, seal=sealing(DAY_MS))
    longest = 0
    for _ in range(40):
        life = await world.start(settings)
        await life.produce(b"x").answer()
        await asyncio.sleep(5)
        await life.stop()
        _, (kv,) = await world.metadata.get_prefix(PARTITIONS_PREFIX)
        longest = max(longest, len(decode_partition_state(kv.value).sessions))

    assert 4 < longest <= settings.seal.sessions + 2
    _, records = await world.metadata.get_prefix(FLUSHES_PREFIX)
    assert len(records) <= settings.seal.sessions + 2


@on_virtual_time
async def test_sessions_that_only_wait_on_the_disk_do_not_have_their_partition_sealed() -> None:
    """
    What sealing does not shorten is no reason to seal.
    """
    world = World(t=1)
    life = await world.start(replace(SETTINGS, seal=sealing(DAY_MS)))
    await life.produce(b"x").answer()
    life.log().sessions = (*(f"{n:032x}" for n in range(20)), life.session_id)

    await asyncio.sleep(5)

    assert 0 == life.log().sealed_end


@on_virtual_time
async def test_a_read_that_is_never_answered_does_not_stop_sealing() -> None:
    """
    The manifest is read back behind each segment; without a deadline the agent seals nothing more.
    """
    world = World(t=2)
    life = await world.start(replace(SETTINGS, seal=sealing(1_000)))
    await life.produce(b"x").answer()
    await asyncio.sleep(3)
    assert 1 == life.log().sealed_end
    world.bucket.silent = Keys({"/manifest/"})
    await life.produce(b"y").answer()
    await asyncio.sleep(3)
    world.bucket.silent = set()
    await life.produce(b"z", partition=1).answer()

    await asyncio.sleep(30)

    assert (2, 1) == (life.log().sealed_end, life.log(1).sealed_end)
