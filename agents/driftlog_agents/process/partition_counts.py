"""How many partitions an agent leads, loads and cannot serve, for all who ask within a second.

    of ──▶ counted less than a second ago: that ──▶ the counts
     └───▶ else count, in slices, once for all who ask meanwhile

Anybody may ask `/readyz` thousands of times a second; an agent leads tens of thousands of
partitions.

Shell.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from driftlog_agents.foundation.loop_slices import sliced, time_to_work
from driftlog_agents.foundation.single_flight import SingleFlight
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import State

_VALID_S: Final = 1.0
"""Longer: an agent is called loading for longer; shorter: more work for who asks often."""

_Stage = tuple[str, bool]
"""A session, and whether it serves: counts from before say nothing of what is loaded then."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of partitions."""

    led: int
    loading: int
    offline: int


class PartitionCounts:
    """See the module."""

    def __init__(self) -> None:
        self._under_way = SingleFlight[_Stage, Counts]()
        self._known: tuple[_Stage, float, Counts] | None = None

    async def of(self, engine: Engine) -> Counts:
        """The counts of *engine*."""
        await time_to_work()
        stage = engine.session.session_id, engine.ready.is_set()
        known = self._known
        if known is not None and known[0] == stage and asyncio.get_running_loop().time() < known[1]:
            return known[2]
        return await self._under_way.do(stage, lambda: self._count(stage, engine))

    async def _count(self, stage: _Stage, engine: Engine) -> Counts:
        logs, loading = engine.logs(), 0
        async for log in sliced(logs):
            loading += log.state is State.LOADING and not log.damage
        counts = Counts(led=len(logs), loading=loading, offline=len(engine.offline()))
        self._known = stage, asyncio.get_running_loop().time() + _VALID_S, counts
        return counts
