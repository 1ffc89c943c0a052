"""Composes one session of the log, and runs it from its opening to its loss or its leave.

    open session ──▶ claim its own disk's ──▶ append leftovers ──▶ claim what is placed here
                                                                              │
       drain, release, close ◀── partitions come and go (`handover`) ◀── ready ┘
                                                │
                                                └─▶ lost: every waiter fails,
                                                    the agent opens a new session

The session admits no batch before `ready`.  `Engine.run` returns after `stop`, and raises
`FencedError` when the session is lost; in both cases every waiter is told, in slices.

Shell.
"""

import asyncio
from collections.abc import Collection, Container, Coroutine, Mapping
from random import Random
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from driftlog_agents.cluster.placement import manager_of
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.foundation.clocks import Clocks
from driftlog_agents.foundation.tasks import first_of, spawn, unless
from driftlog_agents.log.consolidation.final_heads import FinalHeads
from driftlog_agents.log.consolidation.gc import FlushRecordGc
from driftlog_agents.log.consolidation.managed_records import ManagedFlushRecords
from driftlog_agents.log.consolidation.object_rewriter import ObjectRewriter
from driftlog_agents.log.consolidation.rewrite_job import RewriteJob
from driftlog_agents.log.delegated.delegated_upkeep import DelegatedUpkeep
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.ingest.admission import Admission
from driftlog_agents.log.ingest.buffer import BufferLog
from driftlog_agents.log.ingest.flush_memory import FlushMemory
from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.handover import Handover
from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.partition_claims import PartitionClaims
from driftlog_agents.log.leadership.session_status import SessionStatus
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.leave import SessionLeave
from driftlog_agents.log.led_partitions import LedPartitions
from driftlog_agents.log.merging.topic_policies import TopicPolicies
from driftlog_agents.log.objects.flush_record_reads import FEW_READS_AT_ONCE, FlushRecordReads
from driftlog_agents.log.objects.flush_records import MovedBatches
from driftlog_agents.log.objects.footer_cache import FooterCache
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.manifest_check import ManifestCheck
from driftlog_agents.log.own_disk import OwnDisk
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.topic_logs import LedTopics
from driftlog_agents.log.partition.waiters import tell_lost, unpark
from driftlog_agents.log.recovery.accepted_loss import LossAcceptance
from driftlog_agents.log.recovery.loss_examination import LossExamination
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.partition_keys import PartitionKeys
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_agents.log.sealing.record_deletion import RecordDeletion
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.producer_memory import ProducerMemory
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.session_health import SessionSignals
from driftlog_agents.log.session_ports import Ports
from driftlog_agents.log.session_sealer import SessionSealer
from driftlog_agents.log.upkeep import Upkeep
from driftlog_agents.log.upkeep_partitions import UpkeepPartitions
from driftlog_metadata.schema.model import Agent, FlushRecord, Role, TopicPartition
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.formats.flush_object import Slice
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import OtherClusterError

T = TypeVar("T")

_CHANGES_S: Final = 2.0
"""How long a leaving session waits for topic changes that were requested before."""
_KNOWN_MS: Final = 10_000.0
"""How long an unreadable object keeps a session from giving out producer ids.  Longer: new
producers wait longer wherever an object is unreadable; shorter: a short fault of the bucket hides
ids that a lost metadata store gave out."""


