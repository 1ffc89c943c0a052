"""What goes wrong, and when: from the seed."""

import asyncio
from typing import TYPE_CHECKING

from driftlog_metadata.transactions import lease_id_of
from tests.simulation.faults import Weather

if TYPE_CHECKING:
    from tests.simulation.world import World

_FAULTS = ("kill", "power", "stop", "expire", "disk", "outage", "weather", "weather")


async def chaos(world: "World") -> None:
    """Faults for some time, one after the other."""
    rng = world.rng
    end = world.loop.now_s + rng.uniform(10, 45)
    while world.loop.now_s < end:
        await asyncio.sleep(rng.uniform(0.2, 4))
        await _fault(world, rng.choice(_FAULTS))


async def _fault(world: "World", fault: str) -> None:
    rng, process = world.rng, world.process
    engine = process.engine
    match fault:
        case "kill" | "power":
            world.kill(fault)
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
    world.process.disk.sync_fails = world.process.disk.write_fails = 0.0
