"""Worker threads as an `Offload`: even a cancelled caller waits for a call that has begun.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any


def on_threads(pool: Executor | None = None) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Run calls in *pool*; None: the threads of the event loop."""

    async def offload(fn: Callable[..., Any], *args: Any) -> Any:
        future = asyncio.get_running_loop().run_in_executor(pool, fn, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The thread still uses its arguments: the caller must not close them yet, however
            # often it is cancelled.
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            raise

    return offload
