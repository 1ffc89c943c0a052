"""Maintains the view of the cluster: reads each prefix, and watches it while the process lives.

    each prefix ──`prefix_watch`──▶ reset or apply ──▶ notify

The watch continues between two sessions, because Metadata is answered then, too.  It stops reading
a store that is not the one that the process has seen (`witness/witness`): the view keeps its state.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from driftlog_agents.cluster.prefix_watch import follow_prefix
from driftlog_agents.cluster.view import PREFIXES, ClusterView, TopicEntry
from driftlog_metadata.schema.model import ConfigsOwner
from driftlog_metadata.stores.store import KeyValue, MetadataStore, WatchEvent

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
                reset, apply = partial(self._reset, prefix), partial(self._apply, prefix)
                tasks.create_task(follow_prefix(self._store, prefix, reset, apply))

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

    async def _reset(self, prefix: str, revision: int, kvs: list[KeyValue]) -> None:
        """Apply a read in slices; a hundred thousand keys take a second of the loop.

        A topic's change is reported before another task sees it in the view: `delegated_partitions`
        compares the view's topic with the store's, and goes by the policy that it has now.
        """
        for _ in self.view.resetting(prefix, revision, kvs):
            self._report_topics()
            await asyncio.sleep(0)
        self._changed()

    def _apply(self, prefix: str, events: Sequence[WatchEvent]) -> None:
        self.view.apply(prefix, events)
        self._changed()

    def _report_topics(self) -> None:
        for old, new in self.view.take_topic_changes():
            self._topic_changed(old, new)

    def _changed(self) -> None:
        self._report_topics()
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
