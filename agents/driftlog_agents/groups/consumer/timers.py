"""Timers of a group, by kind and member.

Pure.
"""

from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple


class TimerKind(StrEnum):
    SESSION = "session"
    """A member sent no request for its session timeout."""
    REBALANCE = "rebalance"
    """A member did not revoke partitions within its rebalance timeout."""
    JOIN = "join"
    """A classic member was answered REBALANCE_IN_PROGRESS, and did not send JoinGroup."""
    SYNC = "sync"
    """A classic member joined, and did not send SyncGroup."""


class Timer(NamedTuple):
    kind: TimerKind
    member_id: str


class Timers:
    """A set of timers; a heap finds the earliest."""

    def __init__(self) -> None:
        self._at: dict[Timer, int] = {}
        self._heap: list[tuple[int, Timer]] = []

    def set(self, kind: TimerKind, member_id: str, at_ms: int) -> None:
        """Set the timer to *at_ms*; this replaces an earlier setting."""
        timer = Timer(kind, member_id)
        self._at[timer] = at_ms
        heappush(self._heap, (at_ms, timer))
        if len(self._heap) > 4 * len(self._at) + 64:
            self._heap = sorted((at, t) for t, at in self._at.items())

    def is_set(self, kind: TimerKind, member_id: str) -> bool:
        """Whether the timer is set."""
        return Timer(kind, member_id) in self._at

    def cancel(self, kind: TimerKind, member_id: str) -> None:
        """Cancel the timer, if it is set."""
        self._at.pop(Timer(kind, member_id), None)

    def cancel_all(self, member_id: str) -> None:
        """Cancel all timers of a member."""
        for kind in TimerKind:
            self.cancel(kind, member_id)

    @property
    def next_ms(self) -> int | None:
        """When the earliest timer is due; None: no timer is set."""
        while self._heap:
            at, timer = self._heap[0]
            if self._at.get(timer) == at:
                return at
            heappop(self._heap)
        return None

    def take_due(self, now_ms: int) -> list[Timer]:
        """Remove and return the timers that are due at *now_ms*."""
        due: list[Timer] = []
        while (at := self.next_ms) is not None and at <= now_ms:
            _, timer = heappop(self._heap)
            del self._at[timer]
            due.append(timer)
        return due
