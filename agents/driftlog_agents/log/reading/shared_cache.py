"""A byte budget for what was fetched from the bucket: shared loads, and no thrashing.

    get ──▶ there ─────────────────────────────────────────────▶ the value
     │
     ├────▶ being loaded: wait for that ───────────────────────▶ the value, or its error
     │
     └────▶ wait for room ──▶ load ──▶ there

A consumer asks sixteen times for one row group, 1 MiB at a time.  Were the least recently
used entry simply evicted, five sequential consumers on a budget of four row groups would load
each row group sixteen times.  So what is being read stays (`hold_ms` after each use, until
`finish`) and newcomers wait their turn: at most `patience_ms`, then the oldest goes after all.

What is being loaded counts as there, so the budget holds for both together.

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
        patience_ms: how long a load waits for others' values to be read to their ends.
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
        """Who waits for room; first come, first served."""
        self._changed = asyncio.Event()
        self.used_bytes = 0
        self.loads = 0

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    async def get(self, key: K, size_bytes: int, load: Callable[[], Awaitable[V]]) -> V:
        """The value; *load* makes it if need be, once for all who ask meanwhile.

        Its errors are theirs too.  If the one who loads is cancelled, another begins again.
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
        """A reader came to the end of it: it is the first to go, if nobody asks again."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.finished = True
            self._changed.set()

    def has_room(self, size_bytes: int) -> bool:
        """Whether a load would wait for nobody: what is read ahead displaces nothing in use."""
        idle = sum(e.size_bytes for e in self._entries.values() if self._is_idle(e))
        return (
            not self._queue.locked() and self.used_bytes - idle + size_bytes <= self._budget_bytes
        )

    async def _load(self, key: K, size_bytes: int, load: Callable[[], Awaitable[V]]) -> V:
        if (entry := self._entries.get(key)) is not None:
            return self._use(key, entry)  # loaded by another that waited for a cancelled load
        await self._make_room(size_bytes)
        self.loads += 1
        try:
            value = await load()
        except BaseException:
            self._release(size_bytes)
            raise
        self._entries[key] = _Entry(value, size_bytes, self._now_ms())
        self._changed.set()  # who saw nothing but loads may evict it, in its time
        return value

    # ── Room ──

    async def _make_room(self, size_bytes: int) -> None:
        """Evict until *size_bytes* more fit, and take them."""
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
        """Until something is finished, given up, idle, or patience is at its end."""
        times = [entry.used_ms + self._hold_ms for entry in self._entries.values()]
        if self._entries:
            times.append(deadline_ms)
        self._changed.clear()
        if not times:  # all of it is being loaded, which ends
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
