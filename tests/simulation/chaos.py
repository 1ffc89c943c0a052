"""What goes wrong, and when: from the seed."""

import asyncio
from typing import TYPE_CHECKING

from driftlog_metadata.transactions import lease_id_of
from tests.simulation.faults import Weather

if TYPE_CHECKING:
    from tests.simulation.world import World

_FAULTS = (
    *("kill", "power", "disk lost", "stop", "stop early", "expire", "suspend"),
    *("disk", "outage", "weather", "weather"),
)
_RARE = {"disk lost": 0.3, "stop early": 0.5, "suspend": 0.5}


async def chaos(world: "World") -> None:
    """Faults for some time, one after the other."""
    rng = world.rng
    end = world.loop.now_s + rng.uniform(10, 45)
    while world.loop.now_s < end:
        await asyncio.sleep(rng.uniform(0.2, 4))
        fault = rng.choice(_FAULTS)
        if rng.random() < _RARE.get(fault, 1.0):
            await _fault(world, fault)


async def _fault(world: "World", fault: str) -> None:
    rng, process = world.rng, world.process
    engine = process.engine
    match fault:
        case "kill" | "power" | "disk lost":
            world.kill(fault)
        case "stop early":
            # Killed, begun again, and stopped while it takes over.
            world.kill("kill")
            for _ in range(200):
                await asyncio.sleep(0.05)
                if world.process is not process:
                    break
            await asyncio.sleep(rng.uniform(0, 0.5))
            world.note("stop early")
            world.process.stop()
        case "suspend":
            world.pass_time(rng.uniform(6.5, 20))
        case "stop" if engine is not None:
            world.note("stop")
            process.stop()
        case "expire" if engine is not None:
            world.note("expire")
            await world.metadata.revoke_lease(lease_id_of(engine.agent.session_id))
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
