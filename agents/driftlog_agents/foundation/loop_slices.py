"""Long work in slices, so that no request keeps the event loop from the others.

    for item in items:                      async for item in sliced(items):
        …                          ──▶          …                      # others run every 2 ms

    turn of the loop    │ sockets, timers, … │ one slice: whose turn it is │ sockets, timers, … │ …

An iteration of the loop has one slice, however many requests work: their times are not added up.  A
task that finds the slice used up waits for a turn: the client that had fewest is next
(`foundation/fair_queue`).  Every other turn is for small requests that have not waited yet, if
there are some: they share it, and do not wait for all large requests.

Short calls that belong to no task (`call_all`) have another slice in each iteration: it is theirs
alone.

Work that depends on no state (decoding, encoding) runs in a thread instead, where Python switches
by itself.  It is one thread, of which the client that has had least is next (`FairThread`), and no
other work waits for it: the event loop's own threads read files, resolve names and check whether
the agent is fit.

Shell.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import structlog

from driftlog_agents.foundation.fair_queue import NOBODY, Client, FairQueue
from driftlog_agents.foundation.offload import FairThread

T = TypeVar("T")
R = TypeVar("R")

SLICE_S: Final = 0.002

_NOT_BEGUN: Final = 0.0
"""End of a slice that was given to a task that has not run since."""


_LARGE: Final[ContextVar[bool]] = ContextVar("large", default=False)
"""Whether this task is part of a request that is large, or has waited already."""


_CLIENT: Final[ContextVar[Client]] = ContextVar("client", default=NOBODY)
"""The client that this task works for."""

_CREDIT_TURNS: Final = 4
"""Credit of a client that was silent: a request has a few loops."""

_SMALL_AT_ONCE: Final = 16
"""Small requests that have waited share a slice: most take a hundredth of one."""


_THREAD: Final = FairThread("codec")


class Turns:
    """The slices of one event loop, measured by *clock_s*."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._ends_s: float | None = None
        """When the slice of this iteration ends; None: none has begun, and no task waits."""
        self._small = FairQueue[asyncio.Future[None]](_CREDIT_TURNS)
        self._large = FairQueue[asyncio.Future[None]](_CREDIT_TURNS)
        self._small_first = True
        self._calls = deque[Iterator[Callable[[], object]]]()
        """What `call_all` has not called yet; the first one has the next turn."""
        self._log = structlog.get_logger()

    def has_time(self) -> bool:
        """Whether the slice of this iteration is not over; the first call begins it."""
        if self._ends_s is None:
            self._begin()
            return True
        return self._clock_s() < self._ends_s

    async def next(self) -> None:
        """Return in an iteration whose slice is the caller's."""
        queue = self._large if _LARGE.get() else self._small
        _LARGE.set(True)
        client = _CLIENT.get()
        while True:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.add(client, turn)
            try:
                await turn
            except asyncio.CancelledError:
                queue.remove(turn)
                raise
            if self._ends_s == _NOT_BEGUN:
                self._begin()
            elif not self.has_time():
                continue
            queue.spend(client, 1)
            return

    def call_all(self, calls: Iterator[Callable[[], object]]) -> None:
        """See the function of the same name."""
        self._calls.append(calls)
        if len(self._calls) > 1:
            return  # these take turns with others
        if self.has_time():
            self._call(self.has_time)
        else:
            _later(self._call_more)

    def _call_more(self) -> None:
        ends_s = self._clock_s() + SLICE_S
        self._call(lambda: self._clock_s() < ends_s)

    def _call(self, has_time: Callable[[], bool]) -> None:
        try:
            while self._calls:
                calls = self._calls.popleft()
                try:
                    call = next(calls, None)
                    if call is None:
                        continue
                    self._calls.append(calls)
                    call()
                except Exception:  # noqa: BLE001  # no task can raise it
                    self._log.exception("waiter_bug")
                if not has_time():
                    return
        finally:
            if self._calls:
                _later(self._call_more)

    def _begin(self) -> None:
        self._ends_s = self._clock_s() + SLICE_S
        _later(self._over)

    def _over(self) -> None:
        """The iteration is over: the next slice belongs to the tasks whose turn it is."""
        self._ends_s = None
        small = self._small_first if self._small and self._large else bool(self._small)
        self._small_first = not small
        queue, left = (self._small, _SMALL_AT_ONCE) if small else (self._large, 1)
        while queue and left:
            _, turn = queue.take()
            if not turn.done():
                turn.set_result(None)
                left -= 1
                self._ends_s = _NOT_BEGUN
        if self._ends_s is not None:
            _later(self._over_unless_begun)  # after the tasks that were woken
        elif self._small or self._large:
            self._over()  # all of these were cancelled

    def _over_unless_begun(self) -> None:
        if self._ends_s == _NOT_BEGUN:
            self._over()  # the tasks that were woken were cancelled


def _later(step: Callable[[], None]) -> None:
    """Call *step* in no request's context: slices continue, whatever happens to a request."""
    asyncio.get_running_loop().call_soon(step, context=Context())


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


def measure_by(loop: asyncio.AbstractEventLoop, clock_s: Callable[[], float]) -> None:
    """Measure slices of *loop* by *clock_s*: where time is virtual, work takes no time."""
    _TURNS[loop] = Turns(clock_s)


def _turns() -> Turns:
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = Turns()
    return turns


def work_for(client: Client) -> None:
    """The calling task works for *client*, on a request whose size is not known yet."""
    _CLIENT.set(client)
    _LARGE.set(False)


def served_client() -> Client:
    """The client that the calling task works for."""
    return _CLIENT.get()


async def time_to_work() -> None:
    """Return when there is time in an iteration of the loop."""
    turns = _turns()
    if not turns.has_time():
        await turns.next()


async def time_for_large() -> None:
    """As `time_to_work`, for a large request: small ones go before it from here on.  Its work
    before its first slice is not added to the work of others."""
    _LARGE.set(True)
    await time_to_work()


def call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Make short *calls* to what waits, in this order; those of several callers take turns.

    While the slice of this iteration has time they are made before this returns, unless others
    wait; the rest follows, a slice in each iteration.  An error costs its call alone.
    """
    _turns().call_all(iter(calls))


async def sliced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield *items*; other tasks run between two of them when a slice is over."""
    turns = _turns()
    for item in items:
        if not turns.has_time():
            await turns.next()
        yield item


async def each(items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """What *work* returns of each of *items*, in their order.

    Workers take one item after the other, in slices.  Each starts another worker, up to
    *at_once*, in a later iteration: where *work* does not wait there are hardly any.
    """
    left = list(enumerate(items))
    left.reverse()
    results: dict[int, R] = {}
    workers = 0

    async def take() -> None:
        nonlocal workers
        workers += 1
        begun = False
        while left:
            await time_to_work()
            if not left:
                break
            number, item = left.pop()
            if left and not begun and workers < at_once:
                begun = True
                tasks.create_task(take())
            results[number] = await work(item)

    async with asyncio.TaskGroup() as tasks:
        if left:
            tasks.create_task(take())
    return [results[number] for number in range(len(results))]


async def each_within(
    seconds: float, items: Iterable[T], work: Callable[[T], Awaitable[object]], at_once: int
) -> None:
    """As `each`, until *seconds* have passed: then no item is begun, and those that have begun are
    cancelled."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await each(items, work, at_once)


async def off_the_loop(work: Callable[..., T], *args: Any) -> T:
    """What *work* returns, run by a thread in the turn of this task's client: *work* uses nothing
    that other tasks see."""
    return await _THREAD.run(_CLIENT.get(), work, *args)
