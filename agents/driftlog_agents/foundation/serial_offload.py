"""An `Offload` for one worker thread, whose callers wait here and not in the queue of the thread.

    call ──▶ wait until the thread is free ──▶ enter what the work needs ──▶ work ──▶ leave it

So what the work needs of others (memory, a turn) is taken when the thread is free, and is not held
while other work of the thread runs.  Callers are served in the order of arrival.

Shell.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from driftlog_agents.foundation.offload import Offload


class SerialOffload:
    """See the module.

    Args:
        offload: runs the calls, one at a time.
    """

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._free = asyncio.Lock()

    async def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """As an `Offload`."""
        async with self._free:
            return await self._offload(fn, *args)

    async def within(
        self, needed: AbstractAsyncContextManager[None], fn: Callable[..., Any], *args: Any
    ) -> Any:
        """As an `Offload`; *needed* is entered when the thread is free, and left after the call."""
        async with self._free, needed:
            return await self._offload(fn, *args)
