"""Waits for the commit of a partition's last admitted batches; and parked batches, which wait for
their partition.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog

_RESUMED_AT_ONCE: Final = 250
"""Parked batches that are admitted in one iteration: they take a millisecond.  More: longer stalls;
less: the last of many batches waits longer."""


class CommitWaiter:
    """A `Waiter` that sets an event when its partition's last batches are committed, or lost.

    Args:
        any_of: an event that several waiters share; it is set as well.
    """

    def __init__(self, any_of: asyncio.Event | None = None) -> None:
        self.event = asyncio.Event()
        self._any_of = any_of

    def committed(self, log: PartitionLog) -> None:
        self._arrived()

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("it waits for the commit")

    unsynced = synced

    def lost(self, log: PartitionLog) -> None:
        # Its topic was deleted.  (When the session is lost, no such waiter is left.)
        self._arrived()

    def _arrived(self) -> None:
        self.event.set()
        if self._any_of is not None:
            self._any_of.set()


def unpark(*logs: PartitionLog, at_once: int = _RESUMED_AT_ONCE) -> None:
    """Resume the parked requests of *logs*, those of each in the order of their arrival.

    The first *at_once* are resumed before this returns, as many in each later iteration of the
    event loop.  Batches that come meanwhile park behind them.  A pause stops it: `unpark` again
    after it.
    """
    _resume(chain.from_iterable(map(_parked, logs)), at_once)


def _resume(parked: Iterator[Callable[[], None]], at_once: int) -> None:
    left = at_once
    for resume in parked:
        resume()
        left -= 1
        if not left:
            asyncio.get_running_loop().call_soon(_resume, parked, at_once)
            return


def _parked(log: PartitionLog) -> Iterator[Callable[[], None]]:
    while log.parked and not log.paused:
        yield log.parked.popleft()
