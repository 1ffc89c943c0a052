"""Consumers that ask for what is not sealed, and for times in it; see `crowded_reads`."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.agent import Led
from tests.simulation.consumers import Consumer, NotServedError
from tests.simulation.crowded_reads import is_crowded

if TYPE_CHECKING:
    from tests.simulation.world import World

_READERS: Final = 6
_LOOKUPS: Final = 0.4


@dataclass(slots=True, eq=False)
class _TailReader(Consumer):
    """One of them."""

    async def _visit(self, led: Led) -> None:
        try:
            if self.rng.random() < _LOOKUPS:
                await self._look_up(led)
            else:
                await self._read_tail(led)
        except NotServedError:
            return

    async def _read_tail(self, led: Led) -> None:
        self._see(led)
        log = led.log
        first = max(log.sealed_end, log.log_start)
        if first < log.high_watermark:
            await self._fetch(led, self.rng.randrange(first, log.high_watermark))


def tail_readers(world: "World") -> list[Consumer]:
    """Of this world; none in most seeds."""
    if not is_crowded(world.seed):
        return []
    rng = Random(f"tail readers {world.seed}")
    return [_TailReader(world, Random(rng.random())) for _ in range(_READERS)]
