"""Work for another thread, while the event loop continues.

    call ──▶ on the loop (`inline`) │ in a pool (`on_threads`)
         ──▶ timed: does its oldest call return? (`WatchedOffload`)
         ──▶ one at a time (`SerialOffload`) │ one at a time, in turns of clients (`FairOffload`)
         ──▶ the same, where calls are short and need nothing of others (`FairThread`)

A call of `on_threads` that has begun is waited for, also by a caller that is cancelled: the thread
still uses its arguments.  The callers of a `SerialOffload` and a `FairOffload` wait here and not in
the queue of the thread.  So what the work needs of others (memory, a turn) is taken when the thread
is free, and is not held while other work of the thread runs.  A `SerialOffload` serves them in the
order of arrival.  Of a `FairOffload` the client that has had least is next, however many calls of
others wait (`fair_queue`); a call for several clients runs in the first turn of one of them.

A `FairThread` takes the next call itself: between two calls it does not wait for the event loop,
whose iterations are longer than most of its calls.

Shell.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, nullcontext
from heapq import heappop, heappush
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from driftlog_agents.foundation.fair_queue import Client, FairQueue
from driftlog_tiering.foundation.types import Offload

T = TypeVar("T")

_CREDIT: Final = 0
"""A client that was silent is next after the call that runs: it needs no credit."""


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


class FairOffload:
    """See the module.

    Args:
        offload: runs the calls, one at a time.
        now_ms: a monotonic clock.
        alone: what a call waits for in its turn.
    """

    def __init__(
        self,
        offload: Offload,
        now_ms: Callable[[], float],
        alone: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self._alone = alone
        self._offload = offload
        self._now_ms = now_ms
        self._busy = False
        self._clients = FairQueue[Client](_CREDIT)
        self._waiting = defaultdict[Client, list[tuple[float, int, asyncio.Future[Client]]]](list)
        """A heap for each client: the call that is due first is next.  Calls may be void."""
        self._count = 0

    async def run(
        self, client: Client, due_after_ms: float, fn: Callable[..., Any], *args: Any
    ) -> Any:
        """Run ``fn(*args)`` in the turn of *client*, of whose calls the one due first is next."""
        return await self.run_for((client,), due_after_ms, fn, *args)

    async def run_for(
        self, clients: Collection[Client], due_after_ms: float, fn: Callable[..., Any], *args: Any
    ) -> Any:
        """As `run`, for all *clients*, which differ: in the first turn of one of them."""
        client = next(iter(clients))
        if self._busy:
            turn: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._count += 1
            due_ms = self._now_ms() + due_after_ms
            for one in clients:
                heappush(self._waiting[one], (due_ms, self._count, turn))
                self._clients.add(one, one)
            try:
                client = await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._busy = True
        try:
            async with self._alone():
                begun_ms = self._now_ms()
                try:
                    return await self._offload(fn, *args)
                finally:
                    if self._clients:
                        self._clients.spend(client, self._now_ms() - begun_ms)
        finally:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._clients:
            client, _ = self._clients.take()
            _, _, turn = heappop(self._waiting[client])
            if self._waiting[client]:
                self._clients.add(client, client)
            else:
                del self._waiting[client]
            if not turn.done():
                self._busy = True
                turn.set_result(client)
                return


class FairThread:
    """See the module.  It starts when it is first needed, and ends with the process.

    A caller that is cancelled does not wait.  Of its call that has begun the thread keeps the
    arguments until it ends; a call that has not begun is dropped in its turn.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = Thread(target=self._run_all, name=name, daemon=True)
        self._lock = Lock()
        self._calls = FairQueue[_Call](_CREDIT)
        self._added = SimpleQueue[None]()
        """An item for each call that waits."""

    def run(self, client: Client, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """What ``fn(*args)`` returns, run in the turn of *client*."""
        call = _Call(fn, args)
        with self._lock:
            self._calls.add(client, call)
            if self._thread.ident is None:
                self._thread.start()
        self._added.put(None)
        return asyncio.wrap_future(call)

    def _run_all(self) -> None:
        while True:
            self._added.get()
            with self._lock:
                client, call = self._calls.take()
            began_s = time.perf_counter()
            call.run()
            del call  # its result is the caller's
            with self._lock:
                if self._calls:
                    self._calls.spend(client, time.perf_counter() - began_s)


class _Call(Future[Any]):
    """A call that waits for its turn."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self._fn = fn
        self._args = args

    def run(self) -> None:
        """Make it, unless its caller was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        fn, args = self._fn, self._args
        del self._fn, self._args
        try:
            self.set_result(fn(*args))
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.set_exception(error)
            del self  # the error holds this frame, as in `on_threads`
