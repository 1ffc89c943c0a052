"""Deleted topics: their objects are deleted, then what says that they are deleted.

    tombstone, the topic's key gone, mark a grace old ──▶ objects ──▶ only the mark is left,
    a grace long, and no flush object is older ──▶ mark ──▶ tombstone

    import key, not renewed for a grace ──▶ tombstone

1. The mark (``deleted.json``) comes before the topic's key goes (`topics/transactions`).  Where the
   key is gone and the mark is not there, it was lost: it is written again, and its grace begins.
2. As long as there is a tombstone, every step is repeated.
3. A bulk import whose key was not renewed for a grace, by the store's clock, counts as a deleted
   topic from then on: a tombstone replaces its key in one transaction (`topics/imports`).  Not if
   the topic's file is there: the topic may have been published, and the key be of a backup.
4. A topic or import that a store gives no answer for stops no other one.  After some topics in a
   row the pass ends; after some imports, no other import is ended in this pass.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.garbage.common.garbage_objects import Garbage, of_deleted_topic
from driftlog_agents.log.garbage.common.metadata_reads import MOST_FAILURES, CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_agents.log.garbage.unreferenced_objects import UnreferencedObjects
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import (
    DELETED_PREFIX,
    IMPORTS_PREFIX,
    parse_deleted_key,
    parse_import_key,
    topic_key,
)
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import Delete, KeyValue, ModRevisionIs
from driftlog_metadata.transactions.import_transactions import abandon_import
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import DeletedTopic, encode_deleted
from driftlog_tiering.stores.object_store import AlreadyExistsError


class DeletedTopicGc:
    """See the module.

    Args:
        confirm: raises FencedError if a store is not the cluster's.
        delete: deletes some of the garbage; the rest is found again.
    """

    def __init__(
        self,
        *,
        stores: ConfirmedStores,
        reads: CollectorReads,
        pages: ObjectPages,
        grace: Grace,
        unknown_keys: UnknownKeys,
        delete: Callable[[list[Garbage]], Awaitable[object]],
    ) -> None:
        self._metadata = stores.metadata
        self._reads = reads
        self._pages = pages
        self._grace = grace
        self._unknown_keys = unknown_keys
        self._confirm = stores.confirm
        self._delete = delete
        self._log = structlog.get_logger()
        self._imports: dict[str, tuple[int, int]] = {}
        """Of each import key: its revision, and since when it has been that one."""
        self.strange_objects = 0
        """Objects of the last pass with keys that driftlog does not write."""

    async def collect(self, known: UnreferencedObjects, oldest_flush_ms: int | None) -> None:
        """Makes one pass; notes in *known* since when only its mark is left of a topic.

        *oldest_flush_ms*: when the oldest flush object was put; None: there is none.

        Raises:
            StoreError, TimeoutError: a store; try again later.
            FencedError: a store is not the cluster's.
        """
        self.strange_objects = 0
        await self._end_imports(known.seen_ms)
        there: dict[str, int] = {}
        failures = 0
        for kv in await self._reads.prefix(DELETED_PREFIX):
            if not self._unknown_keys.is_ours(kv.key, parse_deleted_key):
                continue
            try:
                topic = decode_at(kv.key, kv.value, decode_topic)
                name = str(topic.topic_id)
                since_ms = await self._only_marked_since(topic, known.topics.get(name))
                failures = 0
                if since_ms is None:
                    continue
                there[name] = since_ms
                is_old = known.seen_ms - since_ms >= self._grace.ms
                if is_old and (oldest_flush_ms is None or oldest_flush_ms > since_ms):
                    await self._remove_tombstone(topic, kv)
                    del there[name]
            except CorruptError as error:
                self._log.error(
                    "tombstone_unreadable",
                    error=str(error),
                    advice="restore the key, or upgrade the agent; until then no object of this "
                    "topic is deleted",
                )
            except NO_ANSWER as error:
                failures += 1
                if failures >= MOST_FAILURES:
                    raise
                if name in known.topics:
                    there[name] = known.topics[name]
                self._say_abandoned(topic, error)
        known.topics = there

    def _say_abandoned(self, topic: Topic, error: Exception) -> None:
        self._log.warning(
            "collection_abandoned",
            topic=topic.name,
            error=repr(error),
            advice="retrying; the other topics are collected",
        )

    async def _end_imports(self, now_ms: int) -> None:
        """Put a tombstone for each import that was not renewed for a grace."""
        seen: dict[str, tuple[int, int]] = {}
        over: list[tuple[KeyValue, Topic]] = []
        for kv in await self._reads.prefix(IMPORTS_PREFIX):
            if not self._unknown_keys.is_ours(kv.key, parse_import_key):
                continue
            revision, since_ms = self._imports.get(kv.key, (0, now_ms))
            if revision != kv.mod_revision:
                since_ms = now_ms
            seen[kv.key] = kv.mod_revision, since_ms
            if now_ms - since_ms < self._grace.ms:
                continue
            try:
                over.append((kv, decode_at(kv.key, kv.value, decode_topic)))
            except CorruptError as error:
                self._log.error(
                    "import_unreadable",
                    error=str(error),
                    advice="restore the key, or upgrade the agent; until then no object of this "
                    "import is deleted",
                )
        self._imports = seen
        failures = 0
        for kv, topic in over:
            try:
                await self._end_import(kv, topic)
                failures = 0
            except NO_ANSWER as error:
                failures += 1
                self._say_abandoned(topic, error)
                if failures >= MOST_FAILURES:
                    return

    async def _end_import(self, kv: KeyValue, topic: Topic) -> None:
        if await self._has_file(topic):
            self._log.error(
                "published_import_found",
                topic=topic.name,
                topic_id=str(topic.topic_id),
                advice="the topic's file is in the bucket, and the metadata store has the key of "
                "its import.  If the store was put back from a backup, bring the newer one back, "
                "or restore the cluster (driftlog restore).  If the import failed: POST /imports/"
                f"{topic.topic_id}/abandon to an agent's HTTP port deletes what it wrote",
            )
            return
        await self._confirm()
        txn = abandon_import(kv, topic)
        async with asyncio.timeout(self._pages.retry.timeout_s):
            done = await self._metadata.txn(txn.compares, txn.then, txn.otherwise)
        if done.succeeded:
            self._log.warning(
                "import_ended",
                topic=topic.name,
                topic_id=str(topic.topic_id),
                advice="no action needed; the import was not renewed for the cluster's grace, "
                "and what it wrote is deleted.  Import again",
            )

    async def _has_file(self, topic: Topic) -> bool:
        """Whether a publication has written the topic's file."""
        async for page in self._pages.of(layout.topic_file_prefix(topic.name, topic.topic_id)):
            for info in page.objects:
                with suppress(ValueError):  # the mark of the import
                    layout.parse_topic_key(info.key)
                    return True
        return False

    async def _only_marked_since(self, topic: Topic, since_ms: int | None) -> int | None:
        """As `_objects`; None also where the deletion is not finished."""
        return None if await self._still_named(topic) else await self._objects(topic, since_ms)

    async def _still_named(self, topic: Topic) -> bool:
        (kv,) = await self._reads.get(topic_key(topic.name))
        return (
            kv is not None and decode_at(kv.key, kv.value, decode_topic).topic_id == topic.topic_id
        )

    async def _objects(self, topic: Topic, since_ms: int | None) -> int | None:
        """Deletes the objects of a deleted topic whose grace is over.

        Returns since when only its mark is left, in ms; None: other objects are left.
        """
        grace_ms = self._grace.ms
        mark = layout.deleted_key(topic.name, topic.topic_id)
        marked_ms: int | None = None
        prefix = layout.topic_file_prefix(topic.name, topic.topic_id)
        async for page in self._pages.of(prefix):
            for info in page.objects:
                if info.key == mark:
                    marked_ms = info.modified_ms
        empty, now_ms = True, 0
        async for page in self._pages.of(layout.topic_prefix(topic.name, topic.topic_id)):
            now_ms = page.store_now_ms
            others = [info for info in page.objects if info.key != mark]
            empty = empty and not others
            if marked_ms is None or now_ms - marked_ms < grace_ms:
                continue
            garbage = of_deleted_topic(others, now_ms - grace_ms)
            await self._delete([one for one in garbage if self._is_ours(one.key)])
        if not empty:
            if marked_ms is None:
                await self._mark(topic, mark, now_ms)
            return None
        return now_ms if since_ms is None else since_ms

    async def _mark(self, topic: Topic, mark: str, now_ms: int) -> None:
        await self._confirm()
        body = encode_deleted(DeletedTopic(topic.name, topic.topic_id, now_ms))
        async with asyncio.timeout(self._pages.retry.timeout_s):
            with suppress(AlreadyExistsError):
                await self._pages.objects.create(mark, [body])
        self._log.warning(
            "deleted_topic_marked",
            topic=topic.name,
            topic_id=str(topic.topic_id),
            advice="no action needed; it had no deleted.json, which is written now",
        )

    def _is_ours(self, key: str) -> bool:
        try:
            layout.parse_key(key)
        except ValueError:
            self.strange_objects += 1
            self._unknown_keys.say(key)
            return False
        return True

    async def _remove_tombstone(self, topic: Topic, kv: KeyValue) -> None:
        """Deletes the mark first: as long as there is a tombstone, this is repeated."""
        deadline_s = self._pages.retry.timeout_s
        await self._confirm()
        async with asyncio.timeout(deadline_s):
            await self._pages.objects.delete([layout.deleted_key(topic.name, topic.topic_id)])
        async with asyncio.timeout(deadline_s):
            await self._metadata.txn((ModRevisionIs(kv.key, kv.mod_revision),), (Delete(kv.key),))
        self._log.info("topic_collected", topic=topic.name, topic_id=str(topic.topic_id))
