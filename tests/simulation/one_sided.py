"""A bucket that refuses some of an agent's requests: for longer than the agent is given to be fit.

While the other faults go on, one agent after the other.  And when they are over:

    one agent  ── clients go on ──▶ all that they ask for is answered, before it is well again
    all agents ── alike         ──▶ nobody steps down: others would be no better

Reads, writes or both; refused, or not answered at all.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.cluster.bucket_ownership import VALID_MS
from driftlog_agents.health.write_health import WriteHealthSettings
from tests.simulation.faults import Refused
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

FITNESS: Final = WriteHealthSettings(max_probe_ms=4_000)
"""What else waits for an agent to be well waits for a minute."""

_ALIKE_S: Final = 75.0
_AGAIN_S: Final = 5.0
_PROVEN_S: Final = 25.0
"""After so long nobody has heard any more of somebody who could, for as long as that counts."""


def has_refusals(seed: int) -> bool:
    """Whether the seed, one of a cluster, has them: every fifth hundred."""
    return seed // 100 % 5 == 3


async def refuse(world: "World", rng: Random, end_s: float) -> None:
    """One agent after the other, until *end_s* and the last one's end."""
    while world.loop.now_s < end_s:
        await asyncio.sleep(rng.uniform(1, 12))
        node = rng.choice([node for node in world.nodes if not node.last_life])
        _set(node, rng, "one agent")
        await asyncio.sleep(rng.choice((rng.uniform(0.5, 8), rng.uniform(35, 60))))
        node.store_weather.refused_kind = Refused.NOTHING


class LastRefusals:
    """When the other faults are over."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"last refusals {world.seed}")
        self._nobody_since_s: float | None = None
        """Nobody can since then."""
        self._refused: tuple[Node, float] | None = None
        """One agent, and since when it cannot."""

    async def begin(self) -> None:
        """Of one agent: it goes on until all is answered; of all: until enough has been seen."""
        world, rng = self._world, self._rng
        await asyncio.sleep(rng.choice((0.0, 3.0, 20.0)))
        nodes = [node for node in world.nodes if not node.last_life]
        for topic in (await read_topics(world)).values():
            world.produce_to(topic, batches=6)
        if len(nodes) > 1 and rng.random() < 0.6:
            node = rng.choice(nodes)
            self._refused = node, world.loop.now_s
            _set(node, rng, "one agent, until all is answered")
            return
        kind = _set(nodes[0], rng, "all agents")
        for node in nodes[1:]:
            node.store_weather.refused_kind = kind
            node.store_weather.mute = nodes[0].store_weather.mute
        self._nobody_since_s = world.loop.now_s
        while world.loop.now_s < self._nobody_since_s + _ALIKE_S:
            topics = list((await read_topics(world)).values())
            if topics:
                world.produce_to(rng.choice(topics), batches=2)
            await asyncio.sleep(_AGAIN_S)
        self._nobody_since_s = None
        self.end()

    def stepped_down(self, name: str, *, has_looked: bool) -> None:
        """An agent has found that it cannot, and that others can.

        *has_looked*: its last look at the cluster file lets it commit.  Without one it cannot,
        while others with a newer look commit.
        """
        since_s, now_s = self._nobody_since_s, self._world.loop.now_s
        proven_s = _PROVEN_S if has_looked else _PROVEN_S + VALID_MS / 1000
        proven = since_s is None or now_s < since_s + proven_s
        self._world.expect(proven, f"{name} steps down, and nobody else could do it either")

    def begins_again(self, node: "Node") -> None:
        """A process that has had a session begins another one: not before it can, where it stepped
        down for what it cannot."""
        if self._refused is not None:
            refused, since_s = self._refused
            stepped_down = self._world.loop.now_s >= since_s + FITNESS.patience_ms / 1000
            self._world.expect(
                node is not refused or not stepped_down,
                f"agent {node.number} begins a session, and its bucket refuses requests",
            )

    def end(self) -> None:
        """All are well."""
        self._refused = None
        for node in self._world.nodes:
            node.store_weather.refused_kind = Refused.NOTHING


def _set(node: "Node", rng: Random, of: str) -> Refused:
    kind = rng.choice((Refused.READS, Refused.READS, Refused.WRITES, Refused.ALL))
    node.store_weather.refused_kind = kind
    node.store_weather.mute = rng.random() < 0.3
    node.world.note(f"bucket refuses {of}")
    return kind
