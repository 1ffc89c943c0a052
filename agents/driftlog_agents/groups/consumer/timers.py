"""What a group waits for on its clock, by kind and member.

Pure.
"""

from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple


class TimerKind(StrEnum):
    SESSION = "session"
    """A member has been silent for too long."""
    REBALANCE = "rebalance"
    """A member does not give back what it has to."""
    JOIN = "join"
    """A member of the classic protocol was told to join again, and has not."""
    SYNC = "sync"
    """A member of the classic protocol has joined, and does not ask what it is to have."""


class Timer(NamedTuple):
    kind: TimerKind
    member_id: str


class Timers:
    """Set, cancelled and due; the earliest is found without looking at all."""

    def __init__(self) -> None:
        self._at: dict[Timer, int] = {}
        self._heap: list[tuple[int, Timer]] = []

    def set(self, kind: TimerKind, member_id: str, at_ms: int) -> None:
        """Let it ring at *at_ms*, and not when it was to before."""
        timer = Timer(kind, member_id)
        self._at[timer] = at_ms
        heappush(self._heap, (at_ms, timer))
        if len(self._heap) > 4 * len(self._at) + 64:
            self._heap = sorted((at, t) for t, at in self._at.items())

    def is_set(self, kind: TimerKind, member_id: str) -> bool:
        """Whether it is to ring."""
        return Timer(kind, member_id) in self._at

    def cancel(self, kind: TimerKind, member_id: str) -> None:
        """Let it not ring."""
        self._at.pop(Timer(kind, member_id), None)

    def cancel_all(self, member_id: str) -> None:
        """The member is gone."""
        for kind in TimerKind:
            self.cancel(kind, member_id)

    @property
    def next_ms(self) -> int | None:
        """When the first rings."""
        while self._heap:
            at, timer = self._heap[0]
            if self._at.get(timer) == at:
                return at
            heappop(self._heap)
        return None

    def take_due(self, now_ms: int) -> list[Timer]:
        """Those that ring now; they are not set any more."""
        due: list[Timer] = []
        while (at := self.next_ms) is not None and at <= now_ms:
            _, timer = heappop(self._heap)
            del self._at[timer]
            due.append(timer)
        return due
