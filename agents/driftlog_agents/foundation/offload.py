"""Work for another thread, while the event loop continues.

    call ──▶ on the loop (`inline`) │ in a pool (`on_threads`) │ one at a time (`SerialOffload`)
         ──▶ timed: does its oldest call return? (`WatchedOffload`)

A call of `on_threads` that has begun is waited for, also by a caller that is cancelled: the thread
still uses its arguments.  The callers of a `SerialOffload` wait here and not in the queue of the
thread.  So what the work needs of others (memory, a turn) is taken when the thread is free, and is
not held while other work of the thread runs.  They are served in the order of arrival.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from typing import Any

from driftlog_tiering.foundation.types import Offload


async def inline(fn: Callable[..., Any], *args: Any) -> Any:
    """An `Offload` that runs *fn* on the event loop: for small work, and for tests."""
    return fn(*args)


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
        finally:
            # Its error would hold this frame, and the frame the error with all that *fn* made:
            # such a ring stays until the garbage collector looks at old objects.
            del future

    return offload


class WatchedOffload:
    """An `Offload` that knows whether its calls return.

    Args:
        offload: runs the calls.
        now_ms: a monotonic clock.
        hung_ms: a call that takes longer hangs.
    """

    def __init__(self, offload: Offload, now_ms: Callable[[], float], hung_ms: float) -> None:
        self._offload = offload
        self._now_ms = now_ms
        self._hung_ms = hung_ms
        self._began_ms: dict[object, float] = {}

    async def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """As an `Offload`."""
        call = object()
        self._began_ms[call] = self._now_ms()
        try:
            return await self._offload(fn, *args)
        finally:
            del self._began_ms[call]

    @property
    def hangs(self) -> bool:
        """Whether a call has not returned for `hung_ms`: its thread waits for a disk, perhaps for
        ever."""
        oldest_ms = next(iter(self._began_ms.values()), None)
        return oldest_ms is not None and self._now_ms() - oldest_ms >= self._hung_ms


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
