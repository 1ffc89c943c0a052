"""Long work in slices, so that no request keeps the event loop from the others.

    for item in items:                      async for item in sliced(items):
        …                          ──▶          …                      # others run every 5 ms

What depends on no state (to decode, to encode) is given to a thread instead, where Python
switches every 5 ms by itself.

Shell.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.005

LARGE_BYTES: Final = 64 * 1024
"""Frames up to here are decoded where they are: that takes some milliseconds at most."""

_LOOK_EVERY: Final = 16
"""Items between two looks at the clock."""


async def sliced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield *items*; others run between two of them when a slice is over."""
    began_s = time.perf_counter()
    for count, item in enumerate(items):
        if not count % _LOOK_EVERY and time.perf_counter() - began_s >= SLICE_S:
            await asyncio.sleep(0)
            began_s = time.perf_counter()
        yield item


async def off_the_loop(work: Callable[..., T], *args: Any) -> T:
    """What *work* returns, made by a thread: *work* touches nothing that others see."""
    return await asyncio.to_thread(work, *args)
