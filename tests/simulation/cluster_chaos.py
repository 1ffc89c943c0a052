"""What goes wrong in a cluster, and when: from the seed.

Beside what can happen to one agent (`chaos`): machines that are cut off from one store or both,
either way; that are paused for longer than their lease while the others go on; that are killed,
paused or cut off at the very request that claims, releases or commits; that drain, join, leave.
"""

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.chaos import new_weather, strike
from tests.simulation.faults import Cut, Weather
from tests.simulation.loop import NOBODY
from tests.simulation.node import Node
from tests.simulation.one_sided import has_refusals, refuse

if TYPE_CHECKING:
    from tests.simulation.world import World

_FAULTS: Final = (
    *("kill", "kill", "away", "power", "brownout", "disk lost", "disk"),
    *("stop", "stop", "stop early", "rolling restart", "join", "leave"),
    *("pause", "pause", "cut", "cut", "at once", "at once", "at once", "at once"),
    *("weather", "weather", "slow", "outage", "storm", "lag", "compaction", "suspend"),
)
_RARE: Final = {"disk lost": 0.3, "join": 0.5, "leave": 0.3, "suspend": 0.3, "rolling restart": 0.5}
_MOMENTS: Final = (
    *("release ", "release ", "release ", "claim ", "claim ", "Put:/driftlog/v1/partitions/"),
    *("Put:/driftlog/v1/heads/", "Put:/driftlog/v1/heads/", "Put:/driftlog/v1/flushes/"),
    *("put flush/", "put flush/", "Put:/driftlog/v1/sessions/", ""),
)
"""Of a request that is about to be answered: releases and claims, sealed ends, commits,
consolidations, flush objects, what a session says of itself, any."""
_MOMENTS_OF_GROUPS: Final = (*_MOMENTS, *("Put:/driftlog/v1/groups/",) * 6)
"""Where there are groups, also of one that stores what a group has decided."""
_SLOW_MS: Final = (50.0, 900.0)
_MOST_NODES: Final = 5


async def cluster_chaos(world: "World") -> None:
    """Faults for some time, one after the other; some go on while the next ones come."""
    rng = world.rng
    for node in world.nodes:
        node.has_threads = rng.random() < 0.5
        node.wall_skew_ms = rng.choice((0.0, rng.uniform(-2_000, 2_000)))
        node.stays_away_s = rng.choice(((0.01, 0.5, 3.0, 9.0), (0.01, 9.0, 20.0), (0.5, 1.0)))
    end = world.loop.now_s + rng.uniform(10, 45)
    async with asyncio.TaskGroup() as lasting:
        if world.seed // 100 % 2:
            lasting.create_task(_withhold(world, Random(f"withheld {world.seed}"), end))
        if has_refusals(world.seed):
            lasting.create_task(refuse(world, Random(f"refused {world.seed}"), end))
        while world.loop.now_s < end:
            await asyncio.sleep(rng.uniform(0.2, 4))
            fault = rng.choice(_FAULTS)
            if rng.random() < _RARE.get(fault, 1.0):
                lasting.create_task(_strike(world, world.some_node(), fault))


async def _strike(world: "World", node: Node, fault: str) -> None:
    rng = world.rng
    match fault:
        case "away":
            node.stays_away_s = (9.0, 15.0)
            node.kill("kill")
        case "pause":
            seconds = rng.choice((rng.uniform(0.5, 5), rng.uniform(6.5, 20)))
            await node.pause(seconds, threads=rng.random() < 0.7)
        case "cut":
            await _cut(node)
        case "at once":
            await _at_once(node)
        case "rolling restart":
            await _rolling_restart(world)
        case "join" if len(world.nodes) < _MOST_NODES:
            world.join()
        case "leave" if sum(
            not n.last_life for n in world.nodes
        ) > 1 and world.seal_agents.may_leave(node):
            await _leave(node)
        case "outage":
            for weather in rng.choice(_weathers(world)):
                weather.down = not weather.down
        case "storm":
            # The bucket says 503 to nearly everybody.
            world.note("storm")
            _, weathers = _weathers(world)
            for weather in weathers:
                weather.refused = 0.9
            await asyncio.sleep(rng.uniform(0.5, 8))
            for weather in weathers:
                weather.refused = 0.0
        case "lag":
            for weather in _weathers(world)[0]:
                weather.watch_lag_ms = rng.choice((0.0, 300.0, 5_000.0))
        case "weather":
            for one in world.nodes if rng.random() < 0.5 else (node,):
                for weather in (one.metadata_weather, one.store_weather):
                    new_weather(rng, weather)
                    weather.late = rng.choice((0.0, 0.02, 0.15))
        case "slow":
            node.metadata_weather.latency_ms = rng.choice(((1.0, 10.0), _SLOW_MS))
        case "compaction":
            world.metadata.compact(world.metadata.revision)
        case _:
            await strike(node, fault)


