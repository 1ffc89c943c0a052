"""A queue of work for one event loop: the client that has had least of it is next.

    add ──▶ the address that has had least ──▶ its client that has had least ──▶ take ──▶ spend

A client that asks now and then goes before clients that ask all the time, and a thousand clients of
one address count as much as one of another.  An address or client that is new, or was silent,
begins at the level of those that are served, less a credit: it goes before them, but not for long.
Only this queue counts what each has had, in one unit (seconds, or turns), and while items wait.
Source: start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996), of addresses and in each.

Pure.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")

_KEPT: Final = 64
"""So few entries are not worth a cleanup."""

_MOST_ACCOUNTS: Final = 10_000
"""When more are kept, all are forgotten: each has its credit again."""


@dataclass(slots=True, eq=False)
class Client:
    """A client that waits for work."""

    address: str
    left: bool = False
    """Its connection is closed."""


NOBODY: Final = Client("")
"""Work for no client is this one's."""


class Turn(Protocol):
    """An item that waits."""

    @property
    def client(self) -> Client:
        """The client that it belongs to."""
        ...

    def take_turn(self) -> None:
        """Its turn has come: it works until the share is `used_up`."""
        ...


@dataclass(slots=True)
class _Address(Generic[T]):
    spent: float
    """What all its clients have had."""
    served: float = 0.0
    """The level of the client that was served last."""
    clients: dict[Client, float] = field(default_factory=dict)
    """What each has had, while that is more than a new client begins with."""
    items: list[tuple[float, int, Client, T]] = field(default_factory=list)
    """A heap; its levels may be older than `clients`, and its items may be void."""
    forget_at: int = _KEPT
    """With more clients than this, those at the level of a new one are forgotten."""


class FairQueue(Generic[T]):
    """Items, each once.

    Args:
        credit: how much a client that was silent has before the others continue.  Larger: more
            requests of clients that ask now and then are served at once.  Smaller: fewer requests
            of addresses and connections that are new all the time are.
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
        """Addresses that have items; an address may have had more since."""
        self._waiting: dict[T, int] = {}
        """Items that wait, and the numbers of their entries; other entries are void."""
        self._added = self._entries = 0
        self._forget_at = _KEPT
        """The same as of an address, for the addresses."""
        self._served = 0.0
        """The level of the address that was served last."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """Number of entries and accounts that are held."""
        addresses = self._addresses.values()
        return len(self._heap) + sum(len(a.items) + len(a.clients) for a in addresses)

    def add(self, client: Client, item: T) -> None:
        """*client* waits with *item*; a repeated call does nothing."""
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

    def first(self) -> tuple[Client, T]:
        """The next client and its item, which stays; the queue must not be empty."""
        while True:
            spent, number, name = self._heap[0]
            address = self._addresses[name]
            if spent < address.spent:
                heapq.heapreplace(self._heap, (address.spent, number, name))
                continue
            had, number, client, item = address.items[0]
            if self._waiting.get(item) != number:
                self._drop_first(address)
            elif had < address.clients.get(client, had):
                again = (address.clients[client], number, client, item)
                heapq.heapreplace(address.items, again)
            else:
                return client, item

    def take(self) -> tuple[Client, T]:
        """The next client and its item; the queue must not be empty."""
        client, item = self.first()
        address = self._addresses[client.address]
        self._served = max(self._served, self._heap[0][0])
        address.served = max(address.served, address.items[0][0])
        self._drop_first(address)
        del self._waiting[item]
        return client, item

    def _drop_first(self, address: _Address[T]) -> None:
        """Drop the first entry of *address*, which is the first one."""
        heapq.heappop(address.items)
        self._entries -= 1
        if not address.items:
            heapq.heappop(self._heap)

    def spend(self, client: Client, cost: float) -> None:
        """*client*, whose item was taken, has used *cost*."""
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
        """Nothing waits: what clients had before does not count."""
        self._addresses.clear()
        self._heap.clear()
        self._entries = 0
        self._forget_at = _KEPT
        self._served = 0.0
