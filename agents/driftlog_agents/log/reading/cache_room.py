"""Decides which values a cache keeps within its budget: what is being read stays.

A consumer requests one row group sixteen times, 1 MiB at a time.  With plain LRU eviction, five
sequential consumers on a budget of four row groups would load each row group sixteen times.  So a
value that is being read stays (`hold_ms` after each use, until `finish`), and a load waits for
room; when its patience ends, the oldest value is evicted.

A value that is being loaded counts as loaded, so the budget covers both together.

Pure.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class _Entry(Generic[V]):
    value: V
    size_bytes: int
    used_ms: float
    finished: bool = False


class CacheRoom(Generic[K, V]):
    """The values of one cache, and the room that they and the loads in progress take.

    Args:
        budget_bytes: of all values, loaded and being loaded.  One value that is larger than
            that is still loaded, alone.
        hold_ms: how long a value stays for its reader's next request.
    """

    def __init__(self, *, budget_bytes: int, hold_ms: float) -> None:
        self._budget_bytes = budget_bytes
        self._hold_ms = hold_ms
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        """Least recently used first."""
        self.used_bytes = 0

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def use(self, key: K, now_ms: float) -> V:
        """The value of *key*, which is there."""
        entry = self._entries[key]
        self._entries.move_to_end(key)
        entry.used_ms = now_ms
        entry.finished = False
        return entry.value

    def finish(self, key: K) -> None:
        """A reader came to the value's end: it is evicted first, unless it is used again."""
        if key in self._entries:
            self._entries[key].finished = True

    def drop(self, key: K) -> None:
        """Remove the value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry.size_bytes

    # ── Loads ──

    def has_room(self, size_bytes: int, now_ms: float) -> bool:
        """Whether a load would evict nothing in use."""
        idle = sum(e.size_bytes for e in self._entries.values() if self._is_idle(e, now_ms))
        return self.used_bytes - idle + size_bytes <= self._budget_bytes

    def reserve(self, size_bytes: int, now_ms: float, *, forced: bool) -> bool:
        """Evicts until *size_bytes* more fit, and takes them for a load; False: try again when a
        value is finished or released, or at `idle_ms`.

        Args:
            forced: values in use are evicted, too.
        """
        while self.used_bytes and self.used_bytes + size_bytes > self._budget_bytes:
            victim = self._victim(now_ms, forced=forced)
            if victim is None:
                return False
            self.release(self._entries.pop(victim).size_bytes)
        self.used_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """A load that took *size_bytes* failed."""
        self.used_bytes -= size_bytes

    def add(
        self, key: K, value: V, size_bytes: int, now_ms: float, held_bytes: int | None = None
    ) -> None:
        """A load that took *size_bytes* succeeded; *held_bytes*: what the value takes; None: as
        many.  Where it takes more, others are evicted, in use or not."""
        if held_bytes is not None and held_bytes != size_bytes:
            self.used_bytes += held_bytes - size_bytes
            size_bytes = held_bytes
            while self.used_bytes > self._budget_bytes:
                victim = self._victim(now_ms, forced=True)
                if victim is None:
                    break
                self.release(self._entries.pop(victim).size_bytes)
        self._entries[key] = _Entry(value, size_bytes, now_ms)

    def idle_ms(self) -> float | None:
        """When the first value is idle; None: all values are being loaded, which ends."""
        times = (entry.used_ms + self._hold_ms for entry in self._entries.values())
        return min(times, default=None)

    def _victim(self, now_ms: float, *, forced: bool) -> K | None:
        oldest: K | None = None
        for key, entry in self._entries.items():
            if entry.finished:
                return key
            if oldest is None and (forced or self._is_idle(entry, now_ms)):
                oldest = key
        return oldest

    def _is_idle(self, entry: _Entry[V], now_ms: float) -> bool:
        return entry.finished or now_ms - entry.used_ms >= self._hold_ms