class Engine:
    """See the module.

    Args:
        cluster: runs as long as the engine does.
        topic_sealing, topic_retention, topic_compaction: the topics' policies, by topic name.
    """

    def __init__(
        self,
        *,
        ports: Ports,
        agent: Agent,
        cluster: ClusterWatch,
        settings: EngineSettings,
        topic_sealing: Mapping[str, TopicSealPolicy] | None = None,
        topic_compaction: Mapping[str, CompactionPolicy] | None = None,
        topic_retention: Mapping[str, TopicRetention] | None = None,
    ) -> None:
        self.ports = ports
        self.agent = agent
        self.settings = settings
        self.health, self.counters = ports.health, ports.counters
        signals = SessionSignals(ports.counters, ports.health, ports.backpressure)
        clocks = Clocks(ports.now_ms, ports.wall_ms)
        self._log = structlog.get_logger()
        self.session = Session(
            store=ports.metadata,
            agent=agent,
            settings=settings.session,
            now_ms=ports.now_ms,
            keep_alive=ports.keep_alive,
            outage=ports.health.requests,
            ownership=ports.ownership,
            secret=ports.secret,
        )
        offload_read = ports.offload_read or ports.offload
        self.manifests = ManifestCache(
            ports.objects, ports.now_ms, offload_read, unknown_keys=ports.unknown_keys
        )
        self.producers = ProducerMemory(
            settings=settings.producers,
            now_ms=ports.now_ms,
            wall_ms=ports.wall_ms,
            offload=offload_read,
            counters=ports.counters,
        )
        self.buffer = BufferLog(
            disk=ports.disk,
            session_id=agent.session_id,
            settings=settings.buffer,
            rng=ports.rng,
            now_ms=ports.now_ms,
            counters=ports.counters,
        )
        self.flusher = Flusher(
            session=self.session,
            objects=ports.objects,
            buffer=self.buffer,
            memory=FlushMemory(FlushPipeline(settings.flush, ports.rng), settings.memory),
            rng=ports.rng,
            clocks=clocks,
            published=self._published,
            signals=signals,
        )
        self.admission = Admission(
            flusher=self.flusher,
            buffer=self.buffer,
            session=self.session,
            now_ms=ports.now_ms,
            patch=kernel.patch,
            quota=ports.quota,
            producers=self.producers,
        )
        self.footers = FooterCache(
            session=self.session,
            objects=ports.objects,
            now_ms=ports.now_ms,
            offload=offload_read,
            outage=ports.health.footers,
            read_deadline_ms=settings.read_deadline_ms,
        )
        self.cluster = cluster
        self.producer_ids = ProducerIdFloor(self.session, agent.node_id)
        self.manifest_check = ManifestCheck(
            objects=ports.objects,
            probes=self.footers.probes,
            producer_ids=self.producer_ids,
            manifests=self.manifests.cached,
            now_ms=ports.now_ms,
            offload=offload_read,
            unknown_keys=ports.unknown_keys,
            outage=ports.health.manifest_checks,
        )
        self.takeover = Takeover(
            session=self.session,
            footers=self.footers,
            check=self.manifest_check,
            producer_ids=self.producer_ids,
            topics=cluster.view.topics,
            unknown_keys=ports.unknown_keys,
        )
        deleted = DeletedTopics(
            lambda topic_id: topic_id in cluster.view.topics,
            limit=settings.consolidation.deleted_topics,
        )
        led = LedTopics(deleted)
        self.topics, self.topics_by_id = led.by_name, led.by_id
        self.logs, self.find, self.log, self.know = led.logs, led.find, led.log, led.know
        self._final_heads = FinalHeads(self.session, ports.objects)
        rewrite = RewriteJob(
            session=self.session,
            footers=self.footers,
            rewriter=ObjectRewriter(
                objects=ports.objects,
                offload=ports.offload,
                spool=ports.spool,
                rng=ports.rng,
                now_ms=ports.now_ms,
            ),
            records=ManagedFlushRecords(
                agent.session_id, settings.consolidation, cluster.view.sessions
            ),
            logs=self.find,
            settings=settings.consolidation,
            offload=ports.offload,
            now_ms=ports.now_ms,
        )
        self.flush_records = FlushRecordGc(
            session=self.session,
            reads=FlushRecordReads(
                self.session, self.footers, ports.unknown_keys, at_once=FEW_READS_AT_ONCE
            ),
            rewrite=rewrite,
            final_heads=self._final_heads,
            sessions=self,
            settings=settings.consolidation,
            now_ms=ports.now_ms,
            signals=signals,
        )
        self._relocation = MovedBatches(
            session=self.session, footers=self.footers, unknown_keys=ports.unknown_keys
        )
        keys = PartitionKeys(self.session)
        self.deletion = RecordDeletion(keys, self._spawn)
        self._seal_policies = {} if topic_sealing is None else topic_sealing
        self._compaction = {} if topic_compaction is None else topic_compaction
        sealer = SessionSealer(
            ports=ports,
            session=self.session,
            keys=keys,
            manifests=self.manifests,
            probes=self.footers.probes,
            partitions=self,
            settings=settings,
            look_again=self._relocation.look_again,
        )
        self.sealer, self.segment_service = sealer.sealer, sealer.service
        topics = TopicPolicies(
            settings.seal,
            self._seal_policies,
            {} if topic_retention is None else topic_retention,
            self._compaction,
        )
        self._upkept = UpkeepPartitions(self.logs, cluster.view, agent.roles, self._compaction)
        self.upkeep = Upkeep(
            ports=ports,
            session=self.session,
            manifests=self.manifests,
            sealed_cache=self.sealer.sealed_cache,
            deletion=self.deletion,
            settings=settings,
            topics=topics,
            partitions=self._upkept,
        )
        self._delegated = DelegatedUpkeep(
            metadata=ports.metadata,
            ports=self.upkeep.rewrite_ports,
            session=self.session,
            cluster=cluster,
            compaction=settings.compaction,
            merging=settings.merging,
            counters=ports.counters,
            topics=topics,
        )
        self.assignments = PartitionAssignments(
            node_id=agent.node_id,
            session_id=agent.session_id,
            deleted=deleted,
            jitter=Random(agent.session_id).random,
            retry_ms=settings.leadership.retry_ms,
        )
        self._stop = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._look: asyncio.Task[None] | None = None
        """At the cluster file; a stop does not wait for its answer."""
        self._loading = MetadataLoader(
            self.manifests,
            self.footers.probes,
            self.producer_ids,
            self._stop,
            ports.now_ms,
            Random(agent.session_id).random,
            self.producers,
            ports.health.loading,
        )
        self.partitions = LedPartitions(
            topics=led,
            assignments=self.assignments,
            manifests=self.manifests.cached,
            view=cluster.view,
            counters=ports.counters,
            unpark=unpark,
            tell_lost=tell_lost,
        )
        self.loaded, self.admits = self._loading.loaded, self._loading.admits
        self.offline = self.partitions.offline
        self._leads = Role.SERVE in agent.roles
        self.status = SessionStatus(agent.node_id, self.session, cluster, leads=self._leads)
        self.claims = PartitionClaims(
            cluster=cluster,
            takeover=self.takeover,
            assignments=self.assignments,
            status=self.status,
            partitions=self,
            now_ms=ports.now_ms,
            offload=offload_read,
            counters=ports.counters,
        )
        self.handover = Handover(
            session=self.session,
            cluster=cluster,
            assignments=self.assignments,
            flusher=self.flusher,
            probes=self.footers.probes,
            partitions=self.partitions,
            settings=settings.leadership,
            now_ms=ports.now_ms,
        )
        self.losses = LossAcceptance(
            session=self.session,
            objects=ports.objects,
            examination=LossExamination(self.session, ports.objects, ports.now_ms),
            sealer=self.sealer,
            handover=self.handover,
            find=self.find,
            topics=cluster.view.topics,
            spawn=self._spawn,
        )
        self.own_disk = OwnDisk(
            ports=ports,
            session=self.session,
            flusher=self.flusher,
            takeover=self.takeover,
            loader=self._loading,
        )
        self.buffering, self.recover = self.own_disk.buffering, self.own_disk.append_later
        self._leave = SessionLeave(
            settings=settings,
            claims=self.claims,
            assignments=self.assignments,
            handover=self.handover,
            flusher=self.flusher,
            own_disk=self.own_disk,
            topics=led,
            now_ms=ports.now_ms,
        )
        self.ready = asyncio.Event()
        self._ready_ms = 0.0
        self.over = asyncio.Event()
        """Set when the session has ended."""
        self.changing: set[object] = set()
        """Topic changes in progress; a change that ends while the engine leaves must wake the
        cluster's watch."""

    # ── Queries ──

    def stop(self) -> None:
        """Makes the session drain, release its partitions and leave."""
        self._stop.set()

    @property
    def unknown_producers(self) -> str:
        """Why producers of partitions here may still be unknown; empty: all are known.  Unreadable
        partitions count only for the first 10 s: they may stay unreadable."""
        at_first = self.ports.now_ms() < self._ready_ms + _KNOWN_MS
        return self.partitions.unknown_producers(at_first=at_first)

    @property
    def leaving(self) -> bool:
        """Whether `stop` was called; the session still serves while it lives."""
        return self._stop.is_set()

    # ── Life ──

    async def run(self) -> None:
        """Runs one session.

        Raises:
            OtherClusterError: the bucket, or a partition in it, is another cluster's.
            FencedError: the session was lost.
        """
        try:
            if await unless(self._stop, self._open()):
                await self._live()
            else:
                await self.session.close()
        except* FencedError as group:
            other = group.subgroup(OtherClusterError)
            if other is not None:
                raise OtherClusterError(str(first_of(other))) from group
            raise FencedError(str(first_of(group))) from group
        finally:
            self._close_all()

    async def _open(self) -> None:
        await self.session.open()
        await self.own_disk.create_directory()

    async def _live(self) -> None:
        background: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            background.append(tasks.create_task(self.session.keep_alive()))
            background.append(tasks.create_task(self.buffer.run()))
            background.append(tasks.create_task(self.flusher.run()))
            if await unless(self._stop, self._begin(tasks, background)):
                leadership = [
                    spawn(tasks, self.status.keep_told()),
                    spawn(tasks, self.claims.run()),
                    spawn(
                        tasks,
                        self.handover.run() if self._leads else self.handover.release_all(),
                    ),
                ]
                background.extend(leadership)
                background.append(spawn(tasks, self.flush_records.run()))
                background.append(spawn(tasks, self.sealer.run()))
                background.extend(spawn(tasks, work) for work in self.upkeep.works())
                if Role.SEAL in self.agent.roles:
                    background.append(spawn(tasks, self._delegated.run()))
                background.append(spawn(tasks, self.producers.run(self.logs)))
                background.append(spawn(tasks, self.sealer.hold_back()))
                await self._stop.wait()
                await self.losses.close()
                await self._leave.announce()
                await self._stop_leadership(leadership)
                await self._leave.release()
                await self.cluster.until(lambda: not self.changing, _CHANGES_S)
            # After a stop during `_begin` the directories stay for the next start.
            self.deletion.close()
            for task in background if self._look is None else (*background, self._look):
                task.cancel()
            self._loading.give_up()
        self._tasks = None
        await self.session.close()  # last: no task is left that would see it as lost

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._tasks is None:
            work.close()
            raise UnavailableError("the session is over")
        return spawn(self._tasks, work)

    async def _begin(self, tasks: asyncio.TaskGroup, background: list[asyncio.Task[None]]) -> None:
        old = await self.own_disk.old_sessions()
        await self.cluster.loaded()
        for entry in self.cluster.view.topics.values():
            self.know(entry.topic)
        taken = await self.own_disk.claim(old)
        self._final_heads.closed(taken.closed)
        appended = await self.own_disk.append_leftovers()
        self.claims.serve_own(taken)
        removing = self.own_disk.remove_directories(self.assignments.retains_claim)
        background.append(spawn(tasks, removing))
        await self.claims.begin()
        self._log.info(
            "session_ready",
            session=self.agent.session_id,
            topics=len(self.topics),
            partitions=len(self.logs()),
            leftover_batches=appended,
        )
        self._ready_ms = self.ports.now_ms()
        self.ready.set()

    async def _stop_leadership(self, background: list[asyncio.Task[None]]) -> None:
        for task in background:
            task.cancel()
        # An attempt that ends later would open a partition after the others are retired.
        await asyncio.wait(background)
        self.assignments.close()
        self.ready.clear()

    def _close_all(self) -> None:
        self.ready.clear()
        self.over.set()
        # Also logs of deleted topics whose last batches are in flight.
        logs = dict.fromkeys((*self.logs(), *self.flusher.pipeline.uncommitted()))
        self.partitions.close(logs, self.buffer.close)
        self._loading.close()

    # ── Topics and partitions ──

    def open(self, taken: Taken) -> dict[TopicPartition, PartitionLog]:
        """Serves the claimed partitions; returns the logs of all but those of deleted topics."""
        if self.session.ownership.is_due() and (self._look is None or self._look.done()):
            # After a restore, manifests are ahead of the old cluster's metadata store.
            self._look = self._spawn(self.session.ownership.refresh())
        served = self.partitions.open(taken, self.ports.now_ms())
        for log in served.values():
            if log.state is State.LOADING:
                self._loading.begin(self._spawn, log)
        return served

    def remove_topic(self, topic_id: UUID) -> None:
        """Stops serving a topic that is deleted, or is about to be."""
        if self.partitions.remove_topic(topic_id):
            self.flush_records.topic_gone(topic_id)

    def seal_policies(self) -> Mapping[str, TopicSealPolicy]:
        """The policies of topics that have their own, by name."""
        return self._seal_policies

    def compacted_topics(self) -> Container[str]:
        """The names of the topics that are compacted now."""
        return self._compaction

    def sealed(self, tp: TopicPartition, end: int) -> None:
        """Notes that *tp* is sealed below *end*, as its key shows."""
        self.flush_records.sealed(tp, end)

    def live(self) -> Collection[str]:
        """The live sessions in the view."""
        return self.cluster.view.sessions

    def is_managed(self, session_id: str) -> bool:
        """Whether this agent manages the flush records of that session, which is over."""
        return manager_of(session_id, self.cluster.view.placed()) == self.agent.node_id

    def take_edited(self) -> list[tuple[str, TopicPartition]]:
        """Partitions, with their topics' names, whose replaced objects this agent collects, since
        the last call."""
        edited = self.manifests.take_edited()
        if edited and not self._upkept.are_rewritten_here:
            edited = [
                (topic, tp)
                for topic, tp in edited
                if (log := self.find(tp)) is not None and self._upkept.merges(log)
            ]
        return [*edited, *self._delegated.take_edited()]

    async def read_manifest(self, log: PartitionLog) -> Manifest:
        """The manifest of *log*, at least up to its sealed end."""
        return await self.manifests.get(log)

    async def refresh(self, log: PartitionLog) -> None:
        """Reads the manifest and the flush records of *log* again: one of its objects is gone.

        Raises:
            UnavailableError: the session ended first.
        """
        self.manifests.drop(log)
        try:
            await self._relocation.look_again(log)
        except FencedError as error:
            raise UnavailableError(f"{log.topic}-{log.partition} is not led here") from error

    def _published(
        self,
        seq: int,
        record: FlushRecord,
        footer: bytes,
        slices: list[tuple[PartitionLog, Slice]],
    ) -> None:
        self.footers.keep(record.object_key, footer)
        ends = [(TopicPartition(log.topic_id, log.partition), s.end) for log, s in slices]
        self.flush_records.committed(seq, record, ends)
