"""What frames, requests or answers may hold, over all connections: one budget for each.

    part of a frame, an answer ──take──▶ there is room: counted, read or made
                                   │
                                   └───▶ there is none: it waits until others are done or gone

1. Holders that have proved themselves (a large frame came whole, many answers were taken) may use
   all of it, others half of it: strangers that begin and do not end take nothing from those that
   work.
2. One goes on beyond the limit, until it is done or gone; then the next, of those and of these in
   turn, which has waited longest: holders that all have a part never wait for one another.  So
   what is held is bounded by the limit and one frame or answer.
3. While it is `pressed`, its owner closes those that hold and do not move: then 2 ends.  It
   gives up strangers that hold and wait, too, where none of them comes to its end: or a crowd
   that has begun and gone silent would be found out one by one.

Pure.
"""

from collections.abc import Callable
from typing import Final, Protocol

_CALM_SHARE: Final = 8


class Holder(Protocol):
    """A connection's frame, request or answers."""

    trusted: bool
    """It may use all of the budget."""

    def go_on(self) -> None:
        """What it waited for is counted, and its own."""


class MemoryBudget:
    """Counts, and decides who waits.

    Args:
        limit_bytes: more is held only by one frame or answer.
        on_pressed: told when `pressed` becomes true.
    """

    __slots__ = (
        "_ahead",
        "_on_pressed",
        "_strangers",
        "_strangers_turn",
        "_trusted",
        "_waking",
        "granted",
        "held_bytes",
        "limit_bytes",
        "pressed",
        "welcomed",
    )

    def __init__(self, limit_bytes: int, on_pressed: Callable[[], None] = lambda: None) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.pressed = False
        """Somebody waits, or more is held than should be."""
        self.granted = 0
        """How often one that waited was told to go on."""
        self.welcomed = 0
        """Strangers that brought a large frame whole."""
        self._on_pressed = on_pressed
        self._trusted: dict[Holder, int] = {}
        """Who waits, in the order in which they came, and for how many bytes."""
        self._strangers: dict[Holder, int] = {}
        self._strangers_turn = False
        self._ahead: Holder | None = None
        """Who may go beyond the limit."""
        self._waking = False

    @property
    def calm(self) -> bool:
        """So little is held that memory may be given before it is earned."""
        return self.held_bytes * _CALM_SHARE <= self.limit_bytes

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._trusted) + len(self._strangers)

    def take(self, holder: Holder, size_bytes: int) -> bool:
        """Count so much more for *holder*; False: it waits, and is told to `go_on`."""
        queue = self._trusted if holder.trusted else self._strangers
        if not queue and self.held_bytes + size_bytes <= self._limit(holder.trusted):
            self.held_bytes += size_bytes
            return True
        self._press()
        if self._ahead is None or self._ahead is holder:
            self._ahead = holder
            self._strangers_turn = not holder.trusted
            self.held_bytes += size_bytes
            return True
        queue[holder] = size_bytes
        return False

    def note(self, size_bytes: int) -> None:
        """Count what cannot be refused: it is there, and little (negative: no longer)."""
        self.held_bytes += size_bytes
        if self.pressed:
            self._wake()
        elif self.held_bytes > self.limit_bytes:
            self._press()

    def arrived(self, holder: Holder) -> None:
        """*holder* has its large frame whole, and goes on holding it."""
        if not holder.trusted:
            holder.trusted = True
            self.welcomed += 1

    def pass_on(self, holder: Holder, other: Holder) -> None:
        """What *holder* holds is *other*'s from now on."""
        if self._ahead is holder:
            self._ahead = other

    def done(self, holder: Holder, size_bytes: int) -> None:
        """*holder* holds *size_bytes* less, and nothing beyond the limit; it may wait for more."""
        self.held_bytes -= size_bytes
        if self.pressed:
            if self._ahead is holder:
                self._ahead = None
            self._wake()

    def release(self, holder: Holder, size_bytes: int) -> None:
        """*holder* holds *size_bytes* less, and waits for nothing."""
        self.held_bytes -= size_bytes
        if self.pressed:
            self._trusted.pop(holder, None)
            self._strangers.pop(holder, None)
            if self._ahead is holder:
                self._ahead = None
            self._wake()

    def _limit(self, trusted: bool) -> int:
        return self.limit_bytes if trusted else self.limit_bytes // 2

    def _press(self) -> None:
        if not self.pressed:
            self.pressed = True
            self._on_pressed()

    def _wake(self) -> None:
        if self._waking:
            return  # who goes on gives its head back: the loop below looks again
        self._waking = True
        try:
            while woken := self._grants():
                for holder in woken:
                    holder.go_on()
        finally:
            self._waking = False

    def _grants(self) -> list[Holder]:
        """Give what there is: those who are to go on now."""
        woken: list[Holder] = []
        for queue, trusted in ((self._trusted, True), (self._strangers, False)):
            while queue and self.held_bytes + queue[_first(queue)] <= self._limit(trusted):
                woken.append(self._grant(queue))
        if self._ahead is None and self.waiting:
            self._strangers_turn = bool(self._strangers) and not (
                self._strangers_turn and self._trusted
            )
            self._ahead = self._grant(self._strangers if self._strangers_turn else self._trusted)
            woken.append(self._ahead)
        self.pressed = bool(self.waiting or self._ahead or self.held_bytes > self.limit_bytes)
        return woken

    def _grant(self, queue: dict[Holder, int]) -> Holder:
        holder = _first(queue)
        self.granted += 1
        self.held_bytes += queue.pop(holder)
        return holder


def _first(queue: dict[Holder, int]) -> Holder:
    return next(iter(queue))
