"""Long work in slices, so that no request keeps the event loop from the others.

    for item in items:                      async for item in sliced(items):
        …                          ──▶          …                      # others run every 5 ms

What depends on no state (to decode, to encode) is given to a thread instead, where Python
switches every 5 ms by itself.  It is one thread, and no other work waits for it: the event loop's
own threads read files, look names up and see whether the agent is fit.

Shell.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.005

_LOOK_EVERY: Final = 16
"""Items between two looks at the clock."""

_THREAD: Final = ThreadPoolExecutor(1, "codec")
"""Begun when it is first needed, and ended with the process."""


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
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work, *args)
