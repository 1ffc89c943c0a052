"""Budgets for the memory of frames, requests and answers of all connections, one for each.

    part of a frame, an answer ──take──▶ there is room: counted, read or made
                                   │
                                   └───▶ there is none: it waits until others are done or gone

1. Trusted holders (a large frame came completely, many answers were taken) may use all of a budget,
   other holders half of it: those that begin requests and do not end them take nothing from
   working clients.
2. One holder continues beyond the limit until it is done or gone.  The next is the one that has
   waited longest, of trusted and untrusted holders in turn: so holders that all have a part never
   wait for one another.  The limit and one frame or answer bound what is held.
3. While a budget is `pressed`, its owner closes holders without progress: then 2 ends.  It also
   closes untrusted holders that wait for more memory, while none of them completes a frame:
   otherwise it finds the silent ones of a crowd only one by one.

Pure.
"""

from collections.abc import Callable
from typing import Final, Protocol

_CALM_SHARE: Final = 8


class Holder(Protocol):
    """A connection's frame, request or answers."""

    trusted: bool
    """Whether it may use all of the budget."""

    def go_on(self) -> None:
        """Continue: the budget now counts the bytes that the holder waited for."""


class MemoryBudget:
    """Counts memory, and decides which holders wait.

    Args:
        limit_bytes: only one frame or answer may go beyond it.
        on_pressed: called when `pressed` becomes true.
    """

    __slots__ = (
        "_ahead",
        "_on_pressed",
        "_trusted",
        "_untrusted",
        "_untrusted_turn",
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
        """A holder waits or is beyond the limit, or more is held than the limit."""
        self.granted = 0
        """How many holders have waited and then received memory."""
        self.welcomed = 0
        """Strangers that sent a large frame completely."""
        self._on_pressed = on_pressed
        self._trusted: dict[Holder, int] = {}
        """Trusted holders that wait, in the order of their arrival, and for how many bytes."""
        self._untrusted: dict[Holder, int] = {}
        self._untrusted_turn = False
        self._ahead: Holder | None = None
        """The holder that may go beyond the limit."""
        self._waking = False

    @property
    def calm(self) -> bool:
        """Whether so little is held that a frame gets memory before its bytes arrive."""
        return self.held_bytes * _CALM_SHARE <= self.limit_bytes

    @property
    def waiting(self) -> int:
        """Number of holders that wait."""
        return len(self._trusted) + len(self._untrusted)

    def take(self, holder: Holder, size_bytes: int) -> bool:
        """Count *size_bytes* more for *holder*; False: it waits until `go_on` is called."""
        queue = self._trusted if holder.trusted else self._untrusted
        if not queue and self.held_bytes + size_bytes <= self._limit(holder.trusted):
            self.held_bytes += size_bytes
            return True
        self._press()
        if self._ahead is None or self._ahead is holder:
            self._ahead = holder
            self._untrusted_turn = not holder.trusted
            self.held_bytes += size_bytes
            return True
        queue[holder] = size_bytes
        return False

    def note(self, size_bytes: int) -> None:
        """Count memory that is held already, and small (negative: no longer held)."""
        self.held_bytes += size_bytes
        if self.pressed:
            self._wake()
        elif self.held_bytes > self.limit_bytes:
            self._press()

    def arrived(self, holder: Holder) -> None:
        """*holder* has its large frame completely, and still holds it."""
        if not holder.trusted:
            holder.trusted = True
            self.welcomed += 1

    def pass_on(self, holder: Holder, other: Holder) -> None:
        """From now on, *other* holds what *holder* holds."""
        if self._ahead is holder:
            self._ahead = other

    def done(self, holder: Holder, size_bytes: int) -> None:
        """*holder* frees *size_bytes*, and no longer exceeds the limit; it may wait for more."""
        self.held_bytes -= size_bytes
        if self.pressed:
            if self._ahead is holder:
                self._ahead = None
            self._wake()

    def release(self, holder: Holder, size_bytes: int) -> None:
        """*holder* frees *size_bytes*, and waits no longer."""
        self.held_bytes -= size_bytes
        if self.pressed:
            self._trusted.pop(holder, None)
            self._untrusted.pop(holder, None)
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
            return  # a woken holder frees its head: the loop below checks again
        self._waking = True
        try:
            while woken := self._grants():
                for holder in woken:
                    holder.go_on()
        finally:
            self._waking = False

    def _grants(self) -> list[Holder]:
        """Grant free memory; returns the holders that continue now."""
        woken: list[Holder] = []
        for queue, trusted in ((self._trusted, True), (self._untrusted, False)):
            while queue and self.held_bytes + queue[_first(queue)] <= self._limit(trusted):
                woken.append(self._grant(queue))
        if self._ahead is None and self.waiting:
            self._untrusted_turn = bool(self._untrusted) and not (
                self._untrusted_turn and self._trusted
            )
            self._ahead = self._grant(self._untrusted if self._untrusted_turn else self._trusted)
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