async def _withhold(world: "World", rng: Random, end_s: float) -> None:
    """One object after the other is given to nobody; for longer than it takes to give up what needs
    it, or less."""
    while world.loop.now_s < end_s:
        await asyncio.sleep(rng.uniform(1, 12))
        kind = rng.choice(("flush/", "flush/", "/manifest/", "/manifest/", "/producers/"))
        newest: dict[str, str] = {}
        async for page in world.bucket.list(""):
            for key in (found.key for found in page.objects if kind in found.key):
                # Of manifests the newest comes first, and the others are not read.
                newest.setdefault(key.rpartition("/")[0] if kind == "/manifest/" else key, key)
        if newest:
            key = rng.choice(list(newest.values()))
            world.note(f"withheld {kind.strip('/')}")
            world.withheld.add(key)
            await asyncio.sleep(rng.choice((rng.uniform(0.5, 8), rng.uniform(15, 40))))
            world.withheld.discard(key)


def _weathers(world: "World") -> tuple[list[Weather], list[Weather]]:
    nodes = world.nodes
    return [n.metadata_weather for n in nodes], [n.store_weather for n in nodes]


async def _cut(node: Node) -> None:
    rng = node.world.rng
    peer = rng.choice(("metadata", "metadata", "bucket", "both"))
    if rng.random() < 0.3:
        node.metadata_weather.latency_ms = _SLOW_MS  # as links are that are about to break
        await asyncio.sleep(rng.uniform(2, 4))
    node.world.note(f"cut off from {peer}")
    node.cut(peer, rng.choice((Cut.REQUESTS, Cut.ANSWERS)))
    await asyncio.sleep(rng.choice((rng.uniform(0.3, 4), rng.uniform(6, 15))))
    node.cut(peer, None)


async def _at_once(node: Node) -> None:
    """When the next request of a kind has acted, and nobody has heard of it yet; or of a group's,
    when it is on its way."""
    world, rng = node.world, node.world.rng
    moment = rng.choice(_MOMENTS if world.groups is None else _MOMENTS_OF_GROUPS)
    early = "/groups/" in moment and rng.random() < 0.7
    done = asyncio.Event()
    seconds = rng.choice((rng.uniform(0.5, 5), rng.uniform(6.5, 15)))
    how = rng.choice(("kill", "power", "pause", "pause", "cut", "cut"))

    def act() -> None:
        world.note(f"{how} at {moment.rpartition('v1/')[2] or 'any request'}")
        match how:
            case "kill" | "power":
                # Not from inside the agent's own call.
                world.loop.call_soon(partial(node.kill, how), context=NOBODY)
            case "cut":
                node.cut("metadata", rng.choice((Cut.REQUESTS, Cut.ANSWERS)))
            case _:
                pass
        done.set()

    node.trap(moment, act, early=early)
    if moment == "release ":
        # What others hand over when somebody comes, or what it hands over itself.
        (node if rng.random() < 0.3 else world.some_node()).process.stop()
    try:
        async with asyncio.timeout(15):
            await done.wait()
    except TimeoutError:
        return
    if how == "pause":
        await node.pause(seconds)
    elif how == "cut":
        await asyncio.sleep(seconds)
        node.cut("metadata", None)


async def _rolling_restart(world: "World") -> None:
    world.note("rolling restart")
    for node in list(world.nodes):
        process = node.process
        process.stop()
        for _ in range(200):
            if node.process is not process and node.process.engine is not None:
                break
            await asyncio.sleep(0.1)


async def _leave(node: Node) -> None:
    """For good, in order or not; its disk is never seen again."""
    world = node.world
    world.note("leave")
    node.left = True
    if world.rng.random() < 0.5:
        node.last_life = True
        node.kill("kill")
    else:
        await node.leave()
