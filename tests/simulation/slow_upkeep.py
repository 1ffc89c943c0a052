"""Worker threads that are starved: sealing or consolidation falls behind, and holds producers.

    the other faults are over ──▶ each step of upkeep takes seconds, while clients produce ──▶ over

Each seed has one of both, and the other one has nothing to do.  Promises:

1. Unsealed bytes stay below twice their bound, and what was on its way (`seal_policy`).
2. Flush records below level 2 stay below their bound, and what was on its way (`consolidation`).
3. Producers go on when upkeep does.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.log_session import Engine
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, parse_flush_key
from driftlog_tiering.foundation.types import Offload
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.world import World

_SEALING: Final = (11, 71)
_CONSOLIDATION: Final = (51,)
"""Last two digits of the seeds, each of one agent."""

_UNSEALED_BYTES: Final = 2_000
_RECORDS: Final = 12
_ON_ITS_WAY_BYTES: Final = 8_000
"""What memory may hold (6,000), and what is committed between two looks at the bound.  A look may
be 0.4 s away: a seal that lets producers go on can leave so little that the agent looks less often.
"""
_ON_THEIR_WAY: Final = 10
_STEP_S: Final = 3.0
_LASTS_S: Final = 40.0
_BATCHES: Final = 80


def _of(seed: int, seeds: tuple[int, ...]) -> bool:
    return seed % 100 in seeds


def has_slow_upkeep(seed: int) -> bool:
    """Whether the seed has it: three of a hundred."""
    return has_slow_sealing(seed) or has_slow_consolidation(seed)


def has_slow_sealing(seed: int) -> bool:
    """Whether it is sealing that falls behind."""
    return _of(seed, _SEALING)


def has_slow_consolidation(seed: int) -> bool:
    """Whether it is consolidation that falls behind."""
    return _of(seed, _CONSOLIDATION)


def engine_settings(seed: int, usual: EngineSettings) -> EngineSettings:
    """Bounds that clients of a simulation come to."""
    if has_slow_sealing(seed):
        return replace(usual, seal=replace(usual.seal, unsealed_bytes=_UNSEALED_BYTES))
    if has_slow_consolidation(seed):
        seal = replace(usual.seal, segment_bytes=1 << 20, segment_ms=600_000, small_ms=600_000)
        consolidation = replace(usual.consolidation, waiting_records=_RECORDS)
        return replace(usual, seal=seal, consolidation=consolidation)
    return usual


class SlowUpkeep:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"slow upkeep {world.seed}")
        self._going_on = False

    def offload(self, behind: Offload) -> Offload:
        """*behind*, with what upkeep waits for a thread."""

        async def offload(fn: Callable[..., Any], *args: Any) -> Any:
            if self._going_on:
                await asyncio.sleep(self._rng.uniform(0.3, 1) * _STEP_S)
            return await behind(fn, *args)

        return offload if has_slow_upkeep(self._world.seed) else behind

    async def run(self) -> None:
        """Once."""
        world = self._world
        world.note("slow upkeep")
        self._going_on = True
        for topic in (await read_topics(world)).values():
            world.produce_to(topic, batches=_BATCHES)
        until_s = world.loop.now_s + _LASTS_S
        while world.loop.now_s < until_s:
            for node in world.nodes:
                if node.process.engine is not None and node.process.serving:
                    self._check(node.process.engine)
            await asyncio.sleep(0.1)
        self._going_on = False

    def _check(self, engine: Engine) -> None:
        expect, backpressure = self._world.expect, engine.ports.backpressure
        if backpressure.held:
            self._world.count(f"held by {', '.join(sorted(backpressure.reasons))}")
        if has_slow_sealing(self._world.seed):
            unsealed = sum(log.unsealed_bytes for log in engine.logs() if not log.damage)
            limit = 2 * _UNSEALED_BYTES + _ON_ITS_WAY_BYTES
            expect(unsealed <= limit, f"{unsealed} bytes wait to be sealed")
        else:
            prefix = f"{FLUSHES_PREFIX}{engine.session.session_id}/"
            keys = (kv.key for kv in self._world.metadata.snapshot(prefix))
            waiting = sum(parse_flush_key(key).level < 2 for key in keys)
            limit = _RECORDS + _ON_THEIR_WAY
            expect(waiting <= limit, f"{waiting} flush records wait to be consolidated")
