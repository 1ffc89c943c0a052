"""A lock for each key: callers that name the same key run one at a time, or a few.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """Locks that exist while a caller holds them or waits for them; first come, first served.

    Args:
        at_once: how many callers hold the lock of a key together.
    """

    __slots__ = ("_at_once", "_locks")

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._locks: dict[K, tuple[asyncio.Semaphore, int]] = {}
        """Each lock, and how many callers hold it or wait for it."""

    def __len__(self) -> int:
        return len(self._locks)

    def __contains__(self, key: object) -> bool:
        """Whether a caller holds the lock of *key* or waits for it."""
        return key in self._locks

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Hold the lock of *key*."""
        lock, users = self._locks.get(key) or (asyncio.Semaphore(self._at_once), 0)
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = lock, users - 1
