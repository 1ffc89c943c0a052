"""Watches inside one process: the recent changes, and the readers that wait for more.

    record(revision, events) ──▶ [r₁ events] [r₂ events] … ──▶ each watch at its own pace
                                  └─ dropped by compact() or beyond max_events or max_bytes

A watch keeps the revision it needs next and reads the shared history on
``anext()``, so a slow one costs nothing and a cancelled ``anext()`` loses nothing.  It
waits on an asyncio future and never on a clock.

The half that `sqlite_store` and the memory store of the tests share.
Adapter.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Self

from driftlog_metadata.stores.limits import check_key, check_start_revision
from driftlog_metadata.stores.store import CompactedError, PutEvent, StoreWentBackError, WatchEvent


class History:
    """The events after ``compacted_revision``, and the watches that read them.

    Args:
        revision: the store's current one.
        compacted_revision: events up to and with it are not known any more.
        max_events: keep about so many; the newest revision is kept whole whatever its size.
            None: keep all until `compact`.
        max_bytes: keep about so many of keys and values, likewise: events hold whole values.
    """

    def __init__(
        self,
        revision: int,
        *,
        compacted_revision: int,
        max_events: int | None,
        max_bytes: int | None,
    ) -> None:
        self.revision = revision
        self.compacted_revision = compacted_revision
        self.closed = False
        self._max_events = inf if max_events is None else max_events
        self._max_bytes = inf if max_bytes is None else max_bytes
        self._events = 0
        self._bytes = 0
        self._entries: deque[tuple[int, tuple[WatchEvent, ...]]] = deque()
        self._watches: dict[HistoryWatch, None] = {}

    def record(self, revision: int, events: Sequence[WatchEvent]) -> None:
        """Add the changes of the next revision, and wake the watches that wait for them."""
        assert revision == self.revision + 1, "a revision was skipped or repeated"
        assert events, "a revision without a change"
        self.revision = revision
        self._entries.append((revision, tuple(events)))
        self._events += len(events)
        self._bytes += sum(map(_size_bytes, events))
        while self._has_too_much() and len(self._entries) > 1:
            self._drop_oldest()
        for watch in self._watches:
            watch.recorded(revision, events)

    def compact(self, revision: int) -> None:
        """Forget the events up to and with *revision*.

        Raises:
            ValueError: *revision* is in the future.
        """
        if revision > self.revision:
            raise ValueError(f"cannot compact at {revision}: the store is at {self.revision}")
        while self._entries and self._entries[0][0] <= revision:
            self._drop_oldest()
        self.compacted_revision = max(self.compacted_revision, revision)

    def watch(self, prefix: str, start_revision: int) -> "HistoryWatch":
        """Open a watch.

        Raises:
            ValueError: an empty prefix, or *start_revision* is not positive.
        """
        check_key(prefix)
        check_start_revision(start_revision)
        watch = HistoryWatch(self, prefix, start_revision)
        self._watches[watch] = None
        return watch

    def first_match(self, prefix: str, start_revision: int) -> tuple[int, list[WatchEvent]]:
        """The next revision from *start_revision* on that touches *prefix*, and its events.

        If there is none: (the first revision that may have one, []).

        Raises:
            CompactedError: part of that history is gone.
            StoreWentBackError: the store is behind the revision before *start_revision*.
        """
        if start_revision > self.revision + 1:
            raise StoreWentBackError(start_revision - 1, self.revision)
        if start_revision <= self.compacted_revision:
            raise CompactedError(
                f"revision {start_revision} was asked for, and those up to "
                f"{self.compacted_revision} are gone"
            )
        at = bisect_left(self._entries, start_revision, key=lambda entry: entry[0])
        for index in range(at, len(self._entries)):
            revision, events = self._entries[index]
            if found := _matching(prefix, events):
                return revision, found
        return max(start_revision, self.revision + 1), []

    def forget(self, watch: "HistoryWatch") -> None:
        """Remove a watch that was closed."""
        self._watches.pop(watch, None)

    def move(self, other: "History") -> None:
        """Move every watch to the history of another store, with its revision."""
        for watch in list(self._watches):
            self.forget(watch)
            other.adopt(watch)

    def adopt(self, watch: "HistoryWatch") -> None:
        """Take over a watch of another history."""
        self._watches[watch] = None
        watch.moved(self)

    def close(self) -> None:
        """End every watch."""
        self.closed = True
        for watch in list(self._watches):
            watch.end()

    def _has_too_much(self) -> bool:
        return self._events > self._max_events or self._bytes > self._max_bytes

    def _drop_oldest(self) -> None:
        revision, events = self._entries.popleft()
        self._events -= len(events)
        self._bytes -= sum(map(_size_bytes, events))
        self.compacted_revision = revision


class HistoryWatch:
    """A `driftlog_metadata.stores.store.Watch` for one reader: one ``anext()`` at a time."""

    def __init__(self, history: History, prefix: str, start_revision: int) -> None:
        self._history = history
        self._prefix = prefix
        self._next_revision = start_revision
        self._waiter: asyncio.Future[None] | None = None
        self._ended = history.closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WatchEvent]:
        """Wait for the next revision that touches the prefix.

        Raises:
            CompactedError: its history is gone; the watch stays where it is.
            StoreWentBackError: see `MetadataStore.watch`; the watch stays where it is.
        """
        assert self._waiter is None, "two readers of one watch"
        while not self._ended:
            revision, events = self._history.first_match(self._prefix, self._next_revision)
            if events:
                self._next_revision = revision + 1
                return events
            self._next_revision = revision
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """See `driftlog_metadata.stores.store.Watch.aclose`."""
        self.end()

    def recorded(self, revision: int, events: Sequence[WatchEvent]) -> None:
        """Take a new revision; one without the prefix moves the watch forward without a wake-up."""
        if self._waiter is None or self._waiter.done() or revision < self._next_revision:
            return
        if any(_key(event).startswith(self._prefix) for event in events):
            self._waiter.set_result(None)
        else:
            self._next_revision = revision + 1

    def moved(self, history: History) -> None:
        """Continue in *history*, from the same revision."""
        self._history = history
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """End the watch, and wake its reader."""
        self._ended = True
        self._history.forget(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _key(event: WatchEvent) -> str:
    return event.kv.key if isinstance(event, PutEvent) else event.key


def _size_bytes(event: WatchEvent) -> int:
    return len(_key(event)) + (len(event.kv.value) if isinstance(event, PutEvent) else 0)


def _matching(prefix: str, events: Sequence[WatchEvent]) -> list[WatchEvent]:
    return [event for event in events if _key(event).startswith(prefix)]
