"""The walk by edits: collects what manifest edits replaced, one pair of versions after the other.

    LIST versions ──▶ the oldest pair (v, w), due? ──▶ read v, w and the newest
        ──▶ what v names, and neither w nor the newest does ──▶ delete: segments, snapshots,
            then lists, the lowest level first ──each answered as done──▶ delete v ──▶ next pair

1. All versions are read, and the lists of all but the older one.  What is missing is not empty:
   another collector is at work, and the walk starts again later, with a new listing.  Only a list
   of a version that is still the newest one is damage.
2. Objects go before the version that names them (their order: `replaced_objects`).
3. What the newest version names stays.

Two agents may walk one partition at once: the deletes are the same ones, and no edit names again
what an edit has replaced.  So that they do not, see `version_pairs`.

A walk costs one LIST, one GET for each superseded version, and the lists that edits have changed.
No segments are listed.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator

import structlog

from driftlog_agents.log.garbage.common.garbage_objects import Deleter, Garbage, GarbageReason
from driftlog_agents.log.garbage.common.version_pairs import (
    NamedPartition,
    Pair,
    Version,
    Versions,
    Wait,
    Walked,
    next_pair,
)
from driftlog_agents.log.garbage.sealed.manifest_names import Sizes
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.replaced_objects import (
    ListsRead,
    MissingListError,
    ReplacedObjects,
)
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest


class SupersededVersions:
    """See the module.

    Args:
        pause_ms: between two pairs: other requests go first.
    """

    def __init__(
        self, reads: PartitionReads, deleter: Deleter, grace: Grace, *, pause_ms: float
    ) -> None:
        self._reads = reads
        self._deleter = deleter
        self._grace = grace
        self._pause_ms = pause_ms
        self._log = structlog.get_logger()

    async def walk(self, partition: NamedPartition) -> Walked:
        """Collect the due pairs.

        Raises:
            CorruptError: a version, a list or the partition's key is damaged; what is left stays.
            FencedError: a store is not the cluster's.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store.
        """
        there = await self._reads.versions(partition)
        if there is None or not there.ascending:
            return Walked(None)
        walked = Walked(None)
        read = ListsRead()
        try:
            await self._pairs(partition, there, walked, read)
        except MissingListError as error:
            await self._reads.check_newest(partition, there, error)
            self._interrupted(partition, walked)
        await self._reads.free(read)
        if walked.pairs:
            self._log.info(
                "superseded_versions_collected",
                partition=partition.name,
                versions=walked.pairs,
                left=len(there.ascending) - walked.pairs - 1,
            )
        return walked

    async def _pairs(
        self, partition: NamedPartition, there: Versions, walked: Walked, read: ListsRead
    ) -> None:
        versions = there.ascending
        newest: Manifest | None = None
        older: Manifest | None = None
        while True:
            pair = next_pair(versions, there.store_now_ms, self._grace)
            if not isinstance(pair, Pair):
                walked.next = pair
                return
            older = older or await self._reads.manifest(partition, pair.older)
            newest = newest or await self._reads.manifest(partition, versions[-1])
            later = newest
            if pair.later != versions[-1]:
                later = await self._reads.manifest(partition, pair.later)
            if older is None or later is None or newest is None:
                self._interrupted(partition, walked)
                return
            gone = self._reads.replaced(older, later, newest, read)
            await self._collect(partition, pair.older, gone)
            walked.lists_missing |= read.missing
            walked.pairs += 1
            versions, older = versions[1:], later
            await asyncio.sleep(self._pause_ms / 1000)

    def _interrupted(self, partition: NamedPartition, walked: Walked) -> None:
        walked.next, walked.interrupted = Wait(0), True
        self._log.info("version_walk_interrupted", partition=partition.name)

    async def _collect(
        self, partition: NamedPartition, version: Version, gone: AsyncIterator[Sizes]
    ) -> None:
        """Delete segments and snapshots, then lists, the lowest level first, then the version."""
        replaced = ReplacedObjects()
        async for sizes in gone:
            await self._deleter.delete(replaced.add(sizes))
        for lists in replaced.lists():
            await self._deleter.delete(lists)
        key = layout.manifest_key(partition.topic, partition.tp, version.number)
        await self._deleter.delete([Garbage(key, version.size_bytes, GarbageReason.REPLACED)])
