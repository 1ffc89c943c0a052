"""A lock for each key: callers that name the same key run one at a time.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """Locks that exist while a caller holds them or waits for them; first come, first served."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[K, tuple[asyncio.Lock, int]] = {}
        """Each lock, and how many callers hold it or wait for it."""

    def __len__(self) -> int:
        return len(self._locks)

    def __contains__(self, key: object) -> bool:
        """Whether a caller holds the lock of *key* or waits for it."""
        return key in self._locks

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Hold the lock of *key*."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = lock, users - 1
