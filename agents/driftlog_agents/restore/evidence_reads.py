"""Reads what a restore needs of a bucket: topics, footers of flush objects, groups, marks.

    topics/        names, files, partitions, which are deleted
    flush/         the footer at the end of each object; final heads
    groups/        the newest snapshot of the old cluster
    producer-ids/  the largest block that was given out
    audit/         the leader epochs at which losses were accepted, or ranges left empty

Requests are repeated; an object that cannot be read is reported, and the others go on.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.objects.bucket_probe import PROBES_PREFIX
from driftlog_agents.log.recovery.flush_object_ends import READS_AT_ONCE, do_all
from driftlog_agents.restore.evidence import FlushEvidence
from driftlog_agents.restore.report import RestoreReport
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.accepted_loss import RESTORE_REASON, decode_accepted_loss
from driftlog_tiering.formats.flush_object import Footer, find_footer, footer_reads
from driftlog_tiering.formats.group_snapshot import GroupSnapshot, decode_group_snapshot
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.stores.object_store import (
    Listing,
    NotFoundError,
    ObjectInfo,
    ObjectStore,
)
from driftlog_tiering.verification.sealed_ends import SealedEnds

_KEEP_ALL: Final = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""Configs of a topic whose own are not known: no record of it is deleted."""

_SET_CONFIGS: Final = (
    "its configs are not known, and no retention or compaction deletes its records: put the newest "
    "file back before the restore, or set them after it (driftlog configs alter)"
)

RETRY: Final = Retry(
    wait_s=0.2, longest_wait_s=5.0, timeout_s=30.0, attempts=8, errors=(NotFoundError, *NO_ANSWER)
)
"""Of one request: a minute in a store that fails."""

Progress = Callable[[str, int], None]
"""Called with what is done, and how much of it."""

T = TypeVar("T")


@dataclass(slots=True)
class BucketTopic:
    """A topic's folder."""

    name: str
    topic_id: UUID
    files: list[str] = field(default_factory=list)
    """Keys of its versions, ascending."""
    is_deleted: bool = False
    is_import: bool = False
    """Whether a bulk import began it."""
    is_led: bool = False
    """Whether sealed objects show that an agent led it: it was published."""
    partitions: int = 0
    """As many as have objects."""
    sealed: dict[int, SealedEnds] = field(default_factory=dict)
    """Of each partition that has sealed objects."""
    made_ms: int = 0
    """When the first object was put that is left."""

    @property
    def is_unpublished(self) -> bool:
        """Whether it is a bulk import that did not end, unless a footer names it.  A file is
        written before the key of an imported topic (`topics/imports`); it may be lost."""
        return self.is_import and not self.files and not self.is_led


