"""Faults that are aimed: at moments in which one clause of the product alone keeps a promise.

    seeds 500 to 599 of a thousand
    one agent    its session ends while producers with acks=1 wait for a slow sync, or a Fetch for
                 more records; its disk refuses a few writes, and takes those behind them, while
                 nothing is committed;
                 at last, the disk is away while another session leads and commits, and then back
    a cluster    releases and what groups write travel for seconds, or are not answered;
                 coordinators die while what a group has decided is on its way, and lost;
                 at last, one hears late that another one has the group (`blind_coordinators`)

Other seeds meet these moments by chance: one of hundreds does, and another one whenever a schedule
changes.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_metadata.schema.keys import GROUPS_PREFIX
from driftlog_metadata.transactions.session_transactions import lease_id_of
from tests.simulation.faults import Cut
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_AIMED_AT: Final = ("release ", "/groups/")
_STALLED: Final = 0.8
"""Of syncs, until one is waited for."""
_LONGEST_S: Final = 5.0
_LEASE_IS_OVER_S: Final = 9.0


def is_aimed(seed: int) -> bool:
    """Whether the seed has them: a hundred of every thousand."""
    return seed // 100 % 10 == 5


@dataclass(frozen=True, slots=True)
class Aim:
    """At requests to the metadata store, of one agent."""

    rng: Random

    def delay_ms(self, what: str) -> float:
        """How long the request travels, beside what all do."""
        if not any(kind in what for kind in _AIMED_AT) or self.rng.random() < 0.7:
            return 0.0
        return self.rng.uniform(500, 20_000 if "/offsets/" in what else 7_000)

    def loses_answer(self, what: str) -> bool:
        """Whether nobody hears what came of it."""
        return any(kind in what for kind in _AIMED_AT) and self.rng.random() < 0.3


@dataclass(frozen=True, slots=True)
class SlowKeepAlives(Aim):
    """Keep-alives travel for as long as they may: a lease ends well before a time to live after the
    answer."""

    def delay_ms(self, what: str) -> float:
        return self.rng.uniform(300, 900) if what == "keep_alive" else 0.0

    def loses_answer(self, what: str) -> bool:
        return False


def has_slow_keep_alives(seed: int) -> bool:
    """Whether keep-alives are slow: two in a hundred seeds, of several agents."""
    return seed % 100 in (75, 95) and not is_aimed(seed)


def aim(seed: int, node: int) -> Aim | None:
    """At what agent *node* asks the metadata store; None: at nothing."""
    rng = Random(f"aim {seed} {node}")
    if has_slow_keep_alives(seed):
        return SlowKeepAlives(rng)
    return Aim(rng) if is_aimed(seed) else None


def aimed_faults(world: "World") -> list[Coroutine[Any, Any, None]]:
    """What goes on while there are faults, to be cancelled."""
    if not is_aimed(world.seed):
        return []
    if not world.many:
        at_fetches = [] if world.requests is None else [_end_during_fetches(world)]
        return [_end_during_syncs(world), _make_holes(world), *at_fetches]
    has_kip_848 = world.groups is not None and world.groups.ownership is not None
    return [_lose_decisions(world)] if has_kip_848 else []


async def _end_during_syncs(world: "World") -> None:
    """Sessions end while somebody waits for a sync."""
    rng = Random(f"end during syncs {world.seed}")
    (node,) = world.nodes
    while True:
        await asyncio.sleep(rng.uniform(2, 10))
        disk = node.process.disk
        stalls, disk.sync_stalls = disk.sync_stalls, _STALLED
        try:
            async with asyncio.timeout(_LONGEST_S):
                while not (disk.syncing and _asks_for_syncs(world)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            continue
        finally:
            disk.sync_stalls = stalls
        engine = node.process.engine
        if engine is not None:
            world.note("expire during a sync")
            await world.metadata.revoke_lease(lease_id_of(engine.agent.session_id))


async def _end_during_fetches(world: "World") -> None:
    """Sessions end while a Fetch waits."""
    rng = Random(f"end during fetches {world.seed}")
    (node,) = world.nodes
    assert world.requests is not None
    while True:
        await asyncio.sleep(rng.uniform(1, 6))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_S):
                while not world.requests.waits:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            engine = node.process.engine
            if engine is not None:
                world.note("expire during a fetch")
                await world.metadata.revoke_lease(lease_id_of(engine.agent.session_id))


async def _make_holes(world: "World") -> None:
    """A batch is not in the file, nor committed, when the disk takes the next ones."""
    rng = Random(f"holes {world.seed}")
    (node,) = world.nodes
    while True:
        await asyncio.sleep(rng.uniform(2, 12))
        world.note("hole")
        node.store_weather.down, node.process.disk.write_fails = True, 1.0
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        node.process.disk.write_fails = 0.0
        await asyncio.sleep(rng.uniform(1.5, 4))
        node.store_weather.down = False


async def swap_disks(world: "World") -> None:
    """When the other faults are over: a disk comes back with what was not committed, after a
    session without it has committed something in its place, and is over."""
    rng = Random(f"swap {world.seed}")
    (node,) = world.nodes
    await world.ready()
    for topic in (await read_topics(world)).values():
        world.produce_to(topic, batches=20)
    await asyncio.sleep(rng.uniform(0.5, 2))
    node.store_weather.down = True
    await asyncio.sleep(rng.uniform(1, 3))
    stays_away_s, node.stays_away_s = node.stays_away_s, (_LEASE_IS_OVER_S,)
    node.kill("disk lost")
    node.store_weather.down = False
    before, topics = dict(world.ledger.ends), (await read_topics(world)).values()
    for topic in topics:
        world.produce_to(topic, batches=2)
    while world.ledger.ends == before:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    process = node.process
    node.kill("disk back")
    while node.process is process or not node.process.leads:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    node.stays_away_s = (0.01,)
    node.kill("kill")  # before what is left was appended elsewhere: the next one looks at it, too
    await world.ready()
    node.stays_away_s = stays_away_s


async def _lose_decisions(world: "World") -> None:
    """A coordinator dies, and what a group has decided just now is never stored: at first when it
    begins, and its partitions are nobody's."""
    rng = Random(f"decisions {world.seed}")
    assert world.groups is not None
    assert world.groups.ownership is not None
    group = world.groups.ownership.name
    await asyncio.sleep(rng.uniform(0, 1))
    while True:
        coordinators: asyncio.Queue[Node] = asyncio.Queue()

        def cut(node: "Node", found: "asyncio.Queue[Node]" = coordinators) -> None:
            node.cut("metadata", Cut.REQUESTS)
            found.put_nowait(node)

        traps = [(node, partial(cut, node)) for node in world.nodes if not node.last_life]
        for node, trap in traps:
            node.trap(f"Put:{GROUPS_PREFIX}{group}", trap, early=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await coordinators.put(await coordinators.get())
        for node, trap in traps:
            node.untrap(trap)
        await asyncio.sleep(rng.uniform(0.05, 1))  # who is told early is told by now
        while not coordinators.empty():
            node = coordinators.get_nowait()
            node.kill("kill")
            node.cut("metadata", None)
        await asyncio.sleep(rng.uniform(1, 8))


def _asks_for_syncs(world: "World") -> bool:
    return any(producer.acks == 1 and producer.unacknowledged for producer in world.producers)
