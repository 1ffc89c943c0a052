"""Keeps the view of the cluster: reads each prefix, and follows it while the process lives.

    read a prefix at revision r ──▶ watch it from r + 1 ──▶ apply, tell ──▶ …
         ▲                                  │
         └── compacted, or refused ─────────┘

Between two sessions it goes on: Metadata is answered then, too.  A store that is not the one that
the process has seen is followed no more (`witness/witness`): the view stays as it is.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from driftlog_agents.cluster.view import PREFIXES, ClusterView, TopicEntry
from driftlog_agents.foundation.retry import NO_ANSWER, GrowingTimeout, Waits
from driftlog_metadata.stores.errors import StoreNotOursError
from driftlog_metadata.stores.store import (
    CompactedError,
    KeyValue,
    MetadataStore,
    StoreWentBackError,
)

_TIMEOUT_S: Final = 10.0
"""Of one read; twice as long after each that ran out of it: it may be large."""
_LONGEST_TIMEOUT_S: Final = 40.0
"""Longer: an answer that is lost after a long silence keeps the agent from the cluster for longer;
shorter: a large prefix on a slow store is never read."""
_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 2.0
_NOT_OURS_S: Final = 60.0
"""Before a store is asked again that is not the one we know: until a restart it is refused."""

TopicChanged = Callable[[TopicEntry | None, TopicEntry | None], None]
"""Told what a topic was and what it is now; None: it was, or is, not there."""


class ClusterWatch:
    """See the module.  `run` while the process lives."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._log = structlog.get_logger()
        self.view = ClusterView()
        self.on_topic: TopicChanged = lambda _old, _new: None
        self._waiting: dict[asyncio.Event, None] = {}
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        """Follow the metadata store until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for prefix in PREFIXES:
                tasks.create_task(self._follow(prefix))

    async def loaded(self) -> None:
        """Wait until everything was read once."""
        await self.until(lambda: self.view.complete)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until *holds*, which is asked after every change; False: it took too long."""
        with self.changes() as changed, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not holds():
                    changed.clear()
                    await changed.wait()
        return holds()

    @contextlib.contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """An event that every change of the view sets; a waiter clears it first."""
        event = asyncio.Event()
        self._waiting[event] = None
        try:
            yield event
        finally:
            del self._waiting[event]

    def wake(self) -> None:
        """Wake every waiter: what it waits for may be in this process and not in the view."""
        for event in self._waiting:
            event.set()

    # ── Following ──

    async def _follow(self, prefix: str) -> None:
        waits = Waits(_RETRY_S, _MAX_RETRY_S)
        timeout = GrowingTimeout(_TIMEOUT_S, _LONGEST_TIMEOUT_S)
        while True:
            try:
                revision, kvs = await timeout.of(self._store.get_prefix(prefix))
                await self._reset(prefix, revision, kvs)
                waits.reset()
                await self._watch(prefix, revision + 1)
            except (StoreNotOursError, StoreWentBackError):
                # The agent says so, once a minute.
                await asyncio.sleep(_NOT_OURS_S)
                continue
            except CompactedError as error:
                self._log.info("watch_compacted", prefix=prefix, reason=str(error))
                continue
            except NO_ANSWER as error:
                self._log.warning(
                    "cluster_read_repeated", prefix=prefix, error=str(error) or repr(error)
                )
            await waits.wait()

    async def _reset(self, prefix: str, revision: int, kvs: list[KeyValue]) -> None:
        """Show what was read; a hundred thousand keys take a second of the loop, in slices."""
        for _ in self.view.resetting(prefix, revision, kvs):
            await asyncio.sleep(0)
        self._changed()

    async def _watch(self, prefix: str, start_revision: int) -> None:
        watch = self._store.watch(prefix, start_revision)
        try:
            async for events in watch:
                self.view.apply(prefix, events)
                self._changed()
        finally:
            await watch.aclose()

    def _changed(self) -> None:
        for old, new in self.view.take_topic_changes():
            self.on_topic(old, new)
        damaged = self.view.damaged
        for key, why in damaged.items():
            if self._reported.get(key) != why:
                self._log.error(
                    "metadata_key_unreadable",
                    key=key,
                    error=why,
                    advice="it counts as absent; put back what it was, or upgrade the agent",
                )
        if damaged or self._reported:
            self._reported = dict(damaged)
        self.wake()
