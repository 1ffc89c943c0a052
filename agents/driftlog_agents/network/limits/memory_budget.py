"""Budgets for the memory of frames, requests and answers of all connections, one for each.

    part of a frame, an answer ──take──▶ there is room: counted, read or made
                                   │
                                   └───▶ there is none: it waits until others are done or gone

1. Trusted holders (a large frame came completely, many answers were taken) may use all of a budget,
   other holders half of it: those that begin requests and do not end them take nothing from
   working clients.
2. One holder continues beyond the limit until it is done or gone.  The next is the one that has
   waited longest of the address that was given least, of trusted and untrusted holders in turn: so
   holders that all have a part never wait for one another.  The limit and one frame or answer bound
   what is held.
3. While a budget is `pressed`, its owner closes holders without progress: then 2 ends.  It also
   closes untrusted holders that wait for more memory, while none of them completes a frame:
   otherwise it finds the silent ones of a crowd only one by one.
4. All budgets together have a limit, too (`SharedMemory`).  An eighth of it belongs to each budget
   alone; beyond its eighth, a budget draws on what is left for all.  So no budget waits for another
   one: each has its eighth, and one holder beyond it.

Pure.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from driftlog_agents.foundation.fair_queue import Client, FairQueue

_CREDIT_BYTES: Final = 0
"""An address that was silent is next: it needs no credit."""

_CALM_SHARE: Final = 8

NETWORK_BYTES: Final = "driftlog.max.network.bytes"
"""The config of the shared memory."""

_OWN_SHARE: Final = 8
"""One part in so many of the shared memory belongs to one budget alone."""


class Holder(Protocol):
    """A connection's frame, request or answers."""

    trusted: bool
    """Whether it may use all of the budget."""

    @property
    def client(self) -> Client:
        """The client that it belongs to: clients and their addresses wait in turns."""
        ...

    def go_on(self) -> None:
        """Continue: the budget now counts the bytes that the holder waited for."""


class MemoryBudget:
    """Counts memory, and decides which holders wait.

    Args:
        most_bytes: only one frame or answer may go beyond it.
        on_pressed: called when `pressed` becomes true.
    """

    __slots__ = (
        "_ahead",
        "_alone_bytes",
        "_beyond_bytes",
        "_drawn_bytes",
        "_on_pressed",
        "_own_bytes",
        "_shared",
        "_trusted",
        "_untrusted",
        "_untrusted_turn",
        "_waking",
        "granted",
        "held_bytes",
        "limit_bytes",
        "most_bytes",
        "pressed",
        "welcomed",
    )

    def __init__(self, most_bytes: int, on_pressed: Callable[[], None] = lambda: None) -> None:
        self.most_bytes = most_bytes
        self.limit_bytes = most_bytes
        """`most_bytes`, or less while other budgets hold shared memory."""
        self.held_bytes = 0
        self.pressed = False
        """A holder waits or is beyond the limit, or more is held than the limit."""
        self.granted = 0
        """How many holders have waited and then received memory."""
        self.welcomed = 0
        """Strangers that sent a large frame completely."""
        self._on_pressed = on_pressed
        self._trusted = _WaitingHolders()
        """Trusted holders that wait."""
        self._untrusted = _WaitingHolders()
        self._untrusted_turn = False
        self._ahead: Holder | None = None
        """The holder that may go beyond the limit."""
        self._beyond_bytes = 0
        """What it took beyond the limit, which is drawn from no other budget."""
        self._waking = False
        self._shared: SharedMemory | None = None
        self._own_bytes = sys.maxsize
        self._alone_bytes = most_bytes
        """`limit_bytes` while other budgets hold nothing."""
        self._drawn_bytes = 0
        """Bytes beyond its own, as the shared memory counts them."""

    @property
    def waits_for_others(self) -> bool:
        """Whether a holder waits, while other budgets hold memory that this one could have."""
        return bool(self.waiting) and self.limit_bytes < self._alone_bytes

    def limited_by(self, config: str) -> str:
        """The config that limits it now: *config*, or that of the shared memory."""
        return config if self.limit_bytes == self.most_bytes else NETWORK_BYTES

    @property
    def wanted(self) -> bool:
        """Whether holders wait for shared memory, of which this budget holds some."""
        return bool(self._drawn_bytes and self._shared is not None and self._shared.is_awaited)

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
        if not queue and self._fits(size_bytes, holder.trusted):
            self._hold(size_bytes)
            return True
        self._press()
        if self._ahead is None or self._ahead is holder:
            self._untrusted_turn = not holder.trusted
            self._go_ahead(holder, size_bytes)
            self._hold(size_bytes)
            return True
        queue.add(holder, size_bytes)
        if queue.first[0] is not holder or not self._fits(size_bytes, holder.trusted):
            return False
        self._grant(queue)  # the others that wait had more
        return True

    def note(self, size_bytes: int) -> None:
        """Count memory that is held already, and small (negative: no longer held)."""
        self._hold(size_bytes)
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
        if self._ahead is holder:
            self._ahead_ends()
        self._hold(-size_bytes)
        if self.pressed:
            self._wake()

    def release(self, holder: Holder, size_bytes: int) -> None:
        """*holder* frees *size_bytes*, and waits no longer."""
        if self.pressed:  # else nobody waits, and nobody is beyond the limit
            self._trusted.remove(holder)
            self._untrusted.remove(holder)
            if self._ahead is holder:
                self._ahead_ends()
        self._hold(-size_bytes)
        if self.pressed:
            self._wake()

    def share(self, shared: "SharedMemory", own_bytes: int, free_bytes: int) -> None:
        """Beyond *own_bytes*, draw on *shared*, of which *free_bytes* are free; nothing is held."""
        assert not self.held_bytes, "shared too late"
        self._shared, self._own_bytes = shared, own_bytes
        self.offer(free_bytes)
        self._alone_bytes = self.limit_bytes

    def offer(self, free_bytes: int) -> None:
        """*free_bytes* of the shared memory are free (negative: holders are beyond its limit)."""
        limit = self._own_bytes + max(0, self._drawn_bytes + free_bytes)
        self.limit_bytes = min(self.most_bytes, limit)
        if self.pressed:
            self._wake()
        elif self.held_bytes > self.limit_bytes:
            self._press()

    def _hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        if self.held_bytes > self._own_bytes or self._drawn_bytes:
            drawn = max(0, self.held_bytes - self._own_bytes - self._beyond_bytes)
            more, self._drawn_bytes = drawn - self._drawn_bytes, drawn
            assert self._shared is not None, "a budget alone draws on nothing"
            self._shared.draw(more)

    def _go_ahead(self, holder: Holder, size_bytes: int) -> None:
        self._ahead = holder
        self._beyond_bytes = max(0, self.held_bytes + size_bytes - self.limit_bytes)

    def _ahead_ends(self) -> None:
        self._ahead, self._beyond_bytes = None, 0

    def _fits(self, size_bytes: int, trusted: bool) -> bool:
        limit = self.limit_bytes if trusted else self.limit_bytes // 2
        return self.held_bytes + size_bytes <= limit

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
            while queue and self._fits(queue.first[1], trusted):
                woken.append(self._grant(queue))
        if self._ahead is None and self.waiting:
            self._untrusted_turn = bool(self._untrusted) and not (
                self._untrusted_turn and self._trusted
            )
            queue = self._untrusted if self._untrusted_turn else self._trusted
            self._go_ahead(*queue.first)
            woken.append(self._grant(queue))
        self.pressed = bool(self.waiting or self._ahead or self.held_bytes > self.limit_bytes)
        return woken

    def _grant(self, queue: "_WaitingHolders") -> Holder:
        holder, size_bytes = queue.take()
        self.granted += 1
        self._hold(size_bytes)
        return holder


