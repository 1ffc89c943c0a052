"""Wall clocks that jump by hours, forward and back, or stand: of one machine, or of all.

Leases, timers and whatever else must not break go by a clock that never goes back (`World.now_ms`).
What is stamped and compared by wall clocks may come early or late, and nothing else: what a client
is told, and what is promised of it, stays.  `restarts` has what is promised of sealing.

Clients stamp by the clock of the agent that they send to.  What was on its way when that was set
back is refused, as Kafka's brokers refuse what is an hour ahead of them, and sent again.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_HOUR_MS: Final = 3_600_000.0
_JUMPS: Final = (("set forward", 1.0), ("set back", -1.0), ("stands", 0.0), ("runs", 0.0))


def has_clock_jumps(seed: int) -> bool:
    """Whether wall clocks jump: the ninth ten of every hundred."""
    return seed // 10 % 10 == 8


class WallClock:
    """Of one machine."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._ahead_ms = 0.0
        self._stands_at_ms: float | None = None

    def now_ms(self) -> int:
        """What it says, in milliseconds since 1970."""
        if self._stands_at_ms is not None:
            return int(self._stands_at_ms)
        return int(self._node.world.now_ms() + self._node.wall_skew_ms + self._ahead_ms)

    def run(self) -> None:
        """Stand no longer, and say what time it is, as far as it does."""
        self._stands_at_ms = None
        self._ahead_ms = 0.0

    def change(self, rng: Random) -> None:
        """Let it jump, stand or run."""
        what, way = rng.choice(_JUMPS)
        self._node.world.note(f"clock {what}")
        self._ahead_ms += way * rng.uniform(0.5, 20) * _HOUR_MS
        self._stands_at_ms = None
        if what == "stands":
            self._stands_at_ms = self.now_ms()


async def jump_clocks(world: "World") -> None:
    """One clock after the other, until cancelled."""
    rng = Random(f"clocks {world.seed}")
    while has_clock_jumps(world.seed):
        await asyncio.sleep(rng.uniform(1, 10))
        rng.choice(world.nodes).wall.change(rng)
