"""The walk by edits: collects what manifest edits replaced, one pair of versions after the other.

    LIST versions ──▶ the oldest pair (v, w), due? ──▶ read v, w and the newest
        ──▶ what v names, and neither w nor the newest does ──▶ delete: segments, snapshots,
            then lists, the lowest level first ──each answered as done──▶ delete v ──▶ next pair

1. All versions are read.  One that is missing is no empty version: another collector is at work,
   and the walk starts again later, with a new listing.
2. Objects go before the version that names them, and what is in a list before the list: what an
   interrupted walk leaves is found again by the next one.
3. What the newest version names stays.

A walk costs one LIST, one GET for each superseded version, and the lists that edits have changed.
No segments are listed.

Shell.
"""

import asyncio

import structlog

from driftlog_agents.log.garbage.deletions import Deleter, Garbage, GarbageReason
from driftlog_agents.log.garbage.sealed.manifest_names import Sizes
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.version_pairs import (
    NamedPartition,
    Pair,
    Version,
    Wait,
    next_pair,
)
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, SegmentList


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

    async def walk(self, partition: NamedPartition) -> Wait | None:
        """Collect the due pairs; returns when to walk again, None: nothing is superseded any more.

        Raises:
            CorruptError: a version, a list or the partition's key is damaged; what is left stays.
            FencedError: a store is not the cluster's.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store.
        """
        there = await self._reads.versions(partition)
        if there is None or not there.ascending:
            return None
        versions = there.ascending
        newest: Manifest | None = None
        older: Manifest | None = None
        lists: dict[str, SegmentList | None] = {}
        walked = 0
        while True:
            step = next_pair(versions, there.store_now_ms, self._grace)
            if not isinstance(step, Pair):
                break
            older = older or await self._reads.manifest(partition, step.older)
            newest = newest or await self._reads.manifest(partition, versions[-1])
            later = newest
            if step.later != versions[-1]:
                later = await self._reads.manifest(partition, step.later)
            if older is None or later is None or newest is None:
                self._log.info("version_walk_interrupted", partition=partition.name)
                return Wait(0)
            gone = await self._reads.difference(older, later, lists)
            not_in_newest = await self._reads.difference(older, newest, lists)
            gone = {key: size for key, size in gone.items() if key in not_in_newest}
            await self._collect(partition, step.older, gone)
            walked += 1
            versions, older = versions[1:], later
            await asyncio.sleep(self._pause_ms / 1000)
        if walked:
            self._log.info(
                "superseded_versions_collected",
                partition=partition.name,
                versions=walked,
                left=len(versions) - 1,
            )
        return step

    async def _collect(self, partition: NamedPartition, version: Version, gone: Sizes) -> None:
        """Delete the objects, then the version."""
        by_level: dict[int, list[Garbage]] = {}
        for key, size in gone.items():
            by_level.setdefault(_level(key), []).append(Garbage(key, size, GarbageReason.REPLACED))
        for _, garbage in sorted(by_level.items()):
            await self._deleter.delete(garbage)
        key = layout.manifest_key(partition.topic, partition.tp, version.number)
        await self._deleter.delete([Garbage(key, version.size_bytes, GarbageReason.REPLACED)])


def _level(key: str) -> int:
    parsed = layout.parse_key(key)
    return parsed.level if isinstance(parsed, layout.SegmentListKey) else 0
