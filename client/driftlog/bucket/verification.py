"""Verifies the sealed log of topics in a bucket, several partitions at once; it only reads.

    topics/NAME/ID/…  ──▶  live topics  ──▶  `PartitionVerifier` of each partition  ──▶  reports

Shell.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from driftlog.bucket.sealed_topics import live_topic_files, open_bucket
from driftlog.errors import DriftlogError
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.bucket_files import decode_topic
from driftlog_tiering.stores.object_store import NotFoundError
from driftlog_tiering.verification.findings import PartitionReport
from driftlog_tiering.verification.object_reads import ObjectReads, ReadLimits
from driftlog_tiering.verification.partition_verifier import PartitionVerifier

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
    read_bytes: int = 0
    requests: int = 0

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
    async with open_bucket(location) as store:
        reads = ObjectReads(store, limits)
        verifier = PartitionVerifier(reads, asyncio.to_thread, deep=deep)
        wanted = []
        for versions in await live_topic_files(store, location, names):
            topic = await _topic(reads, versions, found)
            if topic is not None:
                wanted += [(topic, one) for one in _partitions(topic, partitions)]
        found.partitions = len(wanted)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(topic: Topic, partition: int) -> None:
            async with gate:
                tp = TopicPartition(topic.topic_id, partition)
                found.reports.append(await verifier.verify(topic.name, tp))

        async def show() -> None:
            while True:
                found.read_bytes, found.requests = reads.read_bytes, reads.requests
                progressed(found)
                await asyncio.sleep(0.1)

        shown = asyncio.create_task(show())
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in wanted:
                    tasks.create_task(one(*each))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        finally:
            shown.cancel()
        found.read_bytes, found.requests = reads.read_bytes, reads.requests
        order = {topic.topic_id: at for at, (topic, _) in enumerate(wanted)}
        found.reports.sort(key=lambda report: (order[report.topic_id], report.partition))
    return found


async def _topic(reads: ObjectReads, versions: Sequence[str], found: Verification) -> Topic | None:
    """The newest version that can be read; the ones above it are damage."""
    for key in reversed(versions):
        try:
            return decode_topic(await reads.get_whole(key)).topic
        except (CorruptError, NotFoundError) as error:
            found.topic_files[key] = str(error)
    return None


def _partitions(topic: Topic, wanted: Collection[int]) -> list[int]:
    there = range(topic.partitions)
    missing = set(wanted) - set(there)
    if missing:
        raise DriftlogError(f"{topic.name} has no partition {min(missing)}")
    return sorted(wanted) if wanted else list(there)
