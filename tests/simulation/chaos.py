"""What goes wrong, and when: from the seed."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftlog_metadata.transactions import lease_id_of
from tests.simulation.faults import Weather

if TYPE_CHECKING:
    from tests.simulation.world import World

_FAULTS = (
    *(
        "kill",
        "power",
        "brownout",
        "disk lost",
        "disk swapped",
        "stop",
        "stop early",
        "expire",
        "suspend",
    ),
    *("disk", "outage", "weather", "weather"),
)
_BEGINNINGS = ("cut short", "cut short", "cut short", "torn", "torn", "torn")
_RARE = {"disk lost": 0.3, "disk swapped": 0.5, "stop early": 0.5, "suspend": 0.5}


async def chaos(world: "World") -> None:
    """Faults for some time, one after the other."""
    rng = world.rng
    end = world.loop.now_s + rng.uniform(10, 45)
    faults = (*_FAULTS, *_BEGINNINGS) if world.cuts_beginnings else _FAULTS
    while world.loop.now_s < end:
        await asyncio.sleep(rng.uniform(0.2, 4))
        fault = rng.choice(faults)
        if rng.random() < _RARE.get(fault, 1.0):
            await _fault(world, fault)


async def _fault(world: "World", fault: str) -> None:
    rng, process = world.rng, world.process
    engine = process.engine
    match fault:
        case "kill" if world.platter.away and rng.random() < 0.4:
            world.kill("disk back")
        case "kill" | "power" | "disk lost":
            world.kill(fault)
        case "brownout":
            # Nothing is committed, the disk fails now and then, and power goes.
            world.store_weather.down = True
            disk = process.disk
            disk.sync_fails, disk.write_fails = rng.choice(((0.4, 0.0), (0.4, 0.1), (0.0, 0.3)))
            await asyncio.sleep(rng.uniform(1, 6))
            world.kill("power")
            world.store_weather.down = False
        case "disk swapped":
            await _swap_disks(world)
        case "cut short" if engine is not None:
            await _cut_short(world)
        case "torn":
            await _tear(world)
        case "stop early":
            # Killed, begun again, and stopped while it takes over.
            world.kill("kill")
            await _until(lambda: world.process is not process)
            await asyncio.sleep(rng.uniform(0, 0.5))
            world.note("stop early")
            world.process.stop()
        case "suspend":
            world.pass_time(rng.uniform(6.5, 20))
        case "stop" if engine is not None:
            world.note("stop")
            process.stop()
        case "expire" if engine is not None:
            await _expire(world)
        case "disk":
            world.platter.full = not world.platter.full
            process.disk.sync_fails = rng.choice((0.0, 0.3))
            process.disk.write_fails = rng.choice((0.0, 0.05, 0.3))
            process.disk.folder_fails = rng.choice((0.0, 0.1, 0.4))
        case "outage":
            weather = rng.choice((world.metadata_weather, world.store_weather))
            weather.down = not weather.down
        case "weather":
            _new_weather(world, world.metadata_weather)
            _new_weather(world, world.store_weather)
        case _:
            pass


async def _swap_disks(world: "World") -> None:
    """A disk goes with what was not committed, and is back after a session without it has led.

    The first session that has it again leads, and is killed before it is done with it.
    """
    world.store_weather.down = True
    await asyncio.sleep(world.rng.uniform(0.5, 3))
    process = world.process
    world.kill("disk lost")
    world.store_weather.down = False
    await _until(lambda: world.process is not process and world.process.serving)
    await asyncio.sleep(world.rng.uniform(0, 1))
    process = world.process
    world.kill("disk back")
    await _until(lambda: world.process is not process and world.process.leads)
    await asyncio.sleep(world.rng.uniform(0, 0.3))
    world.kill("kill")


async def _cut_short(world: "World") -> None:
    """A session begins, and cannot load what is sealed: it ends before that, or goes on after.

    Copies of old batches come meanwhile, and wait for it.
    """
    world.store_weather.down = world.metadata_weather.down = world.platter.full = False
    await _until(lambda: _is_sealed(world))
    engine = world.process.engine
    await _expire(world)
    await _until(lambda: world.process.engine is not engine and world.process.serving)
    world.store_weather.down = True
    for producer in world.producers:
        for _ in range(3):
            producer.send_old_one()
    await asyncio.sleep(world.rng.uniform(0.2, 2))
    if world.rng.random() < 0.6:
        await _expire(world)
    world.store_weather.down = False


def _is_sealed(world: "World") -> bool:
    engine = world.process.engine
    return engine is not None and any(log.sealed_end for log in engine.logs())


async def _expire(world: "World") -> None:
    engine = world.process.engine
    if engine is not None:
        world.note("expire")
        await world.metadata.revoke_lease(lease_id_of(engine.agent.session_id))


async def _tear(world: "World") -> None:
    """A file ends torn, what was in it is committed, what is in the next one is not: a crash."""
    disk = world.process.disk
    world.store_weather.down = world.platter.full = False
    disk.write_fails = 1.0
    await asyncio.sleep(world.rng.uniform(0.01, 0.3))
    disk.write_fails = 0.0
    await asyncio.sleep(world.rng.uniform(0.9, 1.3))  # then the disk is tried again
    world.store_weather.down = True
    await asyncio.sleep(world.rng.uniform(0.1, 0.8))
    world.kill(world.rng.choice(("kill", "power")))
    world.store_weather.down = False


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(1_500):
        if holds():
            return
        await asyncio.sleep(0.01)


def _new_weather(world: "World", weather: Weather) -> None:
    rng = world.rng
    strength = rng.choice((0.0, 0.05, 0.2))
    weather.refused = strength * rng.random()
    weather.lost_before = strength * rng.random()
    weather.lost_after = strength * rng.random()
    weather.silent = rng.choice((0.0, 0.5))
    weather.late = rng.choice((0.0, 0.02))


def calm(world: "World") -> None:
    """From now on everything works."""
    for weather in (world.metadata_weather, world.store_weather):
        weather.refused = weather.lost_before = weather.lost_after = weather.late = 0.0
        weather.down = False
    world.platter.full = False
    disk = world.process.disk
    disk.sync_fails = disk.write_fails = disk.folder_fails = 0.0


async def grow_old(world: "World") -> None:
    """More than a grace period goes by, with a look of the collector every two hours."""
    for _ in range(9):
        world.pass_time(1.8 * 3_600)
        await asyncio.sleep(world.rng.uniform(1, 8))
