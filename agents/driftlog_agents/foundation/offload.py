"""Work for another thread, while the event loop continues.

    call ──▶ on the loop (`inline`) │ in a pool (`on_threads`)
         ──▶ timed: does its oldest call return? (`WatchedOffload`)
         ──▶ one at a time (`SerialOffload`) │ one at a time, in turns of clients (`FairOffload`)
         ──▶ in turns of clients, and calls need nothing of others (`FairThreads`)

A call of `on_threads` that has begun is waited for, also by a caller that is cancelled: the thread
still uses its arguments.  The callers of a `SerialOffload` and a `FairOffload` wait here and not in
the queue of the thread.  So what the work needs of others (memory, a turn) is taken when the thread
is free, and is not held while other work of the thread runs.  A `SerialOffload` serves them in the
order of arrival.  Of a `FairOffload` the client that has had least is next, however many calls of
others wait (`fair_queue`); a call for several clients runs in the first turn of one of them.

A thread of `FairThreads` takes the next call itself: between two calls it does not wait for the
event loop, whose iterations are longer than most of its calls.  A call whose caller is cancelled
before it begins is not made.

Shell.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
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
        return await _ended(asyncio.get_running_loop().run_in_executor(pool, fn, *args))

    return offload


async def _ended(future: asyncio.Future[T], dropped: Callable[[], bool] = lambda: False) -> T:
    """The result of the call that *future* stands for; *dropped*: drops it if it has not begun."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        # The thread still uses its arguments: the caller must not close them yet, however often
        # it is cancelled.
        while not future.done() and not dropped():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
    finally:
        # Its error would hold this frame, and the frame the error with all that *fn* made: such
        # a ring stays until the garbage collector looks at old objects.
        del future, dropped


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

    @property
    def busy(self) -> bool:
        """Whether a call would wait for its turn."""
        return self._busy

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


class FairThreads:
    """See the module.  They start when they are first needed, and end with the process.

    Args:
        name: of each thread.
        count: of the threads.
        begin: called by each thread first.
    """

    def __init__(
        self, name: str, count: int = 1, begin: Callable[[], object] = lambda: None
    ) -> None:
        self._begin = begin
        self._threads = [Thread(target=self._run_all, name=name, daemon=True) for _ in range(count)]
        self._lock = Lock()
        self._calls = FairQueue[_Call](_CREDIT)
        self._added = SimpleQueue[None]()
        """An item for each call that waits; those of dropped calls stay."""

    def run(self, client: Client, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """What ``fn(*args)`` returns, run in the turn of *client*.  A caller that is cancelled does
        not wait: of its call that has begun the thread keeps the arguments until it ends."""
        return asyncio.wrap_future(self._add(client, fn, args))

    async def ended(self, client: Client, fn: Callable[..., T], *args: Any) -> T:
        """As `run`, but a call that has begun is waited for, as of `on_threads`."""
        call = self._add(client, fn, args)
        try:
            return await _ended(asyncio.wrap_future(call), call.cancel)
        finally:
            del call  # as in `_ended`

    def _add(self, client: Client, fn: Callable[..., Any], args: tuple[Any, ...]) -> "_Call":
        call = _Call(partial(fn, *args), self._drop)
        with self._lock:
            if self._threads[0].ident is None:
                for thread in self._threads:
                    thread.start()
            self._calls.add(client, call)
        self._added.put(None)
        return call

    def _drop(self, call: "_Call") -> None:
        with self._lock:
            self._calls.remove(call)

    def _run_all(self) -> None:
        self._begin()
        while True:
            self._added.get()
            with self._lock:
                if not self._calls:
                    continue
                client, call = self._calls.take()
            began_s = time.perf_counter()
            call.run()
            del call  # its result is the caller's
            with self._lock:
                if self._calls:
                    self._calls.spend(client, time.perf_counter() - began_s)


class _Call(Future[Any]):
    """A call that waits for its turn; *drop* takes it out of the queue."""

    def __init__(self, work: Callable[[], Any], drop: Callable[["_Call"], None]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work
        self._drop = drop

    def cancel(self) -> bool:
        """Drop it, with its arguments, unless it has begun."""
        if not super().cancel():
            return False
        self._work = None
        self._drop(self)
        return True

    def run(self) -> None:
        """Make it, unless its caller was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        work, self._work = self._work, None
        assert work is not None
        try:
            self.set_result(work())
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.set_exception(error)
            del self  # the error holds this frame, as in `_ended`
