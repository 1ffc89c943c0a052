"""What the collector would delete now, without deleting it: `driftlog gc --dry-run`.

    every page of the bucket ──▶ flush objects, sealed objects, objects of deleted topics
                             ──▶ partitions with superseded versions ──▶ walks
    ──▶ garbage with sizes and reasons, keys that no driftlog writes, partitions that are damaged

The collector deletes the same objects, and later: a flush object goes a grace after the collector
has first seen it unnamed, and a look here does not know since when it is.

Shell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from driftlog_agents.log.garbage.common.garbage_objects import (
    Garbage,
    GarbageReason,
    by_topic,
    of_deleted_topic,
)
from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition
from driftlog_agents.log.garbage.named_flush_objects import NamedFlushObjects, read_names
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.superseded_versions import SupersededVersions
from driftlog_agents.log.garbage.sealed.unnamed_objects import UnnamedObjects
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import (
    DELETED_PREFIX,
    IMPORTS_PREFIX,
    TOPICS_PREFIX,
    parse_deleted_key,
    parse_import_key,
    parse_topic_key,
)
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import Listing, ObjectStore

_RETRY: Final = request_retry(deadline_ms=30_000.0)


@dataclass(slots=True)
class Report:
    """See the module."""

    cluster_id: str
    grace: Grace
    garbage: list[Garbage] = field(default_factory=list)
    unrecognised: list[str] = field(default_factory=list)
    """Keys that no driftlog writes, or of topics that neither exist nor are being deleted."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Partitions, and sessions, of which nothing is deleted, and why."""

    async def delete(self, garbage: Sequence[Garbage]) -> None:
        """See `Deleter`: nothing is deleted."""
        self.garbage += garbage


async def report(metadata: MetadataStore, objects: ObjectStore, offload: Offload) -> Report:
    """Look at the whole bucket once.

    Raises:
        NotFoundError: it has no ``cluster.json``.
        CorruptError: ``cluster.json`` or a topic's key is damaged.
        StoreError, TimeoutError: a store.
    """
    return await _DryRun(metadata, offload).run(objects)


class _DryRun:
    """One `report`."""

    def __init__(self, metadata: MetadataStore, offload: Offload) -> None:
        self._reads = CollectorReads(metadata, _RETRY)
        self._offload = offload
        self._unknown_keys = UnknownKeys()
        self._walks: dict[NamedPartition, None] = {}
        self._names: NamedFlushObjects | None = None
        self._marked_ms: dict[UUID, int] = {}
        self._restored_ms = -math.inf

    async def run(self, objects: ObjectStore) -> Report:
        """Look at every page, then walk."""
        _, body = await newest_cluster_file(objects)
        self._restored_ms = await self._reads.restored_until_ms()
        found = Report(
            bucket_files.decode_cluster(body).cluster_id, bucket_files.decode_grace(body)
        )
        kvs = await self._reads.prefix(TOPICS_PREFIX)
        topics = self._unknown_keys.decoded(kvs, decode_topic, parse_topic_key)
        live = {topic.topic_id: topic for topic in topics}
        deleted = await self._deleted(objects)
        kvs = await self._reads.prefix(IMPORTS_PREFIX)
        imported = self._unknown_keys.decoded(kvs, decode_topic, parse_import_key)
        imports = {topic.topic_id for topic in imported}
        pages = ObjectPages(objects, _RETRY, 0, PutTimes(found.grace))
        reads = PartitionReads(self._reads, pages, self._unknown_keys, self._offload)

        def damage(partition: NamedPartition, error: CorruptError) -> None:
            found.damaged[partition.name] = str(error)

        unnamed = UnnamedObjects(
            reads,
            found,
            found.grace,
            superseded=lambda partition, _: self._walks.setdefault(partition),
            damaged=damage,
        )
        async for page in objects.list(""):
            groups, foreign = by_topic(page.objects)
            found.unrecognised += foreign
            for topic_id, infos in groups:
                part = Listing(tuple(infos), page.store_now_ms)
                if topic_id is None:
                    await self._flush_objects(part, found)
                elif topic_id in live:
                    await unnamed.look(live, part)
                elif topic_id in deleted:
                    self._deleted_objects(part, self._marked_ms.get(topic_id), found)
                elif topic_id not in imports:
                    found.unrecognised += [info.key for info in infos]
        superseded = SupersededVersions(reads, found, found.grace, pause_ms=0)
        for partition in self._walks:
            try:
                await superseded.walk(partition)
            except CorruptError as error:
                damage(partition, error)
        return found

    async def _flush_objects(self, page: Listing, found: Report) -> None:
        for info in page.objects:
            if page.store_now_ms - info.modified_ms < found.grace.ms:
                continue
            if info.modified_ms <= self._restored_ms:
                continue
            session_id = layout.parse_flush_key(info.key).session_id
            if self._names is None or self._names.session_id != session_id:
                self._names = await read_names(
                    self._reads, session_id, self._unknown_keys, self._offload
                )
            if self._names.damage:
                found.damaged[session_id] = self._names.damage
            elif not self._names.keep(info.key):
                found.garbage.append(Garbage(info.key, info.size_bytes, GarbageReason.NO_RECORD))

    async def _deleted(self, objects: ObjectStore) -> dict[UUID, Topic]:
        """The topics whose deletion goes on; notes when each was marked."""
        kvs = await self._reads.prefix(DELETED_PREFIX)
        topics = list(self._unknown_keys.decoded(kvs, decode_topic, parse_deleted_key))
        for topic in topics:
            mark = layout.deleted_key(topic.name, topic.topic_id)
            async for page in objects.list(mark):
                for info in page.objects:
                    self._marked_ms[topic.topic_id] = info.modified_ms
        return {topic.topic_id: topic for topic in topics}

    def _deleted_objects(self, page: Listing, marked_ms: int | None, found: Report) -> None:
        oldest_ms = page.store_now_ms - found.grace.ms
        if marked_ms is not None and marked_ms <= oldest_ms:
            found.garbage += of_deleted_topic(page.objects, oldest_ms)
