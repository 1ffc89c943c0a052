"""An asyncio loop on virtual time: nothing waits, nothing is random, nothing is real.

When no callback is ready, time jumps to the next timer.  A schedule is therefore a
function of the program and its seed.

Callbacks belong to whoever's context they run in.  A `Freezer` that is frozen holds back those
of its own, timers as well, while time goes on for all others: a process that is stopped.
"""

import asyncio
import itertools
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from contextvars import Context, ContextVar
from heapq import heappop
from typing import Any, Final
from weakref import WeakSet

from driftlog_agents.foundation.loop_slices import measure_by


class DeadlockError(Exception):
    """Nothing is ready, and nothing ever will be."""


class LivelockError(Exception):
    """Callbacks run and run, and time stands still."""


_MAX_TURNS: Final = 200_000
"""Turns of the loop at one instant; what is honest needs a few hundred."""

NOBODY: Final = Context()
"""Of what goes on whoever is frozen: the network, the stores, the clients."""


class Freezer:
    """What runs in `context`, and in contexts that were copied from it, can be held back."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop
        self.frozen = False
        self.held: list[Handle] = []
        self.context = Context()
        self.context.run(_FREEZER.set, self)

    def freeze(self) -> None:
        """From now on nothing of it runs."""
        assert not self.frozen
        self.frozen = True
        self._loop.frozen += 1

    def thaw(self, *, timers_last: bool = False) -> None:
        """Go on with what became ready meanwhile, in that order; or first with what was heard,
        then with timers, as a loop does that finds both when it looks again."""
        if not self.frozen:
            return
        self.frozen = False
        self._loop.frozen -= 1
        if timers_last:
            self.held.sort(key=lambda handle: isinstance(handle, TimerHandle))
        for handle in self.held:
            self._loop.resume(handle)
        self.held.clear()


_FREEZER: ContextVar[Freezer | None] = ContextVar("freezer", default=None)


class _Task(asyncio.Task[Any]):
    """Hashed by its number: a set of tasks, as a group that ends has, is gone through in an order
    that no address decides."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module."""

    _ready: deque[Any]
    _scheduled: list[Any]
    _stopping: bool
    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]

    def __init__(self, begin_s: float = 1_000.0) -> None:
        super().__init__()
        self.now_s = begin_s
        self.frozen = 0
        """How many freezers are."""
        self._turns = 0
        self._clock_resolution = 1e-9
        numbers = itertools.count()
        self.set_task_factory(
            lambda loop, work, **options: _Task(work, next(numbers), loop=loop, **options)
        )
        measure_by(self, lambda: asyncio.get_running_loop().time())

    def time(self) -> float:
        return self.now_s

    def resume(self, handle: Handle) -> None:
        """Run what was held back."""
        self._ready.append(handle)

    def _run_once(self) -> None:
        """One turn: as BaseEventLoop's, but for the waiting, and for what is frozen."""
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heappop(scheduled)._scheduled = False
        self._turns += 1
        if not ready and not self._stopping:
            if not scheduled:
                raise DeadlockError("every task waits for something that nobody will do")
            if scheduled[0]._when > self.now_s:
                self.now_s = scheduled[0]._when
                self._turns = 0
        if self._turns > _MAX_TURNS:
            raise LivelockError(f"time stands still at {self.now_s}")
        end_s = self.now_s + self._clock_resolution
        while scheduled and scheduled[0]._when < end_s:
            handle = heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if self.frozen:
                freezer = handle._context.get(_FREEZER)
                if freezer is not None and freezer.frozen:
                    freezer.held.append(handle)
                    continue
            handle._run()

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """What a killed process leaves is not closed: nothing of it runs again, and the moment at
        which the garbage is collected is no part of the schedule."""
        self._asyncgens.discard(agen)

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that would have to be woken."""
