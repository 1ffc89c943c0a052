"""The collector: deletes objects that nobody names any more, late and only what is sure to be.

    flush objects    no record names it ──since a grace period, seen so all along──▶ deleted
    deleted topics   tombstone, mark a grace period old ──▶ objects ──▶ nothing but the mark,
                     a grace period long ──▶ mark ──▶ tombstone
    heads            of sessions that are over: see `heads`
    node ids         of directories that are gone: see `node_ids`

1. The clock is the store's: the time of its listings and of its objects' PUTs.
2. Nothing goes whose own PUT is younger than the grace period, and what is unnamed and as old stays
   unnamed: every object is named within 6 h of the beginning of its PUT, or never.
   Of each kind, by the clock of the agent that names it:
   flush objects: no commit is sent later (`ingest/flush_pipeline`, 5); a commit without an answer
   by then ends the session, which fences it.
   Objects of a consolidation: their transaction is sent within 1 h (`consolidation/rewrite_job`).
   Segments, producer snapshots, lists: their edit is sent within 6 h of the read of the manifest
   that it is based on (`objects/manifest_cache`, 5), and that read comes before their PUTs
   (`sealing/sealer`).
   What was sent before may act later: the other 6 h are for that, and for clocks that differ.
3. An object of a flush that a live session may still commit counts as named, however old it is
   (`garbage/named_flush_objects`, 2).  For commits this holds without any clock; 2 says the same
   once more.
4. Names are read after the page of the listing that they judge, session by session.  What is
   unnamed then and as old as 2 says is unnamed at the delete, too, and afterwards.  The names of a
   session whose objects fill several pages are read once an hour: 2 leaves six.
5. Grace of a flush object runs from when this collector first saw it unnamed; that is kept in the
   agent's directory, and counts for nothing after a time in which nobody looked.
6. Nothing goes on the word of a metadata store that is not the cluster's: each batch of deletes is
   confirmed first, after the names were read.
7. What does not parse as a key of ours, here or in the metadata store, is left alone, and logged;
   what it names all the same stays.  Objects of a session whose records cannot be read stay.

Source: design.md, "Garbage".

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import structlog

from driftlog_agents.cluster.node_ids import NodeIds
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.garbage.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.named_flush_objects import NamedFlushObjects, read_names
from driftlog_agents.log.garbage.session_head_gc import HeadSettings, SessionHeadGc
from driftlog_agents.log.garbage.unreferenced_objects import (
    Pass,
    UnreferencedObjects,
    decode_sightings,
)
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_topic
from driftlog_metadata.schema.keys import DELETED_PREFIX, parse_deleted_key, topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import CorruptError, FencedError, StoreError, UnavailableError
from driftlog_metadata.stores.store import Delete, KeyValue, MetadataStore, ModRevisionIs
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import Listing, ObjectInfo, ObjectStore

HOUR_MS: Final = 3_600_000
MIN_GRACE_MS: Final = 12 * HOUR_MS
"""Twice the 6 h within which an object must be named that is to be named at all."""

STATE_FILE: Final = "garbage.json"

_NAMES_KEPT_MS: Final = HOUR_MS
"""Names of one session are read again after this, if its objects fill so many pages."""


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


async def believe() -> None:
    """Any metadata store is the cluster's."""


