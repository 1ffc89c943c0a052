"""Counts the requests that go to an object store, by kind, and the bytes in both directions.

A request counts when it is sent, whatever becomes of it: a store bills what it has received.  (Of a
listing, the request of a page after the first counts when the page is there.)  The kinds are those
of S3's price list.

Shell.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import Listing, ObjectInfo, ObjectStore

_DELETED_AT_ONCE: Final = 1_000
"""Keys of one DeleteObjects request of S3."""


class RequestKind(StrEnum):
    """A kind of request; each page of a listing is one."""

    PUT = "put"
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"


@dataclass(slots=True)
class StoreRequests:
    """What was sent since the start."""

    sent: Counter[RequestKind] = field(default_factory=Counter)
    put_bytes: int = 0
    """Bytes of the bodies that were sent."""
    got_bytes: int = 0
    """Bytes of the bodies that were received."""


class CountedObjectStore:
    """See the module."""

    def __init__(self, store: ObjectStore, requests: StoreRequests | None = None) -> None:
        self._store = store
        self.requests = StoreRequests() if requests is None else requests

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """See `ObjectStore`."""
        self._count_put(body)
        await self._store.put(key, body)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        """See `ObjectStore`."""
        self._count_put(body)
        await self._store.create(key, body)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """See `ObjectStore`."""
        self.requests.sent[RequestKind.GET] += 1
        found = await self._store.get(key, start, end)
        self.requests.got_bytes += len(found)
        return found

    async def stat(self, key: str) -> ObjectInfo:
        """See `ObjectStore`."""
        self.requests.sent[RequestKind.HEAD] += 1
        return await self._store.stat(key)

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        """See `ObjectStore`."""
        self.requests.sent[RequestKind.LIST] += 1
        first = True
        async for page in self._store.list(prefix, start_after=start_after, page_size=page_size):
            self.requests.sent[RequestKind.LIST] += not first
            first = False
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        self.requests.sent[RequestKind.DELETE] += -(-len(keys) // _DELETED_AT_ONCE)
        await self._store.delete(keys)

    async def close(self) -> None:
        """See `ObjectStore`."""
        await self._store.close()

    def _count_put(self, body: Sequence[Buffer]) -> None:
        self.requests.sent[RequestKind.PUT] += 1
        self.requests.put_bytes += sum(map(len, body))
