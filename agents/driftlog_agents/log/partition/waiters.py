"""Waits for commits: for that of a partition's last admitted batches, and the fetches of all; and
parked batches, which wait for their partition.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, Waiter

_TOLD_AT_ONCE: Final = 1_000
"""Fetches that are told in one iteration: they take a millisecond or two.  More: longer stalls."""

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


class FetchNews:
    """Tells fetches that high watermarks moved, a thousand in an iteration of the event loop: one
    commit may concern a hundred thousand.

    Args:
        later: calls a step in the next iteration.
    """

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        self._moved: dict[PartitionLog, None] = {}
        """Partitions whose fetches are told next, in this order."""
        self._fetches: Iterator[tuple[Waiter, PartitionLog]] | None = None
        """The fetches that are not told yet; None: all are told."""

    def moved(self, logs: Iterable[PartitionLog]) -> None:
        """Tell the fetches that wait for *logs*; the first ones before this returns."""
        self._moved.update((log, None) for log in logs if log.waiting_fetches)
        if self._moved and self._fetches is None:
            self._fetches = self._in_turn()
            self._tell()

    def _tell(self) -> None:
        left = _TOLD_AT_ONCE
        for waiter, log in self._fetches or ():
            waiter.committed(log)
            left -= 1
            if not left:
                self._later(self._tell)
                return
        self._fetches = None

    def _in_turn(self) -> Iterator[tuple[Waiter, PartitionLog]]:
        while self._moved:
            log = next(iter(self._moved))
            del self._moved[log]
            for waiter in list(log.waiting_fetches):
                if waiter in log.waiting_fetches:  # it may be answered meanwhile
                    yield waiter, log


def unpark(*logs: PartitionLog) -> None:
    """Resume the parked requests of *logs*, those of each in the order of their arrival.

    The first ones are resumed before this returns, the others in later iterations of the event
    loop.  Batches that come meanwhile park behind them.  A pause stops it: `unpark` again after it.
    """
    _resume(chain.from_iterable(map(_parked, logs)))


def _resume(parked: Iterator[Callable[[], None]]) -> None:
    left = _RESUMED_AT_ONCE
    for resume in parked:
        resume()
        left -= 1
        if not left:
            asyncio.get_running_loop().call_soon(_resume, parked)
            return


def _parked(log: PartitionLog) -> Iterator[Callable[[], None]]:
    while log.parked and not log.paused:
        yield log.parked.popleft()