class Collector:
    """See the module.

    Args:
        offload: runs what takes long in a worker thread.
        wanted: asked before each look: one agent of a cluster looks; two do no harm for a while.
        confirm: called after names were read and before anything is deleted by them; raises
            FencedError where the metadata store is not what it was.
        node_ids: looks after those of directories that are gone.
        strangers: what this agent said of other people's keys.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        disk: AgentDisk,
        offload: Offload,
        settings: CollectorSettings | None = None,
        heads: HeadSettings | None = None,
        wanted: Callable[[], bool] = lambda: True,
        confirm: Callable[[], Awaitable[None]] = believe,
        node_ids: NodeIds | None = None,
        strangers: UnknownKeys | None = None,
    ) -> None:
        self._metadata = metadata
        self._objects = objects
        self._disk = disk
        self._offload = offload
        self._settings = settings or CollectorSettings()
        self._wanted = wanted
        self._confirm = confirm
        self._log = structlog.get_logger()
        self._reads = CollectorReads(metadata, self._settings.request_deadline_ms)
        self._strangers = strangers or UnknownKeys()
        self.heads = SessionHeadGc(
            metadata=metadata,
            disk=disk,
            offload=offload,
            settings=heads,
            strangers=self._strangers,
            confirm=confirm,
        )
        self._node_ids = node_ids
        self._known: UnreferencedObjects | None = None
        self._deletes_left = 0
        self.deleted_objects = 0
        self.strange_objects = 0
        """Of the last pass: keys that no driftlog writes."""
        self.looked_ms = 0
        """When the last whole pass was, heads too, by the bucket's clock; 0: there was none yet."""
        self.unreadable_sessions = 0
        """Of the last pass: their flush records cannot be read."""

    async def run(self) -> None:
        """Collect periodically until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_ms / 1000)
            if not self._wanted():
                continue
            try:
                await self.collect()
            except FencedError as error:
                self._log.error("collection_refused", error=str(error), advice="nothing is deleted")
            except (StoreError, TimeoutError) as error:
                self._log.warning("collection_abandoned", error=repr(error), advice="tried again")
            except CorruptError as error:
                # What names something cannot be read: none of that may go until it can.
                self._log.error("collection_refused", error=str(error))

    async def collect(self) -> None:
        """Look once at everything, and delete what may go.

        Raises:
            StoreError, TimeoutError: a store; look again later.
            CorruptError: a partition's state is damaged; no head was deleted.
            FencedError: the metadata store is not the cluster's; nothing was deleted after it.
        """
        self._deletes_left = self._settings.max_deletes
        self.strange_objects = self.unreadable_sessions = 0
        before = self._known if self._known is not None else self._load()
        deleted = self.deleted_objects
        self._known, look = await self._flush_objects(before)
        known = self._known
        try:
            await self._deleted_topics(known)
        finally:
            await self._save(known)
        self._log.info(
            "garbage_collected",
            deleted=self.deleted_objects - deleted,
            named=look.named_objects,
            unnamed=look.unnamed_objects,
            deleted_topics=len(known.topics),
            strange=self.strange_objects,
            unreadable_sessions=self.unreadable_sessions,
        )
        await self.heads.collect(known.seen_ms)
        self.looked_ms = known.seen_ms
        if self._node_ids is not None:
            await self._node_ids.collect(known.seen_ms)

    # ── Flush objects ──

    async def _flush_objects(self, before: UnreferencedObjects) -> tuple[UnreferencedObjects, Pass]:
        settings = self._settings
        look = Pass(before, grace_ms=settings.grace_ms, max_gap_ms=settings.max_gap_ms)
        now_ms = before.seen_ms
        names: NamedFlushObjects | None = None
        read_ms = 0
        async for page in self._pages(layout.FLUSH_PREFIX):
            now_ms = page.store_now_ms
            gone: list[str] = []
            for session_id, objects in self._by_session(page):
                if (
                    names is None
                    or names.session_id != session_id
                    or now_ms - read_ms > _NAMES_KEPT_MS
                ):
                    names, read_ms = await self._names(session_id), now_ms
                gone += look.garbage(objects, names.keep, now_ms)
            await self._delete(gone)
        return look.end(now_ms), look

    def _by_session(self, page: Listing) -> list[tuple[str, list[ObjectInfo]]]:
        """Neighbours of one session, in the page's order."""
        ours: list[tuple[str, ObjectInfo]] = []
        for info in page.objects:
            try:
                ours.append((layout.parse_flush_key(info.key).session_id, info))
            except ValueError:
                self._strange(info.key)
        return [
            (session_id, [info for _, info in neighbours])
            for session_id, neighbours in groupby(ours, key=lambda one: one[0])
        ]

    async def _names(self, session_id: str) -> NamedFlushObjects:
        names = await read_names(self._reads, session_id, self._strangers, self._offload)
        if names.damage:
            self.unreadable_sessions += 1
            if self.unreadable_sessions == 1:
                self._log.error(
                    "flush_records_unreadable",
                    session=session_id,
                    error=names.damage,
                    advice="no object of this session is deleted; put back what the record was, or "
                    "upgrade the agent",
                )
        return names

    # ── Deleted topics ──

    async def _deleted_topics(self, known: UnreferencedObjects) -> None:
        there: dict[str, int] = {}
        for kv in await self._reads.prefix(DELETED_PREFIX):
            if not self._strangers.is_ours(kv.key, parse_deleted_key):
                continue
            try:
                topic = decode_at(kv.key, kv.value, decode_topic)
                if await self._still_named(topic):
                    continue  # Its deletion is not finished.
            except CorruptError as error:
                self._log.error(
                    "tombstone_unreadable",
                    error=str(error),
                    advice="no object of this topic is deleted; put back what the key was, or "
                    "upgrade the agent",
                )
                continue
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
        (kv,) = await self._reads.get(topic_key(topic.name))
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
        await self._confirm()
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            await self._objects.delete([layout.deleted_key(topic.name, topic.topic_id)])
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            await self._metadata.txn((ModRevisionIs(kv.key, kv.mod_revision),), (Delete(kv.key),))
        self._log.info("topic_collected", topic=topic.name, topic_id=str(topic.topic_id))

    # ── Stores ──

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
        await self._confirm()
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            await self._objects.delete(keys)
        self._deletes_left -= len(keys)
        self.deleted_objects += len(keys)

    def _strange(self, key: str) -> None:
        self.strange_objects += 1
        self._strangers.say(key)

    # ── What is remembered ──

    def _load(self) -> UnreferencedObjects:
        try:
            data = self._disk.load(STATE_FILE)
            return UnreferencedObjects() if data is None else decode_sightings(data)
        except (UnavailableError, CorruptError) as error:
            self._log.warning(
                "garbage_forgotten", error=str(error), advice="every grace period begins again"
            )
            return UnreferencedObjects()

    async def _save(self, known: UnreferencedObjects) -> None:
        try:
            await self._disk.save(STATE_FILE, known.encode())
        except UnavailableError as error:
            self._log.warning("garbage_not_saved", error=str(error))
