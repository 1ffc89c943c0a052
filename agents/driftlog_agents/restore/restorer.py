"""Brings a cluster back from its bucket alone, into an empty metadata store.

     1  /restore {from, to}: a second run goes on with the same new cluster
     2  the bucket's next cluster file: agents of the old cluster stop; wait until they have
     3  topics, and the newest manifest of each partition, fenced: the new cluster's id
     4  flush objects: footers and final heads ──▶ what is refuted (`evidence`)
     5  groups and configs, by the newest snapshot (`groups/group_snapshots`)
     6  per partition: joined batches (`join`), where it goes on, its epoch (`partition_plan`)
        ──▶ segments, an empty range, its keys (`partition_writer`)
     7  topics, tombstones, groups, producer ids ──▶ /restore is finished, /cluster

1. Every acknowledged flush is in the bucket before its acknowledgement.
2. Flush objects are listed after the fences: what an older manifest did not have is there.
3. Damage stops one partition and no other: it has no leader until the object is put back and the
   restore runs again.
4. The collector deletes no flush object that was listed here until the restore is discarded.
5. A flush object whose footer cannot be read may have records of any partition: the restore ends
   before it seals anything, unless damage is to be skipped.
6. Of two runs of one restore the one that began last goes on.  Agents start only when it is
   finished, so the other one has listed nothing of theirs, or stops (`MetadataWrites.confirm`).
7. A dry run reads the same, and writes nothing.

Shell.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from driftlog_agents.groups.storage_format import decode_page
from driftlog_agents.log.recovery.flush_object_ends import READS_AT_ONCE, do_all
from driftlog_agents.log.recovery.lost_partition import EPOCHS_SKIPPED
from driftlog_agents.log.session.producer_id_ranges import SKIPPED
from driftlog_agents.restore.evidence import FlushEvidence
from driftlog_agents.restore.evidence_reads import (
    RETRY,
    BucketTopic,
    EvidenceReads,
    Progress,
)
from driftlog_agents.restore.metadata_writes import MetadataWrites
from driftlog_agents.restore.partition_restores import (
    DAMAGE,
    BucketFacts,
    PartitionRestores,
    RestoreOptions,
    damaged_flushes,
    name_of,
)
from driftlog_agents.restore.partition_writer import PartitionWriter
from driftlog_agents.restore.report import RestoreReport
from driftlog_metadata.schema.keys import (
    CONFIGS_PREFIX,
    GROUPS_PREFIX,
    parse_configs_key,
    parse_group_key,
)
from driftlog_metadata.schema.model import (
    FORMAT_VERSION,
    Cluster,
    Restore,
    Topic,
    TopicPartition,
)
from driftlog_metadata.schema.random_ids import kafka_text, random_uuid
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.formats.group_snapshot import GroupSnapshot
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError, ObjectStore


class WrongBucketError(FencedError):
    """The bucket is not the one of the cluster that is to be restored; the message says whose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePorts:
    """Everything outside that a restore uses."""

    metadata: MetadataStore
    objects: ObjectStore
    offload: Offload
    spool: Callable[[], AbstractContextManager[Spool]]
    rng: Random
    now_ms: Callable[[], float]
    """A clock that never goes back."""
    wait: Callable[[], Awaitable[None]]
    """Returns when no agent of the old cluster commits any more."""
    progress: Progress


