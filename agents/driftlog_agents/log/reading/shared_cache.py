"""A cache for values from the bucket: shared loads, which wait for room (`cache_room`).

    get ──▶ there ─────────────────────────────────────────────▶ the value
     │
     ├────▶ being loaded: wait for that ───────────────────────▶ the value, or its error
     │
     └────▶ wait for room ──▶ load ──▶ there
                 └── nobody waits for it any more (`WANTED`): given up

The client that has waited least for room is next (`foundation/fair_queue`).  A load that has room
goes on, whoever leaves: with a slow link, a client that connects again finds the value there.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

from driftlog_agents.foundation.loop_slices import served_client
from driftlog_agents.foundation.offload import FairOffload
from driftlog_agents.foundation.single_flight import SingleFlight
from driftlog_agents.log.reading.cache_room import CacheRoom

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SHORTEST_WAIT_MS: Final = 1.0


def always() -> bool:
    """Some task or other wants the value."""
    return True


WANTED: Final[ContextVar[Callable[[], bool]]] = ContextVar("wanted", default=always)
"""Whether a client waits for what this task reads."""


async def _awaited(wait: Callable[..., Awaitable[None]], *args: object) -> None:
    await wait(*args)


class SharedCache(Generic[K, V]):
    """Values that never change, by key.

    Args:
        budget_bytes: see `CacheRoom`; *hold_ms* too.
        patience_ms: how long a load waits until other values are read to their ends.
    """

    def __init__(
        self,
        *,
        budget_bytes: int,
        hold_ms: float,
        patience_ms: float,
        now_ms: Callable[[], float],
    ) -> None:
        self._room = CacheRoom[K, V](budget_bytes=budget_bytes, hold_ms=hold_ms)
        self._patience_ms = patience_ms
        self._now_ms = now_ms
        self._loading = SingleFlight[K, V]()
        self._queue = FairOffload(_awaited, now_ms)
        """Loads that wait for room."""
        self._changed = asyncio.Event()
        """A value was loaded, finished or given up."""
        self.loads = 0

    @property
    def used_bytes(self) -> int:
        """Of all values, loaded and being loaded."""
        return self._room.used_bytes

    def __contains__(self, key: K) -> bool:
        return key in self._room

    async def get(
        self,
        key: K,
        size_bytes: int,
        load: Callable[[], Awaitable[V]],
        held_bytes: Callable[[V], int] | None = None,
    ) -> V:
        """The value; if it is missing, *load* makes it, once for all concurrent callers.

        *size_bytes*: of the value, and while it is loaded.  *held_bytes*: of the value, where that
        is known only then.

        They all get its error.  If the caller that loads is cancelled, another one loads again.

        Raises:
            asyncio.CancelledError: also where it is not `WANTED` when there is room.
        """
        if key in self._room:
            return self._room.use(key, self._now_ms())
        return await self._loading.do(key, lambda: self._load(key, size_bytes, load, held_bytes))

    def finish(self, key: K) -> None:
        """A reader came to the value's end: it is evicted first, unless it is used again."""
        self._room.finish(key)
        self._changed.set()

    def drop(self, key: K) -> None:
        """Load the value again when it is next asked for."""
        self._room.drop(key)
        self._changed.set()

    def has_room(self, size_bytes: int) -> bool:
        """Whether a load would not wait: a read-ahead evicts nothing in use."""
        return not self._queue.busy and self._room.has_room(size_bytes, self._now_ms())

    async def _load(
        self,
        key: K,
        size_bytes: int,
        load: Callable[[], Awaitable[V]],
        held_bytes: Callable[[V], int] | None,
    ) -> V:
        if key in self._room:
            return self._room.use(key, self._now_ms())  # loaded after a cancelled load
        deadline_ms = self._now_ms() + self._patience_ms
        await self._queue.run(served_client(), 0, self._reserve, size_bytes, deadline_ms)
        self.loads += 1
        try:
            value = await load()
        except BaseException:
            self._room.release(size_bytes)
            raise
        else:
            held = None if held_bytes is None else held_bytes(value)
            self._room.add(key, value, size_bytes, self._now_ms(), held)
            return value
        finally:
            self._changed.set()  # a load that waited for loads only may evict the value later

    async def _reserve(self, size_bytes: int, deadline_ms: float) -> None:
        while True:
            if not WANTED.get()():
                raise asyncio.CancelledError  # whoever waits for this load loads again
            now_ms = self._now_ms()
            if self._room.reserve(size_bytes, now_ms, forced=now_ms >= deadline_ms):
                return
            self._changed.clear()
            idle_ms = self._room.idle_ms()
            wait_ms = None if idle_ms is None else min(idle_ms, deadline_ms) - now_ms
            await self._wait(wait_ms)

    async def _wait(self, wait_ms: float | None) -> None:
        """Wait until a value changes; at most *wait_ms*."""
        wait_s = None if wait_ms is None else max(_SHORTEST_WAIT_MS, wait_ms) / 1000
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return
