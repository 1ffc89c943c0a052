"""The object store in memory: for the simulator and for tests.

One instance is one bucket; several agents share it.  It awaits nothing, so every
call happens at one instant of virtual time; the simulator wraps it for a network,
and decides there which calls are late, refused or lost.  It asserts what the port
leaves to its callers: `put` never meets its own key.

Adapter.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Sequence

from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_keys import check_key, check_page_size, check_range
from driftlog_tiering.stores.object_store import (
    AlreadyExistsError,
    Listing,
    NotFoundError,
    ObjectInfo,
)


class MemoryObjectStore:
    """A bucket that is a dictionary.

    Args:
        now_ms: the store's clock, which dates listings and objects.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []  # Sorted: code points sort as their UTF-8 does.

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        check_key(key)
        assert key not in self._objects, f"put over an object: {key}"
        self._add(key, body)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        check_key(key)
        if key in self._objects:
            raise AlreadyExistsError(key)
        self._add(key, body)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(start, end)
        return self._object(key)[0][start:end]

    async def stat(self, key: str) -> ObjectInfo:
        check_key(key)
        body, modified_ms = self._object(key)
        return ObjectInfo(key, len(body), modified_ms)

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        check_page_size(page_size)
        while True:
            page = self._page(prefix, start_after, page_size + 1)
            yield Listing(tuple(page[:page_size]), self._now_ms())
            if len(page) <= page_size:
                return
            start_after = page[page_size - 1].key

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_right(self._keys, key) - 1]

    async def close(self) -> None:
        """Does nothing: the bucket outlives the agents that share it."""

    def _add(self, key: str, body: Sequence[Buffer]) -> None:
        self._objects[key] = b"".join(body), self._now_ms()
        insort(self._keys, key)

    def _object(self, key: str) -> tuple[bytes, int]:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFoundError(key) from None

    def _page(self, prefix: str, start_after: str, size: int) -> Sequence[ObjectInfo]:
        page = []
        first = max(bisect_right(self._keys, start_after), bisect_left(self._keys, prefix))
        for key in self._keys[first : first + size]:
            if not key.startswith(prefix):
                break
            body, modified_ms = self._objects[key]
            page.append(ObjectInfo(key, len(body), modified_ms))
        return page
