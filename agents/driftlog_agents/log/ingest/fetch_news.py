"""Fetches that wait for records, and the commit that brings them.

    commit ──▶ the logs whose high watermarks moved ──▶ their fetches, a thousand in an iteration

Pure.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, Waiter

_TOLD_AT_ONCE: Final = 1_000
"""Fetches that are told in one iteration: they take a millisecond or two.  More: longer stalls."""


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
