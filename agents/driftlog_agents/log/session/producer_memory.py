"""The agent's memory of idempotent producers: for how long, and how much in all.

    every second ──▶ forget by age ──▶ count what is left ──▶ over the budget? refuse new producers

All partitions of an agent share one budget.  When the budget is used up, the agent refuses a batch
of a producer that its partition does not know, with an error that every client retries.  Known
producers continue, and the agent forgets none in favour of another: a retry of the forgotten one
would be appended twice.  A takeover loads every committed producer, and may exceed the budget; then
the agent takes no new producer until old ones expire.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.counters import LogCounters
from driftlog_tiering.batches.producers import EXPIRATION_MS, STATE_BYTES, ProducerStates

_INTERVAL_S: Final = 1.0
_BREATHE_PARTITIONS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """For how long idempotent producers are remembered, and in how much memory."""

    expiration_ms: float = EXPIRATION_MS
    """`producer.id.expiration.ms`: of a producer that appends nothing to a partition.  Longer: a
    later retry is still not appended twice; shorter: producers that are gone take less memory."""

    state_bytes: int = STATE_BYTES
    """Budget of all partitions of the agent.  A producer takes 400 bytes in each partition that it
    writes to, and 16 more for each of up to 64 batches: enough for 180,000 that write, or 550,000
    that are silent.  More: more producers in a day."""


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
        self.settings = settings
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._offload = offload
        self._log = structlog.get_logger()
        self.used_bytes = 0
        self.producers = 0
        """Producers remembered, each once per partition."""
        self._counters = counters or LogCounters()
        self.full = False
        """The budget is used up."""

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
                more = states.age(self._now_ms(), self.settings.expiration_ms)
                if more:
                    await asyncio.sleep(0)
            used += states.size_bytes
            producers += len(states)
            if n % _BREATHE_PARTITIONS == _BREATHE_PARTITIONS - 1:
                await asyncio.sleep(0)
        self.used_bytes, self.producers = used, producers
        self._judge()

    def _judge(self) -> None:
        was, self.full = self.full, self.used_bytes >= self.settings.state_bytes
        if self.full and not was:
            self._log.warning(
                "producer_state_full",
                bytes=self.used_bytes,
                producers=self.producers,
                advice="new idempotent producers are refused and retry until others expire "
                "(producer.id.expiration.ms): let clients keep their producers, or "
                "start the agent with --config driftlog.producer.state.max.bytes=BYTES or a "
                "shorter producer.id.expiration.ms",
            )
        elif was and not self.full:
            self._log.info(
                "producer_state_has_room", bytes=self.used_bytes, producers=self.producers
            )

    def refusal(self) -> str:
        """Count and explain the refusal of an unknown producer's batch while the budget is full."""
        self._counters.producers_refused += 1
        return (
            "the agent's memory for idempotent producers is used up "
            f"({self.settings.state_bytes} bytes); try again"
        )

    async def remembered(self, states: ProducerStates) -> ProducerStates:
        """*states* of a snapshot, converted to the clock of this memory."""
        await self._offload(
            states.remember_from,
            self._now_ms(),
            float(self._wall_ms()),
            self.settings.expiration_ms,
        )
        return states
