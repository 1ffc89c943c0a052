"""Maintains the view of the cluster: reads each prefix, and watches it while the process lives.

    read a prefix at revision r ──▶ watch it from r + 1 ──▶ apply, notify ──▶ …
         ▲                                  │
         └── compacted, or refused ─────────┘

The watch continues between two sessions, because Metadata is answered then, too.  It stops reading
a store that is not the one that the process has seen (`witness/witness`): the view keeps its state.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from driftlog_agents.cluster.view import PREFIXES, ClusterView, TopicEntry
from driftlog_agents.foundation.retry import NO_ANSWER, GrowingTimeout, Waits
from driftlog_metadata.schema.model import ConfigsOwner
from driftlog_metadata.stores.errors import StoreNotOursError
from driftlog_metadata.stores.store import (
    CompactedError,
    KeyValue,
    MetadataStore,
    StoreWentBackError,
)

_TIMEOUT_S: Final = 10.0
"""Timeout of one read; doubled after each timeout, because the prefix may be large."""
_LONGEST_TIMEOUT_S: Final = 40.0
"""Longer: after a lost answer, the agent's view is stale for longer; shorter: a large prefix on a
slow store is never read."""
_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 2.0
_NOT_OURS_S: Final = 60.0
"""Wait before the next read of a store that is not the known one: it is refused until a restart."""

ConfigsChanged = Callable[[ConfigsOwner], None]
"""Called with what has other configs now."""

TopicChanged = Callable[[TopicEntry | None, TopicEntry | None], None]
"""Called with a topic before and after a change; None: it did not, or does not, exist."""


class ClusterWatch:
    """See the module.  `run` while the process lives."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._log = structlog.get_logger()
        self.view = ClusterView()
        self._topic_changed: TopicChanged = lambda _old, _new: None
        self._configs_changed: ConfigsChanged = lambda _owner: None
        self._waiting: dict[asyncio.Event, None] = {}
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        """Follow the metadata store until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for prefix in PREFIXES:
                tasks.create_task(self._follow(prefix))

    def watch_topics(self, changed: TopicChanged) -> None:
        """Call *changed* for each change of a topic from now on; it replaces the last one."""
        self._topic_changed = changed

    def watch_configs(self, changed: ConfigsChanged) -> None:
        """Call *changed* for each change of configs from now on; it replaces the last one."""
        self._configs_changed = changed

    async def loaded(self) -> None:
        """Wait until every prefix was read once."""
        await self.until(lambda: self.view.complete)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until *holds* returns True; it is called after every change.  False: timeout."""
        with self.changes() as changed, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not holds():
                    changed.clear()
                    await changed.wait()
        return holds()

    @contextlib.contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """An event that every change of the view sets; the waiter clears it before it waits."""
        event = asyncio.Event()
        self._waiting[event] = None
        try:
            yield event
        finally:
            del self._waiting[event]

    def wake(self) -> None:
        """Wake every waiter: its condition may depend on state of this process, not of the view."""
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
                # `health/metadata_store_monitor` logs it once a minute.
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
        """Apply a read in slices; a hundred thousand keys take a second of the loop."""
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
            self._topic_changed(old, new)
        for owner in self.view.take_config_changes():
            self._configs_changed(owner)
        damaged = self.view.damaged
        for key, why in damaged.items():
            if self._reported.get(key) != why:
                self._log.error(
                    "metadata_key_unreadable",
                    key=key,
                    error=why,
                    advice="the key counts as absent; restore it, or upgrade the agent",
                )
        if damaged or self._reported:
            self._reported = dict(damaged)
        self.wake()