class _WaitingHolders:
    """Holders that wait, and for how many bytes: the one of the address that was given least is
    next."""

    __slots__ = ("_bytes", "_queue")

    def __init__(self) -> None:
        self._queue = FairQueue[Holder](_CREDIT_BYTES)
        self._bytes: dict[Holder, int] = {}

    def __len__(self) -> int:
        return len(self._bytes)

    def add(self, holder: Holder, size_bytes: int) -> None:
        """*holder* waits."""
        self._bytes[holder] = size_bytes
        self._queue.add(holder.client, holder)

    def remove(self, holder: Holder) -> None:
        """*holder*, if it is there, waits no longer."""
        if self._bytes.pop(holder, None) is not None:
            self._queue.remove(holder)

    @property
    def first(self) -> tuple[Holder, int]:
        """The next one; there must be one."""
        _, holder = self._queue.first()
        return holder, self._bytes[holder]

    def take(self) -> tuple[Holder, int]:
        """The next one, which waits no longer."""
        client, holder = self._queue.take()
        size_bytes = self._bytes.pop(holder)
        self._queue.spend(client, size_bytes)
        return holder, size_bytes


class SharedMemory:
    """What *budgets* may hold together.

    Args:
        limit_bytes: in each budget, one holder may go beyond it.
    """

    def __init__(self, limit_bytes: int, budgets: Sequence[MemoryBudget]) -> None:
        self._budgets = budgets
        own_bytes = [min(limit_bytes // _OWN_SHARE, budget.most_bytes) for budget in budgets]
        self._free_bytes = limit_bytes - sum(own_bytes)
        for budget, own in zip(budgets, own_bytes, strict=True):
            budget.share(self, own, self._free_bytes)

    @property
    def is_awaited(self) -> bool:
        """Whether holders of a budget wait that would have more if others held less."""
        return any(budget.waits_for_others for budget in self._budgets)

    def draw(self, more_bytes: int) -> None:
        """A budget draws *more_bytes* (negative: it gives some back): offer the rest to all."""
        self._free_bytes -= more_bytes
        for budget in self._budgets:
            budget.offer(self._free_bytes)
