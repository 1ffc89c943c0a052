"""What an agent remembers of idempotent producers: for how long, and how much in all.

    every second ──▶ forget by age ──▶ count what is left ──▶ over the budget? refuse new producers

All partitions of an agent share one budget.  When the budget is used up, the agent refuses a batch
of a producer that its partition does not know, with an error that every client retries.  Producers
that are known go on, and none is forgotten for another: its retry would be appended twice.  A
takeover takes in everything that is committed, and may exceed the budget; then the agent takes no
new producer until age has made room.

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
    """`producer.id.expiration.ms`: of one that appends nothing to a partition.  Longer: a retry
    that comes later is still not appended twice; shorter: those that are gone take less memory."""

    state_bytes: int = STATE_BYTES
    """Of all partitions of the agent.  A producer takes 400 bytes in each partition that it writes
    to, and 16 more for each of up to 64 batches: 180,000 that write, or 550,000 that are silent.
    More: more producers in a day."""


class ProducerMemory:
    """Of one session.

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
        """Remembered, each once per partition."""
        self._counters = counters or LogCounters()
        self.full = False
        """The budget is used up."""

    async def run(self, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        """Forget and count, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.sweep(logs())

    async def sweep(self, logs: Iterable[PartitionLog]) -> None:
        """Forget by age, and count what is left."""
        used = producers = 0
        for n, log in enumerate(list(logs)):
            states = log.producers
            # While it loads, it is being put together (`loading`).
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
                advice="new idempotent producers are refused, and try again, until others have "
                "been silent for producer.id.expiration.ms: let clients keep their producers, or "
                "start the agent with --config driftlog.producer.state.max.bytes=BYTES or a "
                "shorter producer.id.expiration.ms",
            )
        elif was and not self.full:
            self._log.info(
                "producer_state_has_room", bytes=self.used_bytes, producers=self.producers
            )

    def refusal(self) -> str:
        """Why a batch of a producer that is not known cannot be taken while the budget is full."""
        self._counters.producers_refused += 1
        return (
            "the agent remembers as many idempotent producers as it may "
            f"({self.settings.state_bytes} bytes); try again"
        )

    async def remembered(self, states: ProducerStates) -> ProducerStates:
        """*states*, as a snapshot has them, by the clock of this memory."""
        await self._offload(
            states.remember_from,
            self._now_ms(),
            float(self._wall_ms()),
            self.settings.expiration_ms,
        )
        return states
