"""A queue of what clients want of one event loop: who has had least of it is next.

    add ──▶ the address that has had least ──▶ its client that has had least ──▶ take ──▶ spend

A client that asks now and then goes before those that ask all the time, and a thousand clients of
one address count as much as one of another.  An address or client that comes, or was silent, begins
where those are that are served, less a credit: it goes before them, but not for long.  What each
has had is counted by this queue alone, in one unit (seconds, or turns), and while anybody waits.
Source: start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996), of addresses and in each.

Pure.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")

_KEPT: Final = 64
"""So many entries are not worth looking through."""

_MOST_ACCOUNTS: Final = 10_000
"""Where more would be kept, all are forgotten: each has its credit again."""


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """Who wants something."""

    address: str


class Turn(Protocol):
    """Who waits."""

    @property
    def client(self) -> Client:
        """Whose it is."""
        ...

    def take_turn(self) -> None:
        """Its turn has come: it takes what it has until the share is `used_up`."""
        ...


@dataclass(slots=True)
class _Address(Generic[T]):
    spent: float
    """What all its clients have had."""
    served: float = 0.0
    """Where the client was that was served last."""
    clients: dict[Client, float] = field(default_factory=dict)
    """What each has had, while that is more than it would begin with."""
    items: list[tuple[float, int, Client, T]] = field(default_factory=list)
    """A heap; a client may have had more since, and an item may be void."""
    forget_at: int = _KEPT
    """So many clients are looked through: who would begin with as much is forgotten."""


class FairQueue(Generic[T]):
    """Items, each once.

    Args:
        credit: how much who was silent has before the others go on.  Larger: more requests that
            come now and then are served at once.  Smaller: the same of addresses and connections
            that are new all the time.
    """

    __slots__ = (
        "_added",
        "_addresses",
        "_credit",
        "_entries",
        "_forget_at",
        "_heap",
        "_served",
        "_waiting",
    )

    def __init__(self, credit: float) -> None:
        self._credit = credit
        self._addresses: dict[str, _Address[T]] = {}
        self._heap: list[tuple[float, int, str]] = []
        """Addresses that have items; one may have had more since."""
        self._waiting: dict[T, int] = {}
        """What waits, and the number of its entry; others are void."""
        self._added = self._entries = 0
        self._forget_at = _KEPT
        """As of an address's clients, of addresses."""
        self._served = 0.0
        """Where the address was that was served last."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """Entries and accounts that are held."""
        addresses = self._addresses.values()
        return len(self._heap) + sum(len(a.items) + len(a.clients) for a in addresses)

    def add(self, client: Client, item: T) -> None:
        """*client* waits with *item*; nothing happens if it does already."""
        if item in self._waiting:
            return
        if not self._waiting:
            self._begin()
        address = self._address(client.address)
        self._added += 1
        self._entries += 1
        self._waiting[item] = self._added
        if not address.items:
            address.spent = max(address.spent, self._served - self._credit)
            heapq.heappush(self._heap, (address.spent, self._added, client.address))
        least = address.served - self._credit
        spent = address.clients[client] = max(address.clients.get(client, least), least)
        heapq.heappush(address.items, (spent, self._added, client, item))
        if len(address.clients) > address.forget_at:
            known = {c: had for c, had in address.clients.items() if had > least}
            address.clients = known if len(known) < _MOST_ACCOUNTS else {}
            address.forget_at = 2 * len(address.clients) + _KEPT

    def remove(self, item: T) -> None:
        """*item*, if it is there, waits no longer."""
        self._waiting.pop(item, None)
        if self._entries > 2 * len(self._waiting) + _KEPT:
            for address in self._addresses.values():
                address.items = [e for e in address.items if self._waiting.get(e[3]) == e[1]]
                heapq.heapify(address.items)
            self._heap = [entry for entry in self._heap if self._addresses[entry[2]].items]
            heapq.heapify(self._heap)
            self._entries = len(self._waiting)

    def take(self) -> tuple[Client, T]:
        """Who is next, with what, of a queue that is not empty."""
        while True:
            spent, number, name = self._heap[0]
            address = self._addresses[name]
            if spent < address.spent:
                heapq.heapreplace(self._heap, (address.spent, number, name))
                continue
            had, number, client, item = address.items[0]
            if self._waiting.get(item) == number and had < address.clients.get(client, had):
                again = (address.clients[client], number, client, item)
                heapq.heapreplace(address.items, again)
                continue
            heapq.heappop(address.items)
            self._entries -= 1
            if not address.items:
                heapq.heappop(self._heap)
            if self._waiting.get(item) != number:
                continue
            del self._waiting[item]
            self._served = max(self._served, spent)
            address.served = max(address.served, had)
            return client, item

    def spend(self, client: Client, cost: float) -> None:
        """*client*, whose item was taken, had so much."""
        address = self._address(client.address)
        address.spent += cost
        address.clients[client] = address.clients.get(client, address.served) + cost

    def _address(self, name: str) -> _Address[T]:
        address = self._addresses.get(name)
        if address is None:
            least = self._served - self._credit
            if len(self._addresses) > self._forget_at:
                many = len(self._addresses) > _MOST_ACCOUNTS
                self._addresses = {
                    name: address
                    for name, address in self._addresses.items()
                    if address.items or (address.spent > least and not many)
                }
                self._forget_at = 2 * len(self._addresses) + _KEPT
            address = self._addresses[name] = _Address(least)
        return address

    def _begin(self) -> None:
        """Nobody waits: what was had before does not count."""
        self._addresses.clear()
        self._heap.clear()
        self._entries = 0
        self._forget_at = _KEPT
        self._served = 0.0
