"""The look by listing: collects objects of live topics that no manifest version names.

    page of a topic's objects ──▶ per partition: those to judge now (`unjudged_objects`)
        ──▶ read the names: newest version, then the others until every object is named
        ──▶ unnamed by all of them ──▶ delete

Such objects are what attempts left behind that failed: every object that was ever named is
collected by edits (`superseded_versions`).  So

1. each object is judged once, at the first look that finds it older than grace;
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
from collections.abc import Callable, Mapping
from uuid import UUID

from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.garbage.common.garbage_objects import Deleter
from driftlog_agents.log.garbage.common.metadata_reads import MOST_FAILURES
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition, Version, Versions
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.replaced_objects import ListsRead, MissingListError
from driftlog_agents.log.garbage.sealed.unjudged_objects import ListedPartition, UnjudgedObjects
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import Listing


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
        self.unjudged = UnjudgedObjects(grace)
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
        parsed = await self._reads.parsed(page)
        for found in self.unjudged.of_page(topics, parsed, page.store_now_ms):
            if found.is_overdue is not None:
                self._superseded(found.partition, found.is_overdue)
            if found.objects and not await self._attempt(found, page):
                left.add(found.partition.tp.topic_id)
        return left

    async def _attempt(self, found: ListedPartition, page: Listing) -> bool:
        """As `_judge`; one partition whose objects are withheld does not end the listing."""
        try:
            judged = await self._judge(found, page)
        except NO_ANSWER:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._failures = 0
                raise
            return False
        self._failures = 0
        return judged

    async def _judge(self, found: ListedPartition, page: Listing) -> bool:
        try:
            there = await self._reads.versions(found.partition)
            if there is None:
                return False
            if there.store_now_ms - page.store_now_ms > self._grace.named_within_ms:
                return False
            try:
                unnamed = await self._unnamed(found, there)
            except MissingListError as error:
                await self._reads.check_newest(found.partition, there, error)
                return False
        except CorruptError as error:
            self._damaged(found.partition, error)
            return False
        if unnamed is None:
            return False
        await self._deleter.delete(found.garbage(unnamed))
        return True

    async def _unnamed(self, found: ListedPartition, there: Versions) -> set[str] | None:
        """The keys that no version names; None: a version is missing, another collector is at
        work."""
        segments = found.range_of(layout.SegmentKey)
        of_lists = found.range_of(layout.SegmentListKey)
        unnamed = set(found.objects)
        read = ListsRead()
        for version in _newest_first(there.ascending):
            if not unnamed:
                break
            manifest = await self._reads.manifest(found.partition, version)
            if manifest is None:
                return None
            unnamed -= await self._reads.named_within(manifest, segments, of_lists, read)
            await asyncio.sleep(0)
        await self._reads.free(read)
        return unnamed


def _newest_first(ascending: tuple[Version, ...]) -> tuple[Version, ...]:
    """The newest version, then the others from the oldest on: these two name nearly everything."""
    return (*ascending[-1:], *ascending[:-1])