class EvidenceReads:
    """See the module."""

    def __init__(self, objects: ObjectStore, report: RestoreReport, progress: Progress) -> None:
        self._objects = objects
        self._report = report
        self._progress = progress

    async def topics(self) -> dict[UUID, BucketTopic]:
        """Every topic that has a folder."""
        found: dict[UUID, BucketTopic] = {}
        count = 0
        async for page in self._pages(layout.TOPICS_PREFIX):
            count += len(page.objects)
            self._progress("sealed objects listed", count)
            for info in page.objects:
                _note(found, info)
        return found

    async def topic_files(
        self, folders: Iterable[BucketTopic], partitions: Mapping[UUID, int]
    ) -> dict[UUID, Topic | None]:
        """Each topic by the newest of its files that can be read, with at least as many
        *partitions*; None: there is none.  Where its configs are not known it keeps all records."""
        found: dict[UUID, Topic | None] = {}
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(folder: BucketTopic) -> None:
            async with limit:
                least = partitions.get(folder.topic_id, 0)
                found[folder.topic_id] = await self._topic(folder, least)

        await do_all(read(folder) for folder in folders)
        return found

    async def _topic(self, folder: BucketTopic, partitions: int) -> Topic | None:
        count = max(folder.partitions, partitions)
        for key in reversed(folder.files):
            try:
                topic = bucket_files.decode_topic(await self.get(key)).topic
            except (CorruptError, NotFoundError) as error:
                if isinstance(error, NotFoundError) and await self._take_newer_files(folder):
                    return await self._topic(folder, partitions)
                self._report.unreadable[key] = f"{error or 'missing'}; {_SET_CONFIGS}"
                continue
            is_newest = key == folder.files[-1]
            return Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=max(topic.partitions, count),
                replication_factor=topic.replication_factor,
                configs=topic.configs if is_newest else {**topic.configs, **_KEEP_ALL},
            )
        if not count and not folder.is_deleted:
            return None
        if not folder.is_deleted:
            key = layout.topic_file_prefix(folder.name, folder.topic_id)
            self._report.unreadable[key] = f"no file there can be read; {_SET_CONFIGS}"
        return Topic(
            name=folder.name,
            topic_id=folder.topic_id,
            partitions=max(count, 1),
            configs=dict(_KEEP_ALL),
        )

    async def _take_newer_files(self, folder: BucketTopic) -> bool:
        """Lists the topic's files again, and gives *folder* those if agents have written newer
        versions meanwhile, for which they delete old ones; False: there is none."""
        files: list[str] = []
        async for page in self._pages(layout.topic_file_prefix(folder.name, folder.topic_id)):
            keys = (info.key for info in page.objects)
            files += [key for key in keys if _parsed(key, layout.parse_topic_key)]
        if files[-1:] <= folder.files[-1:]:
            return False
        folder.files = files
        return True

    async def flushes(self, evidence: FlushEvidence, needed_until_ms: float) -> int:
        """Add every flush object and final head to *evidence*; returns when the listing ended, by
        the store's clock.  Agents may collect what was put after *needed_until_ms*."""
        session, count, listed_ms = "", 0, 0
        async for page in self._pages(layout.FLUSH_PREFIX):
            listed_ms = page.store_now_ms
            for session_id, infos in _by_session(page.objects):
                if session_id != session:
                    evidence.settle(session)
                    session = session_id
                await self._footers(infos, evidence, needed_until_ms)
            count += len(page.objects)
            self._progress("flush objects read", count)
        evidence.settle(session)
        return listed_ms

    async def _footers(
        self, infos: list[ObjectInfo], evidence: FlushEvidence, needed_until_ms: float
    ) -> None:
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(info: ObjectInfo) -> None:
            key = layout.parse_key(info.key)
            if isinstance(key, layout.FinalHeadKey):
                evidence.final_head(key.session_id, key.head)
                return
            assert isinstance(key, layout.FlushObjectKey)
            async with limit:
                try:
                    footer = await self._footer(info)
                except NotFoundError:
                    if info.modified_ms <= needed_until_ms:
                        self._report.unreadable[info.key] = "listed, but not there"
                    return
            if footer is None or footer.session_id != key.session_id:
                self._report.unreadable[info.key] = "its footer is damaged"
            else:
                evidence.add(info.key, key, footer)

        await do_all(read(info) for info in infos)

    async def _footer(self, info: ObjectInfo) -> Footer | None:
        size = info.size_bytes
        for start in footer_reads(size):
            footer = find_footer(await self.get(info.key, start, size))
            if footer is not None:
                return footer
        return None

    async def groups(self, cluster_id: str) -> GroupSnapshot | None:
        """The newest snapshot of the cluster's groups that can be read."""
        async for page in self._pages(layout.groups_prefix(cluster_id)):
            for info in page.objects:
                try:
                    return decode_group_snapshot(await self.get(info.key))
                except (CorruptError, NotFoundError) as error:
                    self._report.unreadable[info.key] = str(error) or "missing"
        return None

    async def producer_ids_end(self) -> int:
        """The end of the largest block of producer ids that was given out."""
        end = 0
        async for page in self._pages(layout.PRODUCER_IDS_PREFIX):
            for info in page.objects:
                key = _parsed(info.key, layout.parse_producer_ids_key)
                if key is not None:
                    end = max(end, key.first_producer_id + 1_000)
        return end

    async def producers(self, key: str) -> ProducerStates:
        """The producers of a snapshot.

        Raises:
            CorruptError, NotFoundError: it is damaged or missing.
        """
        _, states = ProducerStates.decode(await self.get(key))
        return states

    async def audits(self) -> dict[tuple[TopicPartition, int], str]:
        """The keys of audit records, by partition and leader epoch."""
        found: dict[tuple[TopicPartition, int], str] = {}
        async for page in self._pages(layout.AUDIT_PREFIX):
            for info in page.objects:
                key = _parsed(info.key, layout.parse_audit_key)
                if key is not None:
                    found[key.tp, key.leader_epoch] = info.key
        return found

    async def restored_epochs(
        self, manifests: Iterable[Manifest], audits: Mapping[tuple[TopicPartition, int], str]
    ) -> set[tuple[TopicPartition, int]]:
        """The leader epochs in *manifests* that a restore has given to empty ranges."""
        found: set[tuple[TopicPartition, int]] = set()
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(place: tuple[TopicPartition, int]) -> None:
            async with limit:
                with suppress(CorruptError, NotFoundError):
                    loss = decode_accepted_loss(await self.get(audits[place]))
                    if loss.reasons == (RESTORE_REASON,):
                        found.add(place)

        places = [(one.tp, entry.epoch) for one in manifests for entry in one.leader_epochs]
        await do_all(read(place) for place in places if place in audits)
        return found

    # ── Requests ──

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of an object.

        Raises:
            NotFoundError: it is not there.
            StoreError, TimeoutError: the bucket does not answer.
        """
        return await _asked(lambda: self._bytes(key, start, end))

    async def _bytes(self, key: str, start: int, end: int | None) -> bytes:
        return bytes(await self._objects.get(key, start, end))

    async def _pages(self, prefix: str) -> AsyncIterator[Listing]:
        after = ""
        while True:
            page = await _asked(lambda after=after: self._page(prefix, after))  # type: ignore[misc]
            yield page
            if not page.objects:
                return
            after = page.objects[-1].key

    async def _page(self, prefix: str, after: str) -> Listing:
        async for page in self._objects.list(prefix, start_after=after):
            return page
        raise AssertionError("a listing has at least one page")


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await RETRY.run(ask)


def _note(found: dict[UUID, BucketTopic], info: ObjectInfo) -> None:
    """Add one object of a topic."""
    key = _parsed(info.key, layout.parse_key)
    match key:
        case layout.TopicKey() | layout.DeletedKey() | layout.ImportKey():
            topic_id, partitions = key.topic_id, 0
        case (
            layout.ManifestKey()
            | layout.SegmentListKey()
            | layout.ProducerSnapshotKey()
            | layout.SegmentKey()
        ):
            topic_id, partitions = key.tp.topic_id, key.tp.partition + 1
        case _:
            return
    topic = found.setdefault(topic_id, BucketTopic(key.topic, topic_id, made_ms=info.modified_ms))
    topic.partitions = max(topic.partitions, partitions)
    topic.made_ms = min(topic.made_ms, info.modified_ms)
    topic.is_deleted |= isinstance(key, layout.DeletedKey)
    topic.is_import |= isinstance(key, layout.ImportKey)
    if isinstance(key, layout.TopicKey):
        topic.files.append(info.key)
    elif not isinstance(key, layout.DeletedKey | layout.ImportKey):
        topic.sealed.setdefault(key.tp.partition, SealedEnds()).add(info.key, key)
        topic.is_led |= layout.is_of_agent(key)


def _by_session(infos: Iterable[ObjectInfo]) -> list[tuple[str, list[ObjectInfo]]]:
    """The flush objects and final heads of each session, in the order of the listing."""
    sessions: list[tuple[str, list[ObjectInfo]]] = []
    for info in infos:
        key = _parsed(info.key, layout.parse_key)
        if not isinstance(key, layout.FlushObjectKey | layout.FinalHeadKey):
            continue
        if info.key.startswith(PROBES_PREFIX):
            continue  # an agent has tested the bucket
        if not sessions or sessions[-1][0] != key.session_id:
            sessions.append((key.session_id, []))
        sessions[-1][1].append(info)
    return sessions


def _parsed(key: str, parse: Callable[[str], T]) -> T | None:
    try:
        return parse(key)
    except ValueError:
        return None
