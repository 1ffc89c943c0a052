"""A cache with a byte budget for values from the bucket: shared loads, and no thrashing.

    get ──▶ there ─────────────────────────────────────────────▶ the value
     │
     ├────▶ being loaded: wait for that ───────────────────────▶ the value, or its error
     │
     └────▶ wait for room ──▶ load ──▶ there

A consumer requests one row group sixteen times, 1 MiB at a time.  With plain LRU eviction, five
sequential consumers on a budget of four row groups would load each row group sixteen times.  So a
value that is being read stays (`hold_ms` after each use, until `finish`), and new loads wait: at
most `patience_ms`, then the cache evicts the oldest value.

A value that is being loaded counts as loaded, so the budget covers both together.

Shell.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from driftlog_agents.foundation.single_flight import SingleFlight

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SHORTEST_WAIT_MS: Final = 1.0


@dataclass(slots=True, eq=False)
class _Entry(Generic[V]):
    value: V
    size_bytes: int
    used_ms: float
    finished: bool = False


class SharedCache(Generic[K, V]):
    """Values that never change, by key.

    Args:
        budget_bytes: of all values, loaded and being loaded.  One value that is larger than
            that is still loaded, alone.
        hold_ms: how long a value stays for its reader's next request.
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
        self._budget_bytes = budget_bytes
        self._hold_ms = hold_ms
        self._patience_ms = patience_ms
        self._now_ms = now_ms
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        """Least recently used first."""
        self._loading = SingleFlight[K, V]()
        self._queue = asyncio.Lock()
        """Loads that wait for room; first come, first served."""
        self._changed = asyncio.Event()
        self.used_bytes = 0
        self.loads = 0

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    async def get(self, key: K, size_bytes: int, load: Callable[[], Awaitable[V]]) -> V:
        """The value; if it is missing, *load* makes it, once for all concurrent callers.

        They all get its error.  If the caller that loads is cancelled, another one loads again.
        """
        entry = self._entries.get(key)
        if entry is None:
            return await self._loading.do(key, lambda: self._load(key, size_bytes, load))
        return self._use(key, entry)

    def _use(self, key: K, entry: _Entry[V]) -> V:
        self._entries.move_to_end(key)
        entry.used_ms = self._now_ms()
        entry.finished = False
        return entry.value

    def finish(self, key: K) -> None:
        """A reader came to the value's end: it is evicted first, unless it is used again."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.finished = True
            self._changed.set()

    def has_room(self, size_bytes: int) -> bool:
        """Whether a load would not wait: a read-ahead evicts nothing in use."""
        idle = sum(e.size_bytes for e in self._entries.values() if self._is_idle(e))
        return (
            not self._queue.locked() and self.used_bytes - idle + size_bytes <= self._budget_bytes
        )

    async def _load(self, key: K, size_bytes: int, load: Callable[[], Awaitable[V]]) -> V:
        if (entry := self._entries.get(key)) is not None:
            return self._use(key, entry)  # another caller loaded it, after a cancelled load
        await self._make_room(size_bytes)
        self.loads += 1
        try:
            value = await load()
        except BaseException:
            self._release(size_bytes)
            raise
        self._entries[key] = _Entry(value, size_bytes, self._now_ms())
        self._changed.set()  # a load that waited for loads only may evict it later
        return value

    # ── Room ──

    async def _make_room(self, size_bytes: int) -> None:
        """Evict until *size_bytes* more fit, and reserve them."""
        deadline_ms = self._now_ms() + self._patience_ms
        async with self._queue:
            while self.used_bytes and self.used_bytes + size_bytes > self._budget_bytes:
                now_ms = self._now_ms()
                victim = self._victim(forced=now_ms >= deadline_ms)
                if victim is not None:
                    self._release(self._entries.pop(victim).size_bytes)
                    continue
                await self._wait(now_ms, deadline_ms)
            self.used_bytes += size_bytes

    def _victim(self, *, forced: bool) -> K | None:
        oldest: K | None = None
        for key, entry in self._entries.items():
            if entry.finished:
                return key
            if oldest is None and (forced or self._is_idle(entry)):
                oldest = key
        return oldest

    def _is_idle(self, entry: _Entry[V]) -> bool:
        return entry.finished or self._now_ms() - entry.used_ms >= self._hold_ms

    async def _wait(self, now_ms: float, deadline_ms: float) -> None:
        """Wait until a value is finished, released or idle, or the deadline has come."""
        times = [entry.used_ms + self._hold_ms for entry in self._entries.values()]
        if self._entries:
            times.append(deadline_ms)
        self._changed.clear()
        if not times:  # all values are being loaded, which ends
            await self._changed.wait()
            return
        wait_ms = max(_SHORTEST_WAIT_MS, min(times) - now_ms)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    def _release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._changed.set()
