"""The collector: deletes objects that nobody names any more, late and only what is sure to be.

    flush objects    no record names it ──since a grace period, seen so all along──▶ deleted
    deleted topics   tombstone, mark a grace period old ──▶ objects ──▶ nothing but the mark,
                     a grace period long ──▶ mark ──▶ tombstone
    heads            of sessions that are over: see `heads`

1. The clock is the store's: the time of its listings and of its objects' PUTs.
2. Nothing goes whose own PUT is younger than the grace period: nobody may name an object whose
   PUT began more than 6 h ago, so what is unnamed and older stays unnamed.
3. Grace of a flush object runs from when this collector first saw it unnamed; that is kept in the
   agent's directory, and counts for nothing after a time in which nobody looked.
4. What does not parse as a key of ours, here or in the metadata store, is left alone, and logged;
   what it names all the same stays.

Source: design.md, "Garbage".

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from driftlog_agents.garbage import Pass, Sightings, decode_sightings
from driftlog_agents.heads import Heads, HeadSettings
from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.strangers import Strangers
from driftlog_metadata.codec import decode_at, decode_flush_record, decode_topic
from driftlog_metadata.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.keys import (
    DELETED_PREFIX,
    FLUSHES_PREFIX,
    parse_deleted_key,
    parse_flush_key,
    topic_key,
)
from driftlog_metadata.model import Topic
from driftlog_metadata.store import Delete, KeyValue, MetadataStore, ModRevisionIs
from driftlog_tiering import layout
from driftlog_tiering.object_store import Listing, ObjectStore

HOUR_MS: Final = 3_600_000
MIN_GRACE_MS: Final = 12 * HOUR_MS
"""Twice the 6 h within which an object must be named that is to be named at all."""

STATE_FILE: Final = "garbage.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """When garbage goes, and how much of it at once."""

    grace_ms: int = MIN_GRACE_MS
    """Longer: readers with old lists of files are safe for longer, and garbage costs more.
    Shorter than 12 h is not safe: tests only."""

    interval_ms: int = 900_000
    """Between two looks.  Shorter: more LIST requests; garbage goes no sooner than its grace."""

    max_gap_ms: int = 2 * HOUR_MS
    """After a longer time without a look the grace of what was unnamed begins again."""

    max_deletes: int = 100_000
    """Of one pass; the rest waits for the next one."""

    pause_ms: float = 50.0
    """Between two pages of a listing: other requests go first."""

    request_deadline_ms: float = 30_000.0


class Collector:
    """See the module.

    Args:
        wanted: asked before each look: one agent of a cluster looks; two do no harm for a while.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        disk: AgentDisk,
        settings: CollectorSettings | None = None,
        heads: HeadSettings | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._metadata = metadata
        self._objects = objects
        self._disk = disk
        self._settings = settings or CollectorSettings()
        self._log = structlog.get_logger()
        self._strangers = Strangers()
        self.heads = Heads(metadata=metadata, disk=disk, settings=heads, strangers=self._strangers)
        self._wanted = wanted
        self._known: Sightings | None = None
        self._deletes_left = 0
        self.deleted_objects = 0
        self.strange_objects = 0
        """Of the last pass: keys that no driftlog writes."""

    async def run(self) -> None:
        """Collect periodically until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_ms / 1000)
            if not self._wanted():
                continue
            try:
                await self.collect()
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                self._log.warning("collection_abandoned", error=repr(error), advice="tried again")
            except CorruptError as error:
                # What names objects cannot be read: nothing may go until it can.
                self._log.error("collection_refused", error=str(error))

    async def collect(self) -> None:
        """Look once at everything, and delete what may go.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; look again later.
            CorruptError: a flush record, tombstone or partition's state is damaged; nothing was
                deleted after it.
        """
        self._deletes_left = self._settings.max_deletes
        self.strange_objects = 0
        before = self._known if self._known is not None else self._load()
        deleted = self.deleted_objects
        known, look = await self._flush_objects(before)
        await self._deleted_topics(known)
        self._known = known
        self._save(known)
        self._log.info(
            "garbage_collected",
            deleted=self.deleted_objects - deleted,
            named=look.named_objects,
            unnamed=look.unnamed_objects,
            deleted_topics=len(known.topics),
            strange=self.strange_objects,
        )
        await self.heads.collect(known.seen_ms)

    # ── Flush objects ──

    async def _flush_objects(self, before: Sightings) -> tuple[Sightings, Pass]:
        # Records first: what is committed while the listing runs is young, and stays.
        records = self._strangers.decoded(
            await self._read(FLUSHES_PREFIX), decode_flush_record, parse_flush_key
        )
        named = frozenset(record.object_key for record in records)
        settings = self._settings
        look = Pass(before, named, grace_ms=settings.grace_ms, max_gap_ms=settings.max_gap_ms)
        now_ms = before.seen_ms
        async for page in self._pages(layout.FLUSH_PREFIX):
            now_ms = page.store_now_ms
            ours = tuple(info for info in page.objects if self._is_flush(info.key))
            await self._delete(look.garbage(ours, now_ms))
        return look.end(now_ms), look

    def _is_flush(self, key: str) -> bool:
        try:
            layout.parse_flush_key(key)
        except ValueError:
            self._strange(key)
            return False
        return True

    # ── Deleted topics ──

    async def _deleted_topics(self, known: Sightings) -> None:
        there: dict[str, int] = {}
        for kv in await self._read(DELETED_PREFIX):
            if not self._strangers.is_ours(kv.key, parse_deleted_key):
                continue
            topic = decode_at(kv.key, kv.value, decode_topic)
            if await self._still_named(topic):
                continue  # Its deletion is not finished.
            name = str(topic.topic_id)
            since_ms = await self._topic_objects(topic, known.topics.get(name))
            if since_ms is None:
                continue
            there[name] = since_ms
            if known.seen_ms - since_ms >= self._settings.grace_ms:
                await self._remove_tombstone(topic, kv)
                del there[name]
        known.topics = there

    async def _still_named(self, topic: Topic) -> bool:
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            kv = await self._metadata.get(topic_key(topic.name))
        return (
            kv is not None and decode_at(kv.key, kv.value, decode_topic).topic_id == topic.topic_id
        )

    async def _topic_objects(self, topic: Topic, since_ms: int | None) -> int | None:
        """Delete what may go of a deleted topic.

        Returns since when nothing but its mark is there; None: something still is.
        """
        grace_ms = self._settings.grace_ms
        mark = layout.deleted_key(topic.name, topic.topic_id)
        marked_ms: int | None = None
        prefix = layout.topic_file_prefix(topic.name, topic.topic_id)
        async for page in self._pages(prefix):
            for info in page.objects:
                if info.key == mark:
                    marked_ms = info.modified_ms
        empty, now_ms = True, 0
        async for page in self._pages(layout.topic_prefix(topic.name, topic.topic_id)):
            now_ms = page.store_now_ms
            others = [info for info in page.objects if info.key != mark]
            empty = empty and not others
            if marked_ms is None or now_ms - marked_ms < grace_ms:
                continue
            await self._delete(
                [
                    info.key
                    for info in others
                    if now_ms - info.modified_ms >= grace_ms and self._is_ours(info.key)
                ]
            )
        if not empty:
            return None
        return now_ms if since_ms is None else since_ms

    def _is_ours(self, key: str) -> bool:
        try:
            layout.parse_key(key)
        except ValueError:
            self._strange(key)
            return False
        return True

    async def _remove_tombstone(self, topic: Topic, kv: KeyValue) -> None:
        """The mark first: while there is a tombstone, this is done again."""
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            await self._objects.delete([layout.deleted_key(topic.name, topic.topic_id)])
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            await self._metadata.txn((ModRevisionIs(kv.key, kv.mod_revision),), (Delete(kv.key),))
        self._log.info("topic_collected", topic=topic.name, topic_id=str(topic.topic_id))

    # ── Stores ──

    async def _read(self, prefix: str) -> list[KeyValue]:
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            _, kvs = await self._metadata.get_prefix(prefix)
        return kvs

    async def _pages(self, prefix: str) -> AsyncIterator[Listing]:
        pages = aiter(self._objects.list(prefix))
        while True:
            async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
                page = await anext(pages, None)
            if page is None:
                return
            yield page
            await asyncio.sleep(self._settings.pause_ms / 1000)

    async def _delete(self, keys: list[str]) -> None:
        keys = keys[: self._deletes_left]
        if not keys:
            return
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            await self._objects.delete(keys)
        self._deletes_left -= len(keys)
        self.deleted_objects += len(keys)

    def _strange(self, key: str) -> None:
        self.strange_objects += 1
        if self.strange_objects == 1:
            self._log.warning("strange_object", object=key, advice="left alone: nobody's of ours")

    # ── What is remembered ──

    def _load(self) -> Sightings:
        try:
            data = self._disk.load(STATE_FILE)
            return Sightings() if data is None else decode_sightings(data)
        except (UnavailableError, CorruptError) as error:
            self._log.warning(
                "garbage_forgotten", error=str(error), advice="every grace period begins again"
            )
            return Sightings()

    def _save(self, known: Sightings) -> None:
        try:
            self._disk.save(STATE_FILE, known.encode())
        except UnavailableError as error:
            self._log.warning("garbage_not_saved", error=str(error))
