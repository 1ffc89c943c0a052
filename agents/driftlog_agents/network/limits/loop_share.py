"""Limits how long requests run in one iteration of the event loop, over all connections together.

    a request ──▶ used up? ──no──▶ taken
                     │
                     └─yes─▶ its connection waits for its turn
    a request that has waited on its connection then waits here, too, for its turn on the loop

A connection whose turn has come takes requests for `_TURN_S`, and then waits again;
`foundation/fair_queue` decides which one is next.  While clients of several addresses wait, an
iteration takes requests for a shorter time: a request, and what it waits for, need several.

Shell.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol

from driftlog_agents.foundation.fair_queue import Client, FairQueue, Turn

_SHARE_S: Final = 0.005
"""Longer: fewer iterations, and fewer writes, for the same requests (at 2 ms: 5 % more CPU for
small ones).  Shorter: others wait less."""

_SHORT_SHARE_S: Final = 0.002
"""The same while clients of several addresses wait: beside a crowd, half as long."""

_SHORT_FOR_S: Final = 0.1
"""How long shares are short after a turn of another address: until what it asked is answered."""

_TURN_S: Final = 0.0005
"""Longer: fewer changes of turns.  Shorter: shorter waits where many connections have work."""


class StepOwner(Protocol):
    """A connection that runs a step in its turn."""

    @property
    def client(self) -> Client:
        """The client of the connection."""
        ...

    def on_loop(self, step: Callable[[], None], /) -> None:
        """Run *step*; an error in it closes only this connection."""
        ...


class Step:
    """A step that a connection runs in its turn."""

    __slots__ = ("_owner", "_step")

    def __init__(self, owner: StepOwner, step: Callable[[], None]) -> None:
        self._owner = owner
        self._step = step

    @property
    def client(self) -> Client:
        """The client of the connection."""
        return self._owner.client

    def take_turn(self) -> None:
        """Run the step: its turn has come."""
        self._owner.on_loop(self._step)


class LoopShare:
    """The share of requests in the iterations of one event loop, measured by *clock_s*."""

    __slots__ = (
        "_address",
        "_clock_s",
        "_ends_s",
        "_loop",
        "_short_until_s",
        "_turn_ends_s",
        "_waiting",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._clock_s = clock_s
        self._ends_s: float | None = None
        """When the share of this iteration ends; None: it has not begun."""
        self._turn_ends_s = 0.0
        self._address = ""
        """Whose turn was last."""
        self._short_until_s = 0.0
        self._waiting = FairQueue[Turn](_TURN_S)

    @property
    def used_up(self) -> bool:
        """Whether the share of this iteration, or of this turn, is over; a first call begins it."""
        if self._ends_s is None:
            self._begin()
            return False
        return self._clock_s() >= self._turn_ends_s

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for its turn."""
        return bool(self._waiting)

    def wait(self, turn: Turn) -> None:
        """Take *turn* in this or one of the next iterations of the loop."""
        self._waiting.add(turn.client, turn)
        if self._ends_s is None:
            self._begin()

    def leave(self, turn: Turn) -> None:
        """Remove *turn*, if it waits."""
        self._waiting.remove(turn)

    def _begin(self) -> None:
        self._open()
        self._loop.call_soon(self._next, context=Context())  # in no request's context

    def _open(self) -> float:
        """Begin a share; returns when it ends."""
        now_s = self._clock_s()
        share_s = _SHORT_SHARE_S if now_s < self._short_until_s else _SHARE_S
        self._turn_ends_s = self._ends_s = now_s + share_s
        return self._ends_s

    def _next(self) -> None:
        self._ends_s = None
        if not self._waiting:
            return
        ends_s = self._open()
        try:
            self._take_turns(ends_s)
        finally:
            # After what the turns have begun: that runs before the next turns.
            self._turn_ends_s = ends_s
            self._loop.call_soon(self._next, context=Context())

    def _take_turns(self, ends_s: float) -> None:
        while self._waiting:
            now_s = self._clock_s()
            if now_s >= ends_s:
                break
            self._turn_ends_s = min(ends_s, now_s + _TURN_S)
            client, turn = self._waiting.take()
            if client.address != self._address:
                self._address = client.address
                self._short_until_s = now_s + _SHORT_FOR_S
            turn.take_turn()
            self._waiting.spend(client, self._clock_s() - now_s)
