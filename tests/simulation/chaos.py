"""What goes wrong, and when: from the seed."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from driftlog_metadata.transactions.session_transactions import lease_id_of
from tests.simulation.faults import Weather
from tests.simulation.node import Node

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
    """Faults of one agent for some time, one after the other."""
    rng, (node,) = world.rng, world.nodes
    end = world.loop.now_s + rng.uniform(10, 45)
    faults = (*_FAULTS, *_BEGINNINGS) if world.cuts_beginnings else _FAULTS
    while world.loop.now_s < end:
        await asyncio.sleep(rng.uniform(0.2, 4))
        fault = rng.choice(faults)
        if rng.random() < _RARE.get(fault, 1.0):
            await strike(node, fault)


async def strike(node: Node, fault: str) -> None:
    """One of the faults that need no other agent."""
    world, rng, process = node.world, node.world.rng, node.process
    engine = process.engine
    match fault:
        case "kill" if node.platter.away and rng.random() < 0.4:
            node.kill("disk back")
        case "kill" | "power" | "disk lost":
            node.kill(fault)
        case "brownout":
            # Nothing is committed, the disk fails now and then, and power goes.
            node.store_weather.down = True
            disk = process.disk
            disk.sync_fails, disk.write_fails = rng.choice(((0.4, 0.0), (0.4, 0.1), (0.0, 0.3)))
            await asyncio.sleep(rng.uniform(1, 6))
            node.kill("power")
            node.store_weather.down = False
        case "disk swapped":
            await _swap_disks(node)
        case "cut short" if engine is not None:
            await _cut_short(node)
        case "torn":
            await _tear(node)
        case "stop early":
            # Killed, begun again, and stopped while it takes over.
            node.kill("kill")
            await _until(lambda: node.process is not process)
            await asyncio.sleep(rng.uniform(0, 0.5))
            world.note("stop early")
            node.process.stop()
        case "suspend":
            world.note("suspended")
            world.pass_time(rng.uniform(6.5, 20))
        case "stop" if engine is not None:
            world.note("stop")
            process.stop()
        case "expire" if engine is not None:
            await expire(node)
        case "disk":
            node.platter.full = not node.platter.full
            process.disk.sync_fails = rng.choice((0.0, 0.3))
            process.disk.write_fails = rng.choice((0.0, 0.05, 0.3))
            process.disk.folder_fails = rng.choice((0.0, 0.1, 0.4))
        case "outage":
            weather = rng.choice((node.metadata_weather, node.store_weather))
            weather.down = not weather.down
        case "weather":
            new_weather(rng, node.metadata_weather)
            new_weather(rng, node.store_weather)
        case _:
            pass


async def _swap_disks(node: Node) -> None:
    """A disk goes with what was not committed, and is back after a session without it has led.

    The first session that has it again leads, and is killed before it is done with it.
    """
    node.store_weather.down = True
    await asyncio.sleep(node.world.rng.uniform(0.5, 3))
    process = node.process
    node.kill("disk lost")
    node.store_weather.down = False
    await _until(lambda: node.process is not process and node.process.serving)
    await asyncio.sleep(node.world.rng.uniform(0, 1))
    process = node.process
    node.kill("disk back")
    await _until(lambda: node.process is not process and node.process.leads)
    await asyncio.sleep(node.world.rng.uniform(0, 0.3))
    node.kill("kill")


async def _cut_short(node: Node) -> None:
    """A session begins, and cannot load what is sealed: it ends before that, or goes on after.

    Copies of old batches come meanwhile, and wait for it.
    """
    node.store_weather.down = node.metadata_weather.down = node.platter.full = False
    await _until(lambda: _is_sealed(node))
    engine = node.process.engine
    await expire(node)
    await _until(lambda: node.process.engine is not engine and node.process.serving)
    node.store_weather.down = True
    for producer in node.world.producers:
        for _ in range(3):
            producer.send_old_one()
    await asyncio.sleep(node.world.rng.uniform(0.2, 2))
    if node.world.rng.random() < 0.6:
        await expire(node)
    node.store_weather.down = False


def _is_sealed(node: Node) -> bool:
    engine = node.process.engine
    return engine is not None and any(log.sealed_end for log in engine.logs())


async def expire(node: Node) -> None:
    engine = node.process.engine
    if engine is not None:
        node.world.note("expire")
        await node.world.metadata.revoke_lease(lease_id_of(engine.agent.session_id))


async def _tear(node: Node) -> None:
    """A file ends torn, what was in it is committed, what is in the next one is not: a crash."""
    disk = node.process.disk
    node.store_weather.down = node.platter.full = False
    disk.write_fails = 1.0
    await asyncio.sleep(node.world.rng.uniform(0.01, 0.3))
    disk.write_fails = 0.0
    await asyncio.sleep(node.world.rng.uniform(0.9, 1.3))  # then the disk is tried again
    node.store_weather.down = True
    await asyncio.sleep(node.world.rng.uniform(0.1, 0.8))
    node.kill(node.world.rng.choice(("kill", "power")))
    node.store_weather.down = False


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(1_500):
        if holds():
            return
        await asyncio.sleep(0.01)


def new_weather(rng: Random, weather: Weather) -> None:
    """Anything from none to bad."""
    strength = rng.choice((0.0, 0.05, 0.2))
    weather.refused = strength * rng.random()
    weather.lost_before = strength * rng.random()
    weather.lost_after = strength * rng.random()
    weather.silent = rng.choice((0.0, 0.5))
    weather.late = rng.choice((0.0, 0.02))


def calm(world: "World") -> None:
    """From now on everything works."""
    world.calm = True
    for node in world.nodes:
        node.recover()


async def grow_old(world: "World") -> None:
    """More than a grace period goes by, with a look of the collector every two hours."""
    for _ in range(9):
        world.note("suspended")
        world.pass_time(1.8 * 3_600)
        await asyncio.sleep(world.rng.uniform(1, 8))
