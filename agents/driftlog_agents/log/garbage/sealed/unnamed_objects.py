"""The look by listing: collects objects of live topics that no manifest version names.

    page of a topic's objects ──▶ per partition: those that are older than grace
        ──▶ read the names: newest version, then the others until every object is named
        ──▶ unnamed by all of them ──▶ delete

Such objects are what attempts left behind that failed: every object that was ever named is
collected by edits (`superseded_versions`).  So

1. each object is judged once, at the first look that finds it older than grace.  A partition
   without new objects costs no request of its own;
2. a partition with superseded versions is handed over to the walk by edits, if they are overdue:
   others are walked by the agent that made them.  Where that walk misses a list, the topic's
   objects are judged once more (`judge_again`): what was in the list is named by nothing.

An object is garbage if no existing version names it, not only not the newest one, and if its PUT
was older than grace when the reading of the names began: later than that nothing names it
(`schema/grace`, 1).  The page's time stands for that beginning: names are read after their page.
Names that come more than grace / 2 after their page are thrown away, and so is the page.

Objects of a partition whose key or manifests are missing or damaged stay.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import groupby
from uuid import UUID

from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.garbage.garbage_objects import Deleter, Garbage, GarbageReason
from driftlog_agents.log.garbage.metadata_reads import MOST_FAILURES
from driftlog_agents.log.garbage.sealed.manifest_names import Window
from driftlog_agents.log.garbage.sealed.partition_reads import (
    ListsRead,
    MissingListError,
    PartitionReads,
    Versions,
)
from driftlog_agents.log.garbage.sealed.version_pairs import NamedPartition, Version, overdue
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import Listing, ObjectInfo

_Key = layout.SegmentKey | layout.SegmentListKey | layout.ProducerSnapshotKey


class UnnamedObjects:
    """See the module.

    Args:
        superseded: called with each partition that has superseded versions, and whether they are
            overdue.
        damaged: called with each partition of which nothing is deleted, and why.
    """

    def __init__(
        self,
        reads: PartitionReads,
        deleter: Deleter,
        grace: Grace,
        *,
        superseded: Callable[[NamedPartition, bool], None],
        damaged: Callable[[NamedPartition, CorruptError], None],
    ) -> None:
        self._reads = reads
        self._deleter = deleter
        self._grace = grace
        self._superseded = superseded
        self._damaged = damaged
        self._judged_ms: dict[UUID, int] = {}
        """Per topic: every object whose PUT is not later was judged."""
        self._last_version: tuple[TopicPartition | None, int] = (None, 0)
        """The last partition of the page before, and the PUT of its oldest version there."""
        self._failures = 0
        """Partitions in a row that could not be judged because a store did not answer."""

    async def look(self, topics: Mapping[UUID, Topic], page: Listing) -> set[UUID]:
        """Judge the objects of *topics* in *page*, whose keys are driftlog's, and delete the
        garbage; returns the topics of which some were not judged.

        Raises:
            FencedError: a store is not the cluster's.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store.
        """
        left: set[UUID] = set()
        of_partitions = [
            (key.tp, key, info)
            for key, info in await self._reads.parsed(page)
            if isinstance(key, _Key | layout.ManifestKey) and key.tp.topic_id in topics
        ]
        for tp, entries in groupby(of_partitions, key=lambda entry: entry[0]):
            partition = NamedPartition(topics[tp.topic_id].name, tp)
            objects: dict[str, tuple[_Key, ObjectInfo]] = {}
            later_put_ms: int | None = None
            for _, key, info in entries:
                if isinstance(key, layout.ManifestKey):  # the newest comes first
                    same, put_ms = self._last_version
                    if same == tp:
                        later_put_ms = put_ms
                    self._last_version = tp, info.modified_ms
                elif self._is_due(tp.topic_id, info, page):
                    objects[info.key] = key, info
            if later_put_ms is not None:
                self._superseded(partition, overdue(later_put_ms, page.store_now_ms, self._grace))
            if objects and not await self._attempt(partition, page, objects):
                left.add(tp.topic_id)
        return left

    def judge_again(self, topic_id: UUID) -> None:
        """Forget which objects of the topic were judged."""
        self._judged_ms.pop(topic_id, None)

    def looked(self, topics: Set[UUID], left: Set[UUID], began_ms: int) -> None:
        """Every page of *topics* was looked at, and all was judged but of those that are *left*.
        The first page was listed at *began_ms* or later.  Other topics are forgotten."""
        judged = dict.fromkeys(topics - left, began_ms - self._grace.ms)
        before = {t: ms for t, ms in self._judged_ms.items() if t in topics & left}
        self._judged_ms = judged | before

    def _is_due(self, topic_id: UUID, info: ObjectInfo, page: Listing) -> bool:
        judged_ms = self._judged_ms.get(topic_id, -1)
        return judged_ms < info.modified_ms <= page.store_now_ms - self._grace.ms

    async def _attempt(
        self,
        partition: NamedPartition,
        page: Listing,
        objects: dict[str, tuple[_Key, ObjectInfo]],
    ) -> bool:
        """As `_judge`; one partition whose objects are withheld does not end the listing."""
        try:
            judged = await self._judge(partition, page, objects)
        except NO_ANSWER:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._failures = 0
                raise
            return False
        self._failures = 0
        return judged

    async def _judge(
        self,
        partition: NamedPartition,
        page: Listing,
        objects: dict[str, tuple[_Key, ObjectInfo]],
    ) -> bool:
        try:
            there = await self._reads.versions(partition)
            if there is None:
                return False
            if there.store_now_ms - page.store_now_ms > self._grace.named_within_ms:
                return False
            try:
                unnamed = await self._unnamed(partition, there, objects)
            except MissingListError as error:
                await self._reads.check_newest(partition, there, error)
                return False
        except CorruptError as error:
            self._damaged(partition, error)
            return False
        if unnamed is None:
            return False
        await self._deleter.delete(
            [
                Garbage(info.key, info.size_bytes, GarbageReason.NEVER_NAMED)
                for key, (_, info) in objects.items()
                if key in unnamed
            ]
        )
        return True

    async def _unnamed(
        self,
        partition: NamedPartition,
        there: Versions,
        objects: dict[str, tuple[_Key, ObjectInfo]],
    ) -> set[str] | None:
        """The keys that no version names; None: a version is missing, another collector is at
        work."""
        segments = _range(key for key, _ in objects.values() if isinstance(key, layout.SegmentKey))
        of_lists = _range(
            key for key, _ in objects.values() if isinstance(key, layout.SegmentListKey)
        )
        unnamed = set(objects)
        read = ListsRead()
        for version in _newest_first(there.ascending):
            if not unnamed:
                break
            manifest = await self._reads.manifest(partition, version)
            if manifest is None:
                return None
            unnamed -= await self._reads.named_within(manifest, segments, of_lists, read)
            await asyncio.sleep(0)
        await self._reads.free(read)
        return unnamed


def _range(keys: Iterable[layout.SegmentKey | layout.SegmentListKey]) -> Window:
    """The offsets of all *keys*."""
    ranges = [(key.base, key.end) for key in keys]
    return (min(base for base, _ in ranges), max(end for _, end in ranges)) if ranges else (0, 0)


def _newest_first(ascending: tuple[Version, ...]) -> tuple[Version, ...]:
    """The newest version, then the others from the oldest on: these two name nearly everything."""
    return (*ascending[-1:], *ascending[:-1])