class Restorer:
    """One restore; see the module."""

    def __init__(self, ports: RestorePorts, options: RestoreOptions | None = None) -> None:
        self._ports = ports
        self._options = options or RestoreOptions()
        self._objects = ports.objects
        self._writes = MetadataWrites(ports.metadata)
        self._topics: dict[UUID, Topic] = {}
        self._manifests: dict[TopicPartition, Manifest] = {}
        self._sealed: dict[TopicPartition, Manifest] = {}
        """Of the partitions that an earlier run has restored."""
        self._done: Collection[TopicPartition] = ()
        self._offline: Mapping[TopicPartition, int] = {}
        """The partitions that an earlier run has left offline, with their leader epochs."""

    async def run(self, from_id: str) -> RestoreReport:
        """Restore the cluster *from_id*.

        Raises:
            WrongBucketError: the bucket is another cluster's.
            FencedError: the metadata store is not empty, or another run has begun.
            CorruptError: a cluster file, a key, or the footer of a flush object is damaged.
            StoreError, TimeoutError: a store.
        """
        ports = self._ports
        restore = await self._begin(from_id)
        report = RestoreReport(from_id=from_id, to_id=restore.to_id, dry_run=self._options.dry_run)
        if self._writes.restore is None:
            report.to_id = None  # another one each time
        author = Cluster(restore.to_id, FORMAT_VERSION)
        body = await self._mark_bucket(restore, author)
        is_finished = await self._writes.is_finished()
        if not self._options.dry_run and not is_finished:
            await ports.wait()
        was = bucket_files.decode_restored_from(body)
        reads = EvidenceReads(self._objects, report, ports.progress)
        writer = PartitionWriter(
            objects=self._objects,
            author=author,
            was=was,
            grace=bucket_files.decode_grace(body),
            offload=ports.offload,
            spool=ports.spool,
            rng=ports.rng,
            now_ms=ports.now_ms,
        )
        self._done, self._offline = await self._writes.keys()
        report.was_restored = is_finished and not self._offline
        folders = await reads.topics()
        audits = await reads.audits()
        restores = PartitionRestores(
            writes=self._writes,
            writer=writer,
            report=report,
            options=self._options,
            progress=ports.progress,
        )
        await self._fence(folders, writer, restores, is_finished=is_finished)
        await self._read_done(folders, writer)
        gone = {folder.topic_id for folder in folders.values() if folder.is_deleted}
        evidence = await self._new_evidence(
            reads,
            audits,
            lambda tp: tp.topic_id not in gone and self._is_left(tp, is_finished=is_finished),
        )
        sealed = {
            TopicPartition(folder.topic_id, number): ends
            for folder in folders.values()
            for number, ends in folder.sealed.items()
        }
        for tp, ends in sealed.items():
            evidence.reached(tp, ends.end)
        needed_until_ms = math.inf if restore.listed_ms is None else restore.listed_ms
        listed_ms = await reads.flushes(evidence, needed_until_ms)
        if not self._options.dry_run:
            await self._writes.confirm()
        self._check_readable(report)
        self._name(folders, evidence)
        report.sessions, report.flush_objects = evidence.sessions, evidence.objects
        deleted = await self._find_topics(folders, evidence, reads, report)
        if not is_finished:
            await self._fence_unknown(evidence, writer, restores, report)
        snapshot = await self._groups(reads, was, report)
        told = dict(self._offline)
        for tp, epoch in audits:
            told[tp] = max(epoch, told.get(tp, -1))
        report.partitions = len(self._done)
        facts = BucketFacts(
            evidence=evidence,
            group_offsets=_committed_offsets(snapshot, report),
            told_epochs=told,
            sealed=sealed,
            listed_ms=listed_ms,
        )
        await restores.restore(self._topics, self._manifests, facts)
        report.topics = len(self._topics)
        if is_finished or self._options.dry_run:
            return report
        await self._writes.topics(self._topics.values(), deleted)
        if snapshot is not None:
            await self._writes.groups(snapshot.values)
            await self._writes.configs(snapshot.configs)
        await self._producer_ids(evidence, reads)
        await self._writes.finish(replace(restore, listed_ms=listed_ms), author)
        return report

    # ── 1, 2: which cluster ──

    async def _begin(self, from_id: str) -> Restore:
        restore = await self._writes.find()
        number, body = await RETRY.run(lambda: newest_cluster_file(self._objects))
        there = bucket_files.decode_cluster(body).cluster_id
        if restore is not None:
            if restore.from_id != from_id:
                raise FencedError(
                    f"this metadata store has a restore of cluster {restore.from_id}, and not of "
                    f"{from_id}"
                )
            if there not in (restore.to_id, restore.from_id):
                raise WrongBucketError(
                    f"the bucket belongs to cluster {there} now: another restore was faster"
                )
            restore = replace(restore, run=self._nonce())
            if not self._options.dry_run:
                await self._writes.begin(restore)
            return restore
        if there != from_id:
            begun = from_id in bucket_files.decode_restored_from(body)
            raise WrongBucketError(
                f"the bucket belongs to cluster {there}, and not to {from_id}: "
                + ("a restore has begun: its own --etcd or --dir goes on with it, and " * begun)
                + f"--from-cluster={there} restores what is there"
            )
        to_id = kafka_text(random_uuid(self._ports.rng))
        restore = Restore(from_id, to_id, number + 1, self._nonce())
        if not self._options.dry_run:
            await self._writes.begin(restore)
        return restore

    def _nonce(self) -> str:
        return f"{self._ports.rng.getrandbits(64):016x}"

    async def _mark_bucket(self, restore: Restore, author: Cluster) -> bytes:
        """Create the next cluster file; returns its bytes.

        Raises:
            WrongBucketError: another restore has created it.
        """
        number, old = await RETRY.run(lambda: newest_cluster_file(self._objects))
        if bucket_files.decode_cluster(old).cluster_id != restore.from_id:
            body = bytes(old)
        else:
            was = (*bucket_files.decode_restored_from(old), restore.from_id)
            body = bucket_files.encode_cluster(author, bucket_files.decode_grace(old), was)
            if self._options.dry_run:
                return body
            key = layout.cluster_key(number + 1)
            try:
                await RETRY.run(lambda: self._objects.create(key, [body]))
            except AlreadyExistsError:
                body = bytes(await RETRY.run(lambda: self._objects.get(key)))
        there = bucket_files.decode_cluster(body).cluster_id
        if there != restore.to_id:
            raise WrongBucketError(
                f"the bucket belongs to cluster {there} now: another restore was faster"
            )
        if not self._options.dry_run:
            await self._replace_first_file(body)
        return body

    async def _replace_first_file(self, body: bytes) -> None:
        """Put *body* in the place of ``cluster.json``, which older releases read."""
        with suppress(NotFoundError):
            if bytes(await self._objects.get(layout.CLUSTER_KEY)) == body:
                return
        await RETRY.run(lambda: self._objects.delete([layout.CLUSTER_KEY]))
        with suppress(AlreadyExistsError):
            await RETRY.run(lambda: self._objects.create(layout.CLUSTER_KEY, [body]))

    # ── 3: fences ──

    async def _fence(
        self,
        folders: Mapping[UUID, BucketTopic],
        writer: PartitionWriter,
        restores: PartitionRestores,
        *,
        is_finished: bool,
    ) -> None:
        """Fence the partitions of live topics that have objects and are left."""
        wanted = [
            (folder.name, tp)
            for folder in folders.values()
            if not (folder.is_deleted or folder.is_unpublished)
            for number in range(folder.partitions)
            for tp in (TopicPartition(folder.topic_id, number),)
            if self._is_left(tp, is_finished=is_finished)
        ]
        await self._fence_all(wanted, writer, restores)

    def _is_left(self, tp: TopicPartition, *, is_finished: bool) -> bool:
        """Whether this run is to restore a partition; of a finished restore, agents have others."""
        return tp in self._offline if is_finished else tp not in self._done

    async def _read_done(
        self, folders: Mapping[UUID, BucketTopic], writer: PartitionWriter
    ) -> None:
        """Read the manifests of what an earlier run has restored, for what they prove of others."""
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(topic: str, tp: TopicPartition) -> None:
            async with limit:
                with suppress(*DAMAGE):
                    self._sealed[tp] = await writer.newest(topic, tp)

        await do_all(
            read(folders[tp.topic_id].name, tp) for tp in self._done if tp.topic_id in folders
        )

    async def _new_evidence(
        self,
        reads: EvidenceReads,
        audits: Mapping[tuple[TopicPartition, int], str],
        is_wanted: Callable[[TopicPartition], bool],
    ) -> FlushEvidence:
        """What the manifests prove; flush objects are still to be read."""
        manifests = {**self._sealed, **self._manifests}
        restored = await reads.restored_epochs(manifests.values(), audits)
        return FlushEvidence(manifests, restored, is_wanted)

    async def _fence_unknown(
        self,
        evidence: FlushEvidence,
        writer: PartitionWriter,
        restores: PartitionRestores,
        report: RestoreReport,
    ) -> None:
        """Fence the partitions that only topic files or footers show."""
        wanted = [
            (topic.name, tp)
            for topic in self._topics.values()
            for number in range(topic.partitions)
            for tp in (TopicPartition(topic.topic_id, number),)
            if tp not in self._done
            and tp not in self._manifests
            and name_of(topic.name, tp) not in report.offline
        ]
        await self._fence_all(wanted, writer, restores)
        for _, tp in wanted:
            if tp in self._manifests:
                evidence.sealed(self._manifests[tp])

    async def _fence_all(
        self,
        wanted: list[tuple[str, TopicPartition]],
        writer: PartitionWriter,
        restores: PartitionRestores,
    ) -> None:
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def fence(topic: str, tp: TopicPartition) -> None:
            async with limit:
                try:
                    if self._options.dry_run:
                        self._manifests[tp] = await writer.newest(topic, tp)
                    else:
                        await self._writes.confirm()
                        self._manifests[tp] = await writer.fence(topic, tp)
                except (OtherClusterError, *DAMAGE) as error:
                    epoch = self._offline.get(tp, EPOCHS_SKIPPED)
                    await restores.take_offline(topic, tp, epoch, error)
            self._ports.progress("manifests read", len(self._manifests))

        await do_all(fence(*one) for one in wanted)

    def _check_readable(self, report: RestoreReport) -> None:
        damaged = damaged_flushes(report)
        if not damaged or report.was_restored:
            return
        why = (
            f"{len(damaged)} flush objects cannot be read, such as {damaged[0]} "
            f"({report.unreadable[damaged[0]]}): put them back"
        )
        skip = (
            "--skip-damaged restores without their records, and without unsealed records behind "
            "them"
        )
        if self._options.skip_damaged:
            for key in damaged:
                report.unreadable[key] += "; any partition may have lost records (see empty ranges)"
        elif self._options.dry_run:
            report.refused = f"{why}.  {skip}"
        else:
            again = "run the restore again, with the same --etcd or --dir"
            raise CorruptError(f"{why}, and {again}: the bucket belongs to it now.  {skip}")

    # ── 4: topics ──

    def _name(self, folders: dict[UUID, BucketTopic], evidence: FlushEvidence) -> None:
        """Add the topics that only footers name: a topic's key comes before its file.  An import
        that none names is deleted."""
        for topic_id, name in evidence.topic_names.items():
            folders.setdefault(UUID(bytes=topic_id), BucketTopic(name, UUID(bytes=topic_id)))
        for folder in folders.values():
            if folder.is_unpublished and folder.topic_id.bytes not in evidence.topic_names:
                folder.is_deleted = True

    async def _find_topics(
        self,
        folders: Mapping[UUID, BucketTopic],
        evidence: FlushEvidence,
        reads: EvidenceReads,
        report: RestoreReport,
    ) -> list[Topic]:
        """Find the live topics; returns the deleted ones."""
        flushed: dict[UUID, int] = {}
        for tp in evidence.partitions:
            flushed[tp.topic_id] = max(flushed.get(tp.topic_id, 0), tp.partition + 1)
        deleted: list[Topic] = []
        names: dict[str, BucketTopic] = {}
        found = await reads.topic_files(folders.values(), flushed)
        # A topic without a folder is the oldest: perhaps it is deleted, and its mark is gone.  One
        # with a file comes before any without: a creation is answered when its file is there, so
        # objects without one are perhaps no topic's.
        for folder in sorted(folders.values(), key=lambda one: (bool(one.files), one.made_ms)):
            topic = found[folder.topic_id]
            if topic is None:
                continue
            if folder.is_deleted:
                deleted.append(topic)
                continue
            older = names.get(folder.name)
            if older is not None:
                del self._topics[older.topic_id]
                report.left_out[f"topic {folder.name}, id {older.topic_id}"] = (
                    f"another topic of that name, with id {folder.topic_id}, is newer or has a "
                    "file; its objects stay"
                )
            names[folder.name] = folder
            self._topics[folder.topic_id] = topic
        return deleted

    # ── 5: groups ──

    async def _groups(
        self, reads: EvidenceReads, was: Collection[str], report: RestoreReport
    ) -> GroupSnapshot | None:
        for cluster_id in reversed(tuple(was)):
            snapshot = await reads.groups(cluster_id)
            if snapshot is not None:
                values: dict[str, bytes] = {}
                groups: set[str] = set()
                for key, value in snapshot.values.items():
                    try:
                        groups.add(parse_group_key(f"{GROUPS_PREFIX}{key}").group_id)
                    except ValueError:
                        report.unreadable[f"key {key} of groups"] = "of a later release, or foreign"
                        continue
                    values[key] = value
                report.groups_revision, report.groups = snapshot.revision, len(groups)
                return replace(snapshot, values=values, configs=_configs(snapshot, report))
        return None

    # ── 7 ──

    async def _producer_ids(self, evidence: FlushEvidence, reads: EvidenceReads) -> None:
        """No id that may have been given out is given out again: it would be a duplicate of
        another producer's."""
        seen = evidence.producer_ids
        end = await reads.producer_ids_end()
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(key: str) -> None:
            async with limit:
                with suppress(*DAMAGE):
                    for producer_id in (await reads.producers(key)).ids():
                        seen.saw(producer_id)

        await do_all(
            read(one.producers.key)
            for one in (*self._sealed.values(), *self._manifests.values())
            if one.producers is not None
        )
        seen.saw_a_lost_store()
        seen.read_end(end)
        first = seen.above_end()
        assert first is not None, "a lost store raises the end"
        await self._writes.producer_ids(max(first, end), SKIPPED)


