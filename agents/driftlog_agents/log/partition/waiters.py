"""Waits for the commit of a partition's last admitted batches; and parked batches, which wait for
their partition.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from driftlog_agents.foundation.loop_slices import call_all
from driftlog_agents.log.partition.partition import PartitionLog, Waiter


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


def unpark(*logs: PartitionLog) -> None:
    """Resume the parked requests of *logs*, those of each in the order of their arrival, in slices
    (`foundation/loop_slices`).

    Batches that come meanwhile park behind them.  A pause stops it: `unpark` again after it.
    """
    waiting = [log for log in logs if log.parked]
    if waiting:
        call_all(chain.from_iterable(map(_parked, waiting)))


def tell_lost(log: PartitionLog, waiters: Sequence[Waiter]) -> None:
    """Tell *waiters* that *log* is led here no more, in slices."""
    if waiters:
        call_all(partial(waiter.lost, log) for waiter in waiters)


def _parked(log: PartitionLog) -> Iterator[Callable[[], None]]:
    while log.parked and not log.paused:
        yield log.parked.popleft()
