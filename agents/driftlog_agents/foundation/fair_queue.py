"""A queue of what clients want of one event loop: who has had least of it is next.

    add ──▶ the address that has spent least ──▶ its client that has spent least ──▶ take

A client that asks now and then goes before those that ask all the time, and a thousand clients of
one address count as much as one of another.  An address or client that comes, or was silent, begins
with what those have spent that are served, less a credit: so it goes before them, but not for long.
Source: start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996), of addresses and in each.

Pure.
"""

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class Address:
    """All clients of one address."""

    __slots__ = ("__weakref__", "name", "served_s", "spent_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.spent_s = 0.0
        self.served_s = 0.0
        """What its client had spent that was served last."""


class Client:
    """Whose work it is, and what that has taken."""

    __slots__ = ("address", "spent_s")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """So much of the event loop was its (negative: was not, after all)."""
        self.spent_s += seconds
        self.address.spent_s += seconds


class FairQueue(Generic[T]):
    """Items, each once.

    Args:
        credit_s: how long who was silent goes before the others.  Longer: more requests that come
            now and then are served at once.  Shorter: the same of addresses and connections that
            are new all the time.
    """

    __slots__ = ("_added", "_addresses", "_credit_s", "_items", "_served_s", "_waiting")

    def __init__(self, credit_s: float) -> None:
        self._credit_s = credit_s
        self._addresses: list[tuple[float, int, Address]] = []
        """A heap of those that have items; one may have spent more since."""
        self._items: dict[Address, list[tuple[float, int, Client, T]]] = {}
        """A heap of each."""
        self._waiting: dict[T, int] = {}
        """What waits, and which entry of a heap is it; others are void."""
        self._added = 0
        self._served_s = 0.0
        """What the address had spent that was served last."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, client: Client, item: T) -> None:
        """*client* waits with *item*; nothing happens if it does already."""
        if item in self._waiting:
            return
        self._added += 1
        self._waiting[item] = self._added
        address = client.address
        items = self._items.get(address)
        if items is None:
            items = self._items[address] = []
            address.spent_s = max(address.spent_s, self._served_s - self._credit_s)
            heapq.heappush(self._addresses, (address.spent_s, self._added, address))
        client.spent_s = max(client.spent_s, address.served_s - self._credit_s)
        heapq.heappush(items, (client.spent_s, self._added, client, item))

    def remove(self, item: T) -> None:
        """*item*, if it is there, waits no longer."""
        self._waiting.pop(item, None)

    def take(self, cost_s: float) -> tuple[Client, T]:
        """Who is next, with what, of a queue that is not empty: it spends *cost_s*."""
        while True:
            spent_s, number, address = self._addresses[0]
            if spent_s < address.spent_s:
                heapq.heapreplace(self._addresses, (address.spent_s, number, address))
                continue
            items = self._items[address]
            client_spent_s, number, client, item = heapq.heappop(items)
            if not items:
                heapq.heappop(self._addresses)
                del self._items[address]
            if self._waiting.get(item) != number:
                continue
            del self._waiting[item]
            self._served_s = max(self._served_s, spent_s)
            address.served_s = max(address.served_s, client_spent_s)
            client.spend(cost_s)
            return client, item
