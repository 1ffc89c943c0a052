"""404s that are not true: the bucket says of an object that is there that it is not.

Once or for some time, to one agent or to all of them: nodes of a store that are behind.  Listings
show the object meanwhile.  What needs it waits or is refused, is never offline, and goes on by
itself when the object is shown again (`world`, 6); nothing is lost for it.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.world import World

_KINDS: Final = (
    *("flush/", "flush/", "flush/", "/manifest/", "/manifest/", "/producers/"),
    *(".parquet", "/topic/"),
)


def has_untrue_absence(seed: int) -> bool:
    """Whether the seed has them: one in eleven hundreds, of one agent and of several.

    (None of a hundred in which a seed is that finds something.)
    """
    return seed // 100 % 11 == 6


class UntrueAbsence:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"untrue absence {world.seed}")
        self._hidden: dict[str, int | None] = {}
        """Objects, and from which node; None: from all."""
        self._once: dict[str, int] = {}
        """Objects, and how many of the next GETs do not find them."""

    def hides(self, node: int, key: str) -> bool:
        """Whether a GET of *node* does not find the object."""
        if self._once.get(key, 0):
            self._once[key] -= 1
            return True
        return key in self._hidden and self._hidden[key] in (None, node)

    def hide(self, keys: Sequence[str]) -> None:
        """Let no GET find these objects until `show`."""
        self._hidden.update(dict.fromkeys(keys))

    def show(self, keys: Sequence[str]) -> None:
        """Let them be found again."""
        for key in keys:
            self._hidden.pop(key, None)

    async def run(self) -> None:
        """Hide objects, one after the other, until the faults are over."""
        world, rng = self._world, self._rng
        while not world.calm:
            await asyncio.sleep(rng.uniform(0.3, 5))
            kind = rng.choice(_KINDS)
            keys = [
                info.key
                async for page in world.bucket.list("")
                for info in page.objects
                if kind in info.key
            ]
            if keys and not world.calm:
                # Of manifests the newest comes first, and is the one that is read.
                await self._hide(keys[0] if kind == "/manifest/" else rng.choice(keys), kind)
        self._hidden.clear()
        self._once.clear()

    async def _hide(self, key: str, kind: str) -> None:
        world, rng = self._world, self._rng
        world.note(f"untrue 404 of {kind.strip('/.')}")
        if rng.random() < 0.3:
            self._once[key] = rng.randint(1, 4)
            return
        self._hidden[key] = rng.choice((None, rng.choice(world.nodes).number))
        for _ in range(round(10 * rng.choice((rng.uniform(0.3, 4), rng.uniform(6, 25))))):
            if world.calm:
                break
            await asyncio.sleep(0.1)
        self._hidden.pop(key, None)
