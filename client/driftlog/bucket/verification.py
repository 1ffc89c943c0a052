"""Verifies the sealed log of topics in a bucket, several partitions at once; it only reads.

    topics/NAME/ID/…  ──▶  live topics  ──▶  `PartitionVerifier` of each partition  ──▶  reports
                                             `LostManifests` of all                ──▶  damage

Shell.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from driftlog.bucket.sealed_topics import (
    TopicFolder,
    folders,
    open_bucket,
    topic_folder,
    topic_folders,
)
from driftlog.errors import DriftlogError
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import decode_topic
from driftlog_tiering.stores.counted_store import CountedObjectStore, StoreRequests
from driftlog_tiering.stores.object_store import NotFoundError
from driftlog_tiering.verification.findings import PartitionReport
from driftlog_tiering.verification.lost_manifests import LostManifests
from driftlog_tiering.verification.object_reads import ObjectReads, ReadLimits
from driftlog_tiering.verification.partition_verifier import PartitionVerifier

_DIGITS: Final = 5
"""Of the name of a partition's folder."""

_AT_ONCE: Final = 8
"""Partitions at once: small ones do not wait for the answers to each other's requests."""


@dataclass(slots=True)
class Verification:
    """What was found, and how far a run is while it goes on."""

    partitions: int = 0
    """Partitions to verify."""
    reports: list[PartitionReport] = field(default_factory=list)
    """By topic and partition, when it is over."""
    topic_files: dict[str, str] = field(default_factory=dict)
    """The damaged files of topics, by key, and what is wrong."""
    requests: StoreRequests = field(default_factory=StoreRequests)
    """Sent to the store, by kind, and the bytes that were read."""

    @property
    def damaged(self) -> int:
        """Damaged ranges and topic files."""
        return sum(report.damaged for report in self.reports) + len(self.topic_files)


async def verify_topics(
    location: str,
    names: Sequence[str],
    *,
    partitions: Collection[int] = (),
    deep: bool = False,
    limits: ReadLimits | None = None,
    progressed: Callable[[Verification], object] = lambda _: None,
) -> Verification:
    """Verify the topics of *names*, or all if it is empty; of each *partitions*, or all.

    Args:
        deep: decode every row, too.
        progressed: called several times a second with what is known so far.

    Raises:
        ValueError: *location* is no location.
        UnknownTopicError: a topic does not exist.
        DriftlogError: there is no driftlog bucket, no such partition, or the store failed.
    """
    found = Verification()
    async with open_bucket(location) as opened:
        store = CountedObjectStore(opened, found.requests)
        reads = ObjectReads(store, limits)
        verifier = PartitionVerifier(reads, asyncio.to_thread, deep=deep)
        manifests = LostManifests(reads)
        wanted = []
        for folder in await topic_folders(store, location, names):
            topic = None if folder.is_deleted else await _topic(reads, folder, found)
            if topic is not None:
                wanted += [(topic, one) for one in _partitions(topic, partitions)]
        found.partitions = len(wanted)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(topic: Topic, partition: int) -> None:
            async with gate:
                tp = TopicPartition(topic.topic_id, partition)
                report = await verifier.verify(topic.name, tp)
                found.reports.append(report)
                await manifests.look(report)

        async def show() -> None:
            while True:
                progressed(found)
                await asyncio.sleep(0.1)

        shown = asyncio.create_task(show())
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in wanted:
                    tasks.create_task(one(*each))
            await manifests.settle()
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        finally:
            shown.cancel()
        order = {topic.topic_id: at for at, (topic, _) in enumerate(wanted)}
        found.reports.sort(key=lambda report: (order[report.topic_id], report.partition))
    return found


async def _topic(reads: ObjectReads, folder: TopicFolder, found: Verification) -> Topic | None:
    """The topic, with all partitions of which the bucket has objects; None: its file is lost.

    A file that is missing, damaged or names too few partitions is damage.
    """
    topic = await _newest(reads, folder, found)
    partitions = 0 if topic is None else topic.partitions
    more = await _partitions_from(reads, folder, partitions)
    if more <= partitions:
        return topic
    # An agent may have added partitions meanwhile: it writes the file before it seals.
    again = await topic_folder(reads.store, folder.name, folder.topic_id)
    if again.is_deleted:
        return None
    if again.files != folder.files:
        return await _topic(reads, again, found)
    key = folder.files[-1] if folder.files else layout.topic_key(folder.name, folder.topic_id, 1)
    if key not in found.topic_files:
        what = f"it has {partitions} partitions" if folder.files else "it is missing"
        found.topic_files[key] = f"{what}, and there are objects of {more}"
    known = topic or Topic(name=folder.name, topic_id=folder.topic_id, partitions=more)
    return replace(known, partitions=more)


async def _newest(reads: ObjectReads, folder: TopicFolder, found: Verification) -> Topic | None:
    """The newest version that can be read; the ones above it are damage, unless agents have deleted
    them behind the listing."""
    for key in reversed(folder.files):
        try:
            return decode_topic(await reads.get_whole(key)).topic
        except CorruptError as error:
            found.topic_files[key] = str(error)
        except NotFoundError as error:
            again = await topic_folder(reads.store, folder.name, folder.topic_id)
            if again.files[-1:] > folder.files[-1:]:
                return await _newest(reads, again, found)
            found.topic_files[key] = str(error)
    return None


async def _partitions_from(reads: ObjectReads, folder: TopicFolder, first: int) -> int:
    """One more than the largest partition from *first* on with objects; 0: there is none.

    One request where there is none.
    """
    prefix = layout.topic_prefix(folder.name, folder.topic_id)
    after = "" if not first else f"{prefix}{first - 1:05d}0"  # 0: the character behind the slash
    numbers = [
        int(name)
        for name in await folders(reads.store, prefix, after, until=":")  # behind all digits
        if len(name) == _DIGITS and name.isdecimal()
    ]
    return max(numbers, default=-1) + 1


def _partitions(topic: Topic, wanted: Collection[int]) -> list[int]:
    there = range(topic.partitions)
    missing = set(wanted) - set(there)
    if missing:
        raise DriftlogError(f"{topic.name} has no partition {min(missing)}")
    return sorted(wanted) if wanted else list(there)
