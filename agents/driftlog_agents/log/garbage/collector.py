"""The garbage collector: deletes objects that no key or manifest names, late and only when sure.

    flush objects    no record names it ──since a grace period, seen so all along──▶ deleted
    manifests        superseded for a grace period ──▶ what only they name, then they themselves:
                     see `sealed/superseded_versions`
    sealed objects   no manifest names it, its PUT a grace period old: see `sealed/unnamed_objects`
    deleted topics   tombstone ──▶ objects ──▶ mark ──▶ tombstone: see `deleted_topic_gc`
    heads            of sessions that are over: see `session_head_gc`
    node ids         of directories that are gone: see `cluster/node_ids`

1. The clock is the store's: the time of its listings and of its objects' PUTs.
2. No object is deleted whose PUT is younger than the grace period, and an older unnamed object
   stays unnamed: every object is named within grace / 2 of the beginning of its PUT, or never.
   Of each kind, by the clock of the agent that names it:
   flush objects: no commit is sent later (`ingest/flush_pipeline`, 5); a commit without an answer
   by then ends the session, which fences it.
   Objects of a consolidation: their transaction is sent within grace / 12
   (`consolidation/rewrite_job`).
   Segments, producer snapshots, lists: their edit is sent within grace / 2 of the read of the
   manifest that it is based on, and that read comes before their PUTs (`sealing/sealer`).
   A request may take effect after it was sent: the other half is for that, and for clocks that
   differ.
3. An object of a flush that a live session may still commit counts as named, however old it is
   (`garbage/named_flush_objects`, 2).  For commits this holds without any clock; 2 says the same
   once more.
4. Names are read after the page of the listing that they judge, session by session.  An object that
   is unnamed then and as old as 2 requires is unnamed at the delete, too, and afterwards.  The
   names of a session whose objects fill several pages are read every grace / 12: 2 leaves six times
   as much.
5. The grace period of a flush object begins when this collector first sees it unnamed.  That time
   is kept in the agent's directory, and is void after a longer time without a pass (`max_gap_ms`).
6. A metadata store or a bucket that is not the cluster's causes no delete: before each batch of
   deletes, and after the names were read, both are confirmed (the bucket: `cluster/cluster_file`).
7. A session or a topic of which a store gives no answer stops no other one: its objects stay until
   a later pass, and their grace goes on.  After some in a row the pass ends.
8. A key that driftlog does not recognise, in the bucket or in the metadata store, is logged and not
   deleted; an object that such a key names stays.  Objects of a session whose records cannot be
   read stay.
9. After a restore, what it had listed under ``flush/`` stays until the restore is discarded
   (`common/metadata_reads`).  The mark of a deleted topic outlives every flush object that may have
   batches of the topic: without the mark, a restore would bring the topic back.

Flush objects, deleted topics and heads are collected by one agent of the cluster.  Sealed objects
are collected by every agent: by edits of the partitions whose manifests it edits, by listing of its
share of the topics.

Source: design.md, "Garbage".

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from driftlog_agents.cluster.node_ids import NodeIds
from driftlog_agents.foundation.histogram import OperationTimes
from driftlog_agents.foundation.retry import NO_ANSWER, memory_errors
from driftlog_agents.log.garbage.common.garbage_objects import (
    AllDuties,
    Duties,
    Garbage,
    by_session,
)
from driftlog_agents.log.garbage.common.metadata_reads import MOST_FAILURES, CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.dead_heads import HeadSettings
from driftlog_agents.log.garbage.deleted_topic_gc import DeletedTopicGc
from driftlog_agents.log.garbage.deletions import ConfirmedStores, Deletions
from driftlog_agents.log.garbage.named_flush_objects import NamedFlushObjects, read_names
from driftlog_agents.log.garbage.sealed.collection import SealedCollection
from driftlog_agents.log.garbage.session_head_gc import SessionHeadGc
from driftlog_agents.log.garbage.unreferenced_objects import (
    CollectorSettings,
    Pass,
    UnreferencedObjects,
    decode_sightings,
)
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.stores.errors import CorruptError, FencedError, StoreError, UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Offload

STATE_FILE: Final = "garbage.json"


class Collector:
    """See the module.

    Args:
        offload: runs long work in a worker thread.
        node_ids: collects the ids of directories that are gone.
        unknown_keys: the unrecognised keys that this agent has logged.
    """

    def __init__(
        self,
        *,
        stores: ConfirmedStores,
        disk: AgentDisk,
        offload: Offload,
        settings: CollectorSettings | None = None,
        heads: HeadSettings | None = None,
        duties: Duties | None = None,
        node_ids: NodeIds | None = None,
        unknown_keys: UnknownKeys | None = None,
    ) -> None:
        self._disk = disk
        self._offload = offload
        self._settings = settings or CollectorSettings()
        self._duties = duties or AllDuties()
        self._log = structlog.get_logger()
        retry = request_retry(self._settings.request_deadline_ms, self._settings.retry_wait_ms)
        self._reads = CollectorReads(stores.metadata, retry)
        self._unknown_keys = unknown_keys or UnknownKeys()
        self.heads = SessionHeadGc(
            stores=stores,
            disk=disk,
            offload=offload,
            settings=heads,
            unknown_keys=self._unknown_keys,
        )
        self._node_ids = node_ids
        self._known: UnreferencedObjects | None = None
        self.deletions = Deletions(stores.objects, stores.confirm, retry)
        self.passes = OperationTimes()
        """Passes over flush objects, and passes over sealed objects."""
        self._failures = 0
        """Sessions in a row whose names could not be read."""
        self._pages = ObjectPages(
            stores.objects, retry, self._settings.pause_ms, PutTimes(self._settings.grace)
        )
        self.sealed = SealedCollection(
            metadata=self._reads,
            pages=self._pages,
            deleter=self.deletions,
            grace=self._settings.grace,
            unknown_keys=self._unknown_keys,
            offload=offload,
            share=self._duties.listing_share,
        )
        self._deleted_topics = DeletedTopicGc(
            stores=stores,
            reads=self._reads,
            pages=self._pages,
            grace=self._settings.grace,
            unknown_keys=self._unknown_keys,
            delete=self.deletions.delete,
        )
        self.strange_objects = 0
        """Objects of the last pass with keys that driftlog does not write."""
        self.looked_ms = 0
        """Time of the last complete pass, with heads, by the bucket's clock; 0: none yet."""
        self.unreadable_sessions = 0
        """Sessions of the last pass whose flush records cannot be read."""

    async def run(self) -> None:
        """Collects periodically until cancelled: sealed objects, and beside them all others, which
        do not wait for a long pass of those."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.collect_sealed, lambda: True))
            tasks.create_task(self._repeat(self.collect, self._duties.collects_flush_objects))

    async def _repeat(
        self, collect: Callable[[], Awaitable[None]], is_wanted: Callable[[], bool]
    ) -> None:
        interval_ms = min(self._settings.interval_ms, self._settings.grace.short_ms)
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if is_wanted():
                await self._attempt(collect)

    async def _attempt(self, collect: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            with self.passes.attempt(lambda: loop.time() * 1000), memory_errors():
                await collect()
        except FencedError as error:
            self._log.error("collection_refused", error=str(error), advice="nothing is deleted")
        except (StoreError, TimeoutError) as error:
            self._log.warning("collection_abandoned", error=repr(error), advice="retrying")
        except CorruptError as error:
            # A key that may name objects is unreadable: none of them is deleted until it is
            # readable.
            self._log.error("collection_refused", error=str(error))

    async def collect(self) -> None:
        """Makes one pass over all objects, and deletes the garbage.

        Raises:
            StoreError, TimeoutError: a store; try again later.
            CorruptError: a partition's state is damaged; no head was deleted.
            FencedError: the metadata store is not the cluster's; nothing was deleted after that.
        """
        self._failures = 0
        self.strange_objects = self.unreadable_sessions = 0
        before = self._known if self._known is not None else self._load()
        deleted = self.deleted_objects
        self._known, look = await self._flush_objects(before)
        known = self._known
        try:
            await self._deleted_topics.collect(known, look.oldest_flush_ms)
        finally:
            await self._save(known)
        self.strange_objects += self._deleted_topics.strange_objects
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

    @property
    def deleted_objects(self) -> int:
        """Objects that were deleted, of all kinds."""
        return self.deletions.objects.total()

    # ── Sealed objects ──

    async def collect_sealed(self) -> None:
        """Collects the sealed garbage that falls to this agent, as far as it is due.

        Raises:
            StoreError, TimeoutError: a store; try again later.
            FencedError: a store is not the cluster's; nothing was deleted after that.
        """
        await self.sealed.collect(self._duties.edited())

    # ── Flush objects ──

    async def _flush_objects(self, before: UnreferencedObjects) -> tuple[UnreferencedObjects, Pass]:
        settings = self._settings
        restored_ms = await self._reads.restored_until_ms()
        look = Pass(before, restored_ms, grace_ms=settings.grace.ms, max_gap_ms=settings.max_gap_ms)
        now_ms = before.seen_ms
        names: NamedFlushObjects | None = None
        read_ms = 0
        async for page in self._pages.of(layout.FLUSH_PREFIX):
            now_ms = page.store_now_ms
            garbage: list[Garbage] = []
            groups, foreign = by_session(page.objects)
            for key in foreign:
                self._strange(key)
            for objects in map(look.judged, groups):
                if objects.flushes:
                    session_id = objects.session_id
                    if (
                        names is None
                        or names.session_id != session_id
                        or now_ms - read_ms > settings.grace.short_ms
                    ):
                        names, read_ms = await self._names(session_id), now_ms
                    if names.damage:
                        look.unjudged(objects.flushes, now_ms)
                    else:
                        garbage += look.garbage(objects.flushes, names.keep, now_ms)
                garbage += look.final_heads(objects, now_ms)
            await self.deletions.delete(garbage)
            look.end_page({one.key for one in garbage})
        return look.end(now_ms), look

    async def _names(self, session_id: str) -> NamedFlushObjects:
        try:
            names = await read_names(self._reads, session_id, self._unknown_keys, self._offload)
        except NO_ANSWER as error:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                raise
            self._abandoned(session_id, error)
            return NamedFlushObjects(session_id, frozenset(), None, repr(error))
        self._failures = 0
        if names.damage:
            self.unreadable_sessions += 1
            if self.unreadable_sessions == 1:
                self._log.error(
                    "flush_records_unreadable",
                    session=session_id,
                    error=names.damage,
                    advice="restore the record, or upgrade the agent; until then no object of this "
                    "session is deleted",
                )
        return names

    def _abandoned(self, session_id: str, error: Exception) -> None:
        self._log.warning(
            "collection_abandoned",
            session=session_id,
            error=repr(error),
            advice="retrying; the other sessions are collected",
        )

    # ── Stores ──

    def _strange(self, key: str) -> None:
        self.strange_objects += 1
        self._unknown_keys.say(key)

    # ── State file ──

    def _load(self) -> UnreferencedObjects:
        try:
            data = self._disk.load(STATE_FILE)
            return UnreferencedObjects() if data is None else decode_sightings(data)
        except (UnavailableError, CorruptError) as error:
            self._log.warning(
                "garbage_forgotten",
                error=str(error),
                advice="no action needed; all grace periods restart",
            )
            return UnreferencedObjects()

    async def _save(self, known: UnreferencedObjects) -> None:
        try:
            await self._disk.save(STATE_FILE, known.encode())
        except UnavailableError as error:
            self._log.warning("garbage_not_saved", error=str(error))
