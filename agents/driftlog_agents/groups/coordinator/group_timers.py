"""When each group ticks next: a heap of timers, of which each group has one that is current.

    schedule ──▶ a deadline after the scheduled one: nothing
             ──▶ an earlier one: another timer, and the replaced one is skipped when it is due

A timer does not keep its group: dropped groups are freed at once, also where their timers are due
in half an hour.  Once most timers are of such groups, or are replaced, they are removed.

Pure.
"""

from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar
from weakref import ReferenceType, ref

_SPARE: Final = 64
"""Timers beyond four times the number of groups before those that count for nothing are removed."""


class Timed(Protocol):
    """A group, as its timers see it."""

    scheduled_ms: int | None
    """When its current timer is due; None: it has none."""

    @property
    def is_dropped(self) -> bool:
        """Whether it needs no timer any more."""
        ...


G = TypeVar("G", bound=Timed)


class GroupTimers(Generic[G]):
    """See the module."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ReferenceType[G]]] = []
        """(deadline, number, group)."""
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, group: G, deadline_ms: int, groups: int) -> bool:
        """Schedules the group's next tick; True: it is due before all others.  *groups*: their
        number."""
        if group.scheduled_ms is not None and group.scheduled_ms <= deadline_ms:
            return False
        group.scheduled_ms = deadline_ms
        self._pushed += 1
        timer = deadline_ms, self._pushed, ref(group)
        heappush(self._heap, timer)
        is_first = self._heap[0] is timer
        if len(self._heap) > 4 * groups + _SPARE:
            self._heap = [one for one in self._heap if _current(one) is not None]
            heapify(self._heap)
        return is_first

    def wait_ms(self, now_ms: int) -> int | None:
        """How long until the first timer is due; at most 0: it is; None: there is none."""
        return self._heap[0][0] - now_ms if self._heap else None

    def take(self) -> G | None:
        """Removes the first timer, and returns its group; None: the timer is not current."""
        group = _current(heappop(self._heap))
        if group is not None:
            group.scheduled_ms = None
        return group


def _current(timer: tuple[int, int, ReferenceType[G]]) -> G | None:
    """The group of the timer, if this is its current one."""
    due_ms, _, reference = timer
    group = reference()
    is_current = group is not None and not group.is_dropped and group.scheduled_ms == due_ms
    return group if is_current else None
