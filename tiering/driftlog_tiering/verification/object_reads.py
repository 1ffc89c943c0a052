"""Reads of a verification: a limited number at once, paced, and repeated when a store fails.

All requests read, so each may be repeated.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from driftlog_metadata.stores.errors import DeclinedError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import Listing, ObjectInfo, ObjectStore

RANGE_BYTES: Final = 4 * 1024 * 1024
"""Largest range of one request.  More: fewer requests, and more memory for each one at once."""

_FIRST_WAIT_S: Final = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How fast a verification reads."""

    at_once: int = 16
    """Requests at once.  More: faster from S3; each takes up to `RANGE_BYTES` of memory."""
    bytes_per_s: float | None = None
    """Bytes a second; None: as fast as the store."""
    deadline_s: float = 30.0
    """Of one attempt."""
    attempts: int = 5
    """Of one request, with pauses that double from half a second."""


async def _at_once() -> None:
    """Wait for nothing."""


class ObjectReads:
    """See the module.

    Args:
        turn: awaited before each read of a segment; returns when it may begin.
    """

    def __init__(
        self,
        store: ObjectStore,
        limits: ReadLimits | None = None,
        turn: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self.store = store
        self._turn = turn
        self.limits = limits or ReadLimits()
        self._slots = asyncio.Semaphore(self.limits.at_once)
        self._next_s = 0.0

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """The bytes ``[start, end)``, or fewer where the object ends; for ranges up to
        `RANGE_BYTES`.

        Raises:
            NotFoundError: no such object.
            UnavailableError, OutcomeUnknownError, TimeoutError: each attempt failed.
        """
        async with self._slots:
            await self._turn()
            await self._wait_for_rate(end - start)
            return await self._repeat(lambda: self.store.get(key, start, end))

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """As `get`, for a range of any size."""
        parts = [
            await self.get(key, at, min(at + RANGE_BYTES, end))
            for at in range(start, end, RANGE_BYTES)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def get_whole(self, key: str) -> Buffer:
        """A small object; raises as `get`."""
        return await self.ask(lambda: self.store.get(key))

    async def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """The answer to a request for something small.

        Raises: as `get`, and what *request* raises.
        """
        async with self._slots:
            return await self._repeat(request)

    async def keys(self, prefix: str) -> list[str]:
        """All keys under *prefix*, which are few.

        Raises: as `get`.
        """

        async def listed() -> list[str]:
            return [info.key async for page in self.store.list(prefix) for info in page.objects]

        return await self.ask(listed)

    async def objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects under *prefix*, ascending by key: a request for each page.

        Raises: as `get`.
        """
        after: str | None = ""
        while after is not None:
            page = await self.ask(lambda after=after: self._page(prefix, after))  # type: ignore[misc]
            for info in page.objects:
                yield info
            after = page.objects[-1].key if page.objects else None

    async def _page(self, prefix: str, after: str) -> Listing:
        return await anext(self.store.list(prefix, start_after=after))

    async def _repeat(self, request: Callable[[], Awaitable[T]]) -> T:
        wait_s = _FIRST_WAIT_S
        for left in range(self.limits.attempts - 1, -1, -1):
            try:
                async with asyncio.timeout(self.limits.deadline_s):
                    return await request()
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                if not left or isinstance(error, DeclinedError):
                    raise
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise AssertionError("at least one attempt")

    async def _wait_for_rate(self, size_bytes: int) -> None:
        if self.limits.bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._next_s)
        self._next_s = begin_s + size_bytes / self.limits.bytes_per_s
        if begin_s > now_s:
            await asyncio.sleep(begin_s - now_s)