def _configs(snapshot: GroupSnapshot, report: RestoreReport) -> dict[str, bytes]:
    """The configs that come back: of all brokers, and of groups."""
    found: dict[str, bytes] = {}
    for suffix, value in snapshot.configs.items():
        try:
            owner = parse_configs_key(f"{CONFIGS_PREFIX}{suffix}")
        except ValueError:
            report.unreadable[f"key {suffix} of configs"] = "of a later release, or foreign"
            continue
        if owner.node_id is not None:
            report.left_out[f"configs of broker {owner.node_id}"] = (
                "the restored cluster gives its node id to another machine; set them again"
            )
            continue
        found[suffix] = value
    return found


def _committed_offsets(
    snapshot: GroupSnapshot | None, report: RestoreReport
) -> dict[TopicPartition, set[int]]:
    """The largest offsets that groups committed, by partition."""
    found: dict[TopicPartition, set[int]] = {}
    for suffix, value in () if snapshot is None else snapshot.values.items():
        key = parse_group_key(f"{GROUPS_PREFIX}{suffix}")
        if key.topic_id is None:
            continue
        try:
            page = decode_page(value, key.page)
        except CorruptError as error:
            report.unreadable[f"offsets of group {key.group_id!r}"] = str(error)
            continue
        for partition, committed in page.items():
            tp = TopicPartition(key.topic_id, partition)
            found.setdefault(tp, set()).add(committed.offset)
    return found
