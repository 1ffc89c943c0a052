"""Times the requests to an object store, and counts how they end.

Adapter.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from driftlog_agents.foundation.histogram import FAILED, OK, REFUSED, UNANSWERED
from driftlog_agents.health.store_times import EXISTS, NOT_FOUND, StoreTimes
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.counted_store import RequestKind
from driftlog_tiering.stores.object_store import (
    AlreadyExistsError,
    Listing,
    NotFoundError,
    ObjectInfo,
    ObjectStore,
)


class TimedObjectStore:
    """See the module; an `ObjectStore`."""

    def __init__(self, store: ObjectStore, now_ms: Callable[[], float], times: StoreTimes) -> None:
        self._store = store
        self._now_ms = now_ms
        self._times = times.requests

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """See `ObjectStore`."""
        with self._timed(RequestKind.PUT):
            await self._store.put(key, body)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        """See `ObjectStore`."""
        with self._timed(RequestKind.PUT):
            await self._store.create(key, body)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """See `ObjectStore`."""
        with self._timed(RequestKind.GET):
            return await self._store.get(key, start, end)

    async def stat(self, key: str) -> ObjectInfo:
        """See `ObjectStore`."""
        with self._timed(RequestKind.HEAD):
            return await self._store.stat(key)

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        """See `ObjectStore`."""
        pages = self._store.list(prefix, start_after=start_after, page_size=page_size)
        while True:
            began_ms = self._now_ms()
            try:
                page = await anext(pages)
            except StopAsyncIteration:
                return
            except Exception as error:
                self._ended(RequestKind.LIST, _outcome(error), began_ms)
                raise
            self._ended(RequestKind.LIST, OK, began_ms)
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        with self._timed(RequestKind.DELETE):
            await self._store.delete(keys)

    async def close(self) -> None:
        """See `ObjectStore`."""
        await self._store.close()

    @contextmanager
    def _timed(self, kind: RequestKind) -> Iterator[None]:
        began_ms = self._now_ms()
        try:
            yield
        except Exception as error:
            self._ended(kind, _outcome(error), began_ms)
            raise
        self._ended(kind, OK, began_ms)

    def _ended(self, kind: RequestKind, outcome: str, began_ms: float) -> None:
        self._times[kind].ended(outcome, self._now_ms() - began_ms)


def _outcome(error: Exception) -> str:
    match error:
        case NotFoundError():
            return NOT_FOUND
        case AlreadyExistsError():
            return EXISTS
        case UnavailableError():
            return REFUSED
        case OutcomeUnknownError():
            return UNANSWERED
        case _:
            return FAILED
