"""The agent's memory of idempotent producers: for how long, and how much in all.

    every second ──▶ forget by age ──▶ count what is left ──▶ over the budget? refuse new producers

All partitions of an agent share one budget (`producer_budget`).

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.producer_budget import (
    BudgetNews,
    ProducerBudget,
    ProducerSettings,
)
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.foundation.types import Offload

_INTERVAL_S: Final = 1.0
_BREATHE_PARTITIONS: Final = 100


class ProducerMemory:
    """The producers of one session's partitions.

    Args:
        now_ms: never goes back.
        wall_ms: since 1970.
    """

    def __init__(
        self,
        *,
        settings: ProducerSettings,
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        offload: Offload,
        counters: LogCounters | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._offload = offload
        self._log = structlog.get_logger()
        self.budget = ProducerBudget(settings)
        self._counters = counters or LogCounters()

    @property
    def full(self) -> bool:
        """The budget is used up."""
        return self.budget.full

    @property
    def used_bytes(self) -> int:
        """Size of all that is remembered."""
        return self.budget.used_bytes

    @property
    def producers(self) -> int:
        """Producers remembered, each once per partition."""
        return self.budget.producers

    async def run(self, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        """Forget and count, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.sweep(logs())

    async def sweep(self, logs: Iterable[PartitionLog]) -> None:
        """Forget expired producers, and count the others."""
        used = producers = 0
        for n, log in enumerate(list(logs)):
            states = log.producers
            # While the partition loads, `metadata_loader` puts its producers together.
            more = log.state is not State.LOADING
            while more:
                more = states.age(self._now_ms(), self.budget.settings.expiration_ms)
                if more:
                    await asyncio.sleep(0)
            used += states.size_bytes
            producers += len(states)
            if n % _BREATHE_PARTITIONS == _BREATHE_PARTITIONS - 1:
                await asyncio.sleep(0)
        self._tell(self.budget.counted(used, producers))

    def _tell(self, news: BudgetNews) -> None:
        if news is BudgetNews.FULL:
            self._log.warning(
                "producer_state_full",
                bytes=self.used_bytes,
                producers=self.producers,
                advice="new idempotent producers are refused and retry until others expire "
                "(producer.id.expiration.ms): let clients keep their producers, set a shorter "
                "producer.id.expiration.ms (driftlog configs alter), or start the agent with "
                "--config driftlog.producer.state.max.bytes=BYTES",
            )
        elif news is BudgetNews.HAS_ROOM:
            self._log.info(
                "producer_state_has_room", bytes=self.used_bytes, producers=self.producers
            )

    def refusal(self) -> str:
        """Count and explain the refusal of an unknown producer's batch while the budget is full."""
        self._counters.producers_refused += 1
        return self.budget.refusal

    async def remembered(self, states: ProducerStates) -> ProducerStates:
        """*states* of a snapshot, converted to the clock of this memory."""
        await self._offload(
            states.remember_from,
            self._now_ms(),
            float(self._wall_ms()),
            self.budget.settings.expiration_ms,
        )
        return states
