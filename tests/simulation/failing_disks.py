"""A disk that fails for a moment while nothing is committed, in two seeds of a hundred.

    the other faults are over ──▶ the bucket is down ──▶ syncs fail, or writes ──▶ the disk is well
                              ──▶ producers go on    ──▶ the bucket is back,   and all that again

Promises: acks=1 is told of what the disk has, and of nothing behind a hole of it; and is taken
again when the disk is well (`world`).
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.world import World

_SEEDS: Final = (61, 91)
"""Last two digits, each of one agent."""
_ROUNDS: Final = 4
_BATCHES: Final = 6
_TRIED_AGAIN_S: Final = 1.1


def has_failing_disk(seed: int) -> bool:
    """Whether the seed has it."""
    return seed % 100 in _SEEDS


async def let_disk_fail(world: "World") -> None:
    """A few times."""
    rng = Random(f"failing disk {world.seed}")
    (node,) = world.nodes
    for _ in range(_ROUNDS):
        await world.ready()
        disk, topics = node.process.disk, (await read_topics(world)).values()
        world.note("disk fails")
        node.store_weather.down = True
        for topic in topics:
            world.produce_to(topic, batches=_BATCHES)
        await asyncio.sleep(rng.uniform(0.01, 0.3))
        if rng.random() < 0.8:
            disk.sync_fails = 1.0
        else:
            disk.write_fails = 1.0
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        disk.sync_fails = disk.write_fails = 0.0
        await asyncio.sleep(_TRIED_AGAIN_S)
        for topic in topics:
            world.produce_to(topic, batches=_BATCHES)
        await asyncio.sleep(rng.uniform(0.5, 1.5))
        node.store_weather.down = False
        await asyncio.sleep(rng.uniform(1, 3))
