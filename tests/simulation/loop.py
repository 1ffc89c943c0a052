"""An asyncio loop on virtual time: nothing waits, nothing is random, nothing is real.

When no callback is ready, time jumps to the next timer.  A schedule is therefore a
function of the program and its seed.
"""

import asyncio
from typing import Any, Final


class DeadlockError(Exception):
    """Nothing is ready, and nothing ever will be."""


class LivelockError(Exception):
    """Callbacks run and run, and time stands still."""


_MAX_TURNS: Final = 200_000
"""Turns of the loop at one instant; what is honest needs a few hundred."""


class _VirtualSelector:
    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise DeadlockError("every task waits for something that nobody will do")
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > _MAX_TURNS:
            raise LivelockError(f"time stands still at {self._loop.now_s}")
        self._loop.now_s += max(0.0, timeout)
        return []

    def close(self) -> None:
        """Nothing to close."""


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that would have to be woken."""
