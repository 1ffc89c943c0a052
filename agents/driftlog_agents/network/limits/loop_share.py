"""How much of one iteration of the event loop has what sockets bring, of all connections together.

    a request ──▶ used up? ──no──▶ taken
                     │
                     └─yes─▶ its connection waits for its turn
    a request that has waited on its connection, and whose turn it is there, waits the same way

A connection whose turn has come takes requests for `_TURN_S`, and then waits again: see
`foundation/fair_queue` for who is next.

Shell.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol

from driftlog_agents.foundation.fair_queue import Client, FairQueue, Turn

_SHARE_S: Final = 0.005
"""Longer: fewer iterations, and fewer writes, for the same requests (of 2 ms: 5 % more CPU for
small ones).  Shorter: others wait less (of 2 ms: a third)."""

_TURN_S: Final = 0.0005
"""Longer: fewer changes of turns.  Shorter: less to wait for where many connections have work."""


class StepOwner(Protocol):
    """A connection that does a step in its turn."""

    @property
    def client(self) -> Client:
        """Whose it is."""
        ...

    def on_loop(self, step: Callable[[], None], /) -> None:
        """Do *step*; an error in it costs this connection only."""
        ...


class Step:
    """What a connection does in a turn."""

    __slots__ = ("_owner", "_step")

    def __init__(self, owner: StepOwner, step: Callable[[], None]) -> None:
        self._owner = owner
        self._step = step

    @property
    def client(self) -> Client:
        """Whose it is."""
        return self._owner.client

    def take_turn(self) -> None:
        """Its turn has come."""
        self._owner.on_loop(self._step)


class LoopShare:
    """The share of the iterations of one event loop, measured by *clock_s*."""

    __slots__ = ("_clock_s", "_ends_s", "_loop", "_turn_ends_s", "_waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._clock_s = clock_s
        self._ends_s: float | None = None
        """None: nobody has used any of this iteration's."""
        self._turn_ends_s = 0.0
        self._waiting = FairQueue[Turn](_TURN_S)

    @property
    def used_up(self) -> bool:
        """Whether nothing more is taken in this iteration, or in this turn."""
        if self._ends_s is None:
            self._begin()
            return False
        return self._clock_s() >= self._turn_ends_s

    def wait(self, turn: Turn) -> None:
        """*turn* is taken in this or one of the next iterations."""
        self._waiting.add(turn.client, turn)
        if self._ends_s is None:
            self._begin()

    def leave(self, turn: Turn) -> None:
        """*turn* is gone."""
        self._waiting.remove(turn)

    def _begin(self) -> None:
        self._turn_ends_s = self._ends_s = self._clock_s() + _SHARE_S
        self._loop.call_soon(self._next, context=Context())  # in no request's

    def _next(self) -> None:
        self._ends_s = None
        if not self._waiting:
            return
        self._begin()
        assert self._ends_s is not None
        ends_s = self._ends_s
        while self._waiting:
            now_s = self._clock_s()
            if now_s >= ends_s:
                break
            self._turn_ends_s = min(ends_s, now_s + _TURN_S)
            client, turn = self._waiting.take()
            turn.take_turn()
            self._waiting.spend(client, self._clock_s() - now_s)
        self._turn_ends_s = ends_s
