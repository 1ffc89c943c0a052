"""Composes one session of the log, and runs it from its opening to its loss or its leave.

    open session ──▶ claim its own disk's ──▶ append leftovers ──▶ claim what is placed here
                                                                              │
       drain, release, close ◀── partitions come and go (`handover`) ◀── ready ┘
                                                │
                                                └─▶ lost: every waiter fails,
                                                    the agent opens a new session

The session admits no batch before `ready`.  `Engine.run` returns after `stop`, and raises
`FencedError` when the session is lost; in both cases every waiter has its answer.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from driftlog_agents.cluster.placement import keeper_of
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.retry import Retry
from driftlog_agents.foundation.tasks import first_of, spawn
from driftlog_agents.log.consolidation.gc import FlushRecordGc
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.ingest.admission import SETTLED_MS, Admission
from driftlog_agents.log.ingest.buffer import BufferLog, BufferSettings
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.ingest.flusher import Flusher, MemorySettings
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.handover import Handover
from driftlog_agents.log.leadership.handover_policy import LeadershipSettings
from driftlog_agents.log.leadership.metadata_loader import MetadataLoader
from driftlog_agents.log.leadership.partition_claims import PartitionClaims
from driftlog_agents.log.leadership.partition_keys import PartitionKeys
from driftlog_agents.log.leadership.session_status import SessionStatus
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.objects.flush_records import MovedBatches
from driftlog_agents.log.objects.footer_cache import FooterCache
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.manifest_check import ManifestCheck
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.recovery.accepted_loss import LossAcceptance
from driftlog_agents.log.recovery.displaced_records import DisplacedRecords
from driftlog_agents.log.recovery.recovery import Recovery, unreadable
from driftlog_agents.log.sealing.policy import SealSettings, TopicSealPolicy
from driftlog_agents.log.sealing.record_deletion import RecordDeletion
from driftlog_agents.log.sealing.sealer import Sealer, Spool
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.keep_alive import KeepAlive
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.producer_memory import ProducerMemory, ProducerSettings
from driftlog_agents.log.session.session import Session, SessionSettings
from driftlog_agents.log.session.session_health import SessionHealth
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.model import Agent, FlushRecord, Topic, TopicPartition
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.stores.quota import Quota
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.batches import kernel
from driftlog_tiering.formats.flush_object import Slice
from driftlog_tiering.formats.grace import Grace
from driftlog_tiering.stores.object_store import ObjectStore

T = TypeVar("T")

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=0.2)
_CHANGES_S: Final = 2.0
"""How long a leaving session waits for topic changes that were requested before."""
_KNOWN_MS: Final = 10_000.0
"""How long an unreadable object keeps a session from giving out producer ids.  Longer: new
producers wait longer wherever an object is unreadable; shorter: a short fault of the bucket hides
ids that a lost metadata store gave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """All settings of one session."""

    session: SessionSettings = field(default_factory=SessionSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    buffer: BufferSettings = field(default_factory=BufferSettings)
    seal: SealSettings = field(default_factory=SealSettings)
    leadership: LeadershipSettings = field(default_factory=LeadershipSettings)
    consolidation: ConsolidationSettings = field(default_factory=ConsolidationSettings)
    producers: ProducerSettings = field(default_factory=ProducerSettings)
    drain_ms: float = 20_000
    """How long a leaving session flushes; less than a supervisor's timeout (30 s)."""

    drain_failing_ms: float = 5_000
    """The same while flushes fail: it gives up once they have failed for so long.  Longer: a short
    outage leaves less to the next start; shorter: a stop is quicker."""

    def within(self, grace: Grace) -> "EngineSettings":
        """These settings, with the bounds of what names objects for the cluster's *grace*."""
        return replace(
            self,
            flush=replace(self.flush, max_object_age_ms=grace.named_within_ms),
            consolidation=replace(self.consolidation, named_within_ms=grace.short_ms),
            seal=replace(self.seal, grace=grace),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of the log: stores, disk, clocks, threads and shared state."""

    metadata: WitnessedStore
    objects: ObjectStore
    disk: AgentDisk
    rng: Random
    now_ms: Callable[[], float]
    """A monotonic clock that includes the time that the machine was suspended."""
    wall_ms: Callable[[], int]
    """Unix time in ms, by a clock that may jump or stand still."""
    offload: Offload
    """Runs ``fn(*args)`` outside the event loop."""
    spool: Callable[[], AbstractContextManager[Spool]]
    offload_read: Offload | None = None
    """Like *offload*, for work that must not wait behind segments; None: *offload*."""
    decoding: BatchDecoder = field(default_factory=BatchDecoder)
    """Decodes large batches, one at a time in the process."""
    keep_alive: KeepAlive | None = None
    """None: keep-alives are sent from the event loop."""
    quota: Quota = field(default_factory=Quota)
    """How much of its quota the metadata store uses."""
    strangers: UnknownKeys = field(default_factory=UnknownKeys)
    """Unrecognised keys that are logged already, also by earlier sessions of the agent."""
    backpressure: Backpressure = field(default_factory=Backpressure)
    """Holds producers of this session back."""
    health: SessionHealth = field(default_factory=SessionHealth)
    """Health of this session."""
    counters: LogCounters = field(default_factory=LogCounters)
    """Counters of all sessions of the process."""


class TopicLogs:
    """A topic and the logs of its partitions that are led here, by partition number."""

    __slots__ = ("logs", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.logs: list[PartitionLog | None] = [None] * topic.partitions


class Engine:
    """See the module.

    Args:
        cluster: runs as long as the engine does.
        topic_sealing: the topics' configs of sealing, by topic name.
    """

    def __init__(
        self,
        *,
        ports: Ports,
        agent: Agent,
        cluster: ClusterWatch,
        settings: EngineSettings,
        topic_sealing: dict[str, TopicSealPolicy] | None = None,
    ) -> None:
        self.ports = ports
        self.agent = agent
        self.settings = settings
        self.health, self.counters = ports.health, ports.counters
        self._log = structlog.get_logger()
        self.session = Session(
            store=ports.metadata,
            agent=agent,
            settings=settings.session,
            now_ms=ports.now_ms,
            keep_alive=ports.keep_alive,
            outage=ports.health.requests,
        )
        offload_read = ports.offload_read or ports.offload
        self.manifests = ManifestCache(
            ports.objects, ports.now_ms, offload_read, strangers=ports.strangers
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
            flush_settings=settings.flush,
            memory_settings=settings.memory,
            rng=ports.rng,
            now_ms=ports.now_ms,
            wall_ms=ports.wall_ms,
            published=self._published,
            counters=ports.counters,
            backpressure=ports.backpressure,
            outage=ports.health.flushes,
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
        )
        self.cluster = cluster
        self.producer_ids = ProducerIdFloor(self.session, agent.node_id)
        self.manifest_check = ManifestCheck(
            objects=ports.objects,
            probes=self.footers.probes,
            producer_ids=self.producer_ids,
            now_ms=ports.now_ms,
            offload=offload_read,
            strangers=ports.strangers,
            outage=ports.health.manifest_checks,
        )
        self.takeover = Takeover(
            session=self.session,
            footers=self.footers,
            check=self.manifest_check,
            producer_ids=self.producer_ids,
            topics=cluster.view.topics,
            strangers=ports.strangers,
        )
        self.topics: dict[str, TopicLogs] = {}
        self.topics_by_id: dict[UUID, TopicLogs] = {}
        self._going = DeletedTopics(lambda topic_id: topic_id in cluster.view.topics)
        """Topics whose deletion has begun or is finished."""
        self._own = Taken()
        self.keeper = FlushRecordGc(
            session=self.session,
            objects=ports.objects,
            footers=self.footers,
            logs=self.find,
            kept=lambda session_id: keeper_of(session_id, cluster.view.placed()) == agent.node_id,
            seen=lambda: cluster.view.sessions,
            settings=settings.consolidation,
            rng=ports.rng,
            now_ms=ports.now_ms,
            offload=ports.offload,
            spool=ports.spool,
            backpressure=ports.backpressure,
            health=ports.health,
            strangers=ports.strangers,
        )
        self._relocation = MovedBatches(
            session=self.session, footers=self.footers, strangers=ports.strangers
        )
        keys = PartitionKeys(self.session)
        self.deletion = RecordDeletion(keys, self._spawn)
        self.sealer = Sealer(
            session=self.session,
            keys=keys,
            objects=ports.objects,
            probes=self.footers.probes,
            logs=self.logs,
            manifests=self.manifests,
            settings=settings.seal,
            topic_sealing=lambda: topic_sealing or {},
            offload=ports.offload,
            spool=ports.spool,
            rng=ports.rng,
            now_ms=ports.now_ms,
            wall_ms=ports.wall_ms,
            producer_expiration_ms=settings.producers.expiration_ms,
            sealed=self.keeper.sealed,
            buffering=lambda tp: self._own.buffering(tp),
            counters=ports.counters,
            backpressure=ports.backpressure,
            outage=ports.health.sealing,
            look_again=self._relocation.look_again,
            decoding=ports.decoding,
        )
        self.assignments = PartitionAssignments(
            node_id=agent.node_id,
            session_id=agent.session_id,
            deleted=self._going,
            jitter=Random(agent.session_id).random,
            retry_ms=settings.leadership.retry_ms,
        )
        self.status = SessionStatus(agent.node_id, self.session, cluster)
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
            partitions=self,
            settings=settings.leadership,
            now_ms=ports.now_ms,
        )
        self.losses = LossAcceptance(
            session=self.session,
            objects=ports.objects,
            sealer=self.sealer,
            keys=keys,
            leading=self.handover,
            find=self.find,
            topics=cluster.view.topics,
            now_ms=ports.now_ms,
            spawn=self._spawn,
        )
        self.ready = asyncio.Event()
        self._ready_ms = 0.0
        self.over = asyncio.Event()
        """Set when the session has ended."""
        self.changing: set[object] = set()
        """Topic changes in progress; a change that ends while the engine leaves must wake the
        cluster's watch."""
        self._stop = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
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

    # ── Queries ──

    def logs(self) -> list[PartitionLog]:
        """The logs of every partition that is led here."""
        return [log for topic in self.topics.values() for log in topic.logs if log is not None]

    def offline(self) -> dict[TopicPartition, str]:
        """Partitions of this agent that need an operator, and why: those led here that are offline,
        and those placed here that cannot be claimed or opened.  Each reason ends with the
        advice."""
        unreadable = {
            tp: f"{why}; {self._way_back(tp)}" for tp, why in self.assignments.unreadable.items()
        }
        found = {
            tp: why
            for tp, why in (unreadable | self.assignments.damaged).items()
            if self.assignments.is_placed_here(tp)
        }
        for log in self.logs():
            if log.state is State.OFFLINE:
                found[TopicPartition(log.topic_id, log.partition)] = log.offline_reason
        return found

    def _way_back(self, tp: TopicPartition) -> str:
        """The advice if the bucket does not return an object that *tp* needs."""
        topic = self.cluster.view.topics.get(tp.topic_id)
        name = f"{'TOPIC' if topic is None else topic.topic.name}:{tp.partition}"
        return (
            "repair the bucket, or restore the missing object (from a version or a replica): "
            "the agent retries at least once a minute; if a flush object is gone for good, "
            f"see `driftlog partitions accept-loss {name}`"
        )

    def find(self, tp: TopicPartition) -> PartitionLog | None:
        """The partition's log, if it is led here or being handed over."""
        entry = self.topics_by_id.get(tp.topic_id)
        if entry is None or tp.partition >= len(entry.logs):
            return None
        return entry.logs[tp.partition]

    def is_going(self, topic_id: UUID) -> bool:
        """Whether the topic's deletion has begun or is finished."""
        return topic_id in self._going

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition's log, if it is led here."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.logs):
            return None
        return found.logs[partition]

    async def loaded(self, log: PartitionLog) -> None:
        """Waits until the partition's producers and epochs are loaded, or found to be unreadable.

        Raises:
            UnavailableError: the partition was closed first.
        """
        await self._loading.wait(log)
        if log.state is State.CLOSED:
            raise UnavailableError(f"{log.topic}-{log.partition} is not led here any more")

    async def admits(self, log: PartitionLog) -> None:
        """Waits until the partition is `loaded`, and not paused.

        Raises:
            UnavailableError: the partition was closed first.
        """
        await self.loaded(log)
        while log.paused:
            over = asyncio.Event()
            log.parked.append(over.set)
            await over.wait()
            await self.loaded(log)

    def stop(self) -> None:
        """Makes the session drain, release its partitions and leave."""
        self._stop.set()

    @property
    def unknown_producers(self) -> str:
        """Why producers of partitions here may still be unknown; empty: all are known.  Unreadable
        partitions count only for the first 10 s: they may stay unreadable."""
        loading = [log for log in self.logs() if log.state is State.LOADING]
        if any(not log.damage for log in loading):
            return "producer state is being loaded"
        at_first = self.ports.now_ms() < self._ready_ms + _KNOWN_MS
        if at_first and (loading or self.assignments.unreadable):
            return "producer state cannot be read yet"
        return ""

    @property
    def leaving(self) -> bool:
        """Whether `stop` was called; the session still serves while it lives."""
        return self._stop.is_set()

    # ── Life ──

    async def run(self) -> None:
        """Runs one session.

        Raises:
            FencedError: the session was lost.
        """
        try:
            if await self._unless_stopped(self._open()):
                await self._live()
            else:
                await self.session.close()
        except* FencedError as group:
            raise FencedError(str(first_of(group))) from group
        finally:
            self._close_all()

    async def _open(self) -> None:
        await self.session.open()
        await self._create_directory()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs *work*; False: `stop` came first, and *work* was cancelled."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work)
            stop = tasks.create_task(self._stop.wait())
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            done = task.done()
            task.cancel()
            stop.cancel()
        return done

    async def _create_directory(self) -> None:
        async def failed(error: Exception) -> None:
            if not self.session.alive:
                raise FencedError("the session ended before its directory was created") from error
            self._log.warning("session_directory_failed", error=str(error), advice="retrying")

        create = partial(self.ports.disk.create_session, self.agent.session_id)
        await _RETRY.run(create, failed)

    async def _directories(self) -> list[str]:
        """The session directories on this disk; waits while the disk fails."""
        while True:
            try:
                return self.ports.disk.sessions()
            except UnavailableError as error:
                unreadable(self.counters, error)
                await asyncio.sleep(_RETRY.wait_s)

    async def _live(self) -> None:
        background: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            background.append(tasks.create_task(self.session.keep_alive()))
            background.append(tasks.create_task(self.buffer.run()))
            background.append(tasks.create_task(self.flusher.run()))
            if await self._unless_stopped(self._begin(tasks, background)):
                leadership = [
                    spawn(tasks, self.status.keep_told()),
                    spawn(tasks, self.claims.run()),
                    spawn(tasks, self.handover.run()),
                ]
                background.extend(leadership)
                background.append(spawn(tasks, self.keeper.run()))
                background.append(spawn(tasks, self.sealer.run()))
                background.append(spawn(tasks, self.producers.run(self.logs)))
                background.append(spawn(tasks, self.sealer.hold_back()))
                await self._stop.wait()
                await self.losses.close()
                await self._leave(leadership)
                await self.cluster.until(lambda: not self.changing, _CHANGES_S)
            # After a stop during `_begin` the directories stay for the next start.
            self.deletion.close()
            for task in background:
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
        mine = self.agent.session_id
        old = [s for s in await self._directories() if s != mine]
        await self.cluster.loaded()
        for entry in self.cluster.view.topics.values():
            self.know(entry.topic)
        taken = self._own = await self.takeover.own(old, self.ports.now_ms())
        recovery = Recovery(
            disk=self.ports.disk,
            flusher=self.flusher,
            taken=taken,
            takeover=self.takeover,
            loader=self._loading,
            displaced=DisplacedRecords(
                disk=self.ports.disk,
                session=self.session,
                takeover=self.takeover,
                loader=self._loading,
                strangers=self.ports.strangers,
                counters=self.counters,
                now_ms=self.ports.now_ms,
                wall_ms=self.ports.wall_ms,
            ),
            counters=self.counters,
            now_ms=self.ports.now_ms,
        )
        await recovery.append_leftovers(taken.old_sessions)
        self.claims.serve_own(taken)
        background.append(spawn(tasks, recovery.remove_directories()))
        await self.claims.begin()
        self._log.info(
            "session_ready",
            session=mine,
            topics=len(self.topics),
            partitions=len(self.logs()),
            leftover_batches=recovery.batches,
        )
        self._ready_ms = self.ports.now_ms()
        self.ready.set()

    async def _leave(self, background: list[asyncio.Task[None]]) -> None:
        """Flushes, releases every partition for good, and removes the session's directory."""
        await self._say_that_we_leave()
        for task in background:
            task.cancel()
        # An attempt that ends later would open a partition after the others are retired here.
        await asyncio.wait(background)
        self.assignments.close()
        self.ready.clear()
        # Offline partitions are not released: the next session on this disk then appends their
        # buffered batches at the same offsets.  (If another agent claims one after this session,
        # its batches are set aside.)
        waiting = [log for log in self.logs() if log.state is State.OFFLINE]
        self.handover.retire_all(self.logs())
        if not await self._drained():
            outage = self.health.flushes
            self._log.warning(
                "drain_incomplete",
                bytes=self.flusher.pending_bytes,
                error=outage.error if outage.since_ms is not None else "the store is slow",
                advice="records acknowledged with acks=1 stay in DIR/buffer, and the next start on "
                "DIR appends them; acks=all records were not acknowledged, and are sent again",
            )
            return
        await self.handover.release([log for log in self.logs() if log not in waiting])
        if not waiting:
            await self.ports.disk.remove_session(self.agent.session_id)

    async def _say_that_we_leave(self) -> None:
        """Announces the leave, and waits for the others' warm-up, if there are others."""
        settings = self.settings
        try:
            async with asyncio.timeout(settings.session.request_deadline_ms / 1000):
                if not await self.claims.leave():
                    return
        except TimeoutError:
            return  # they see it when the session is over
        await asyncio.sleep(settings.leadership.warm_up_ms / 1000)

    async def _drained(self) -> bool:
        """Waits until every flush is committed; False: it gave up by `drain_ms` or
        `drain_failing_ms`."""
        async with asyncio.TaskGroup() as tasks:
            drain = tasks.create_task(self.flusher.drain())
            hopeless = tasks.create_task(self._hopeless())
            await asyncio.wait(
                [drain, hopeless],
                timeout=self.settings.drain_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            drained = drain.done()
            drain.cancel()
            hopeless.cancel()
        return drained

    async def _hopeless(self) -> None:
        """Returns when flushes have failed, not only been slow, for `drain_failing_ms`."""
        patience_ms = self.settings.drain_failing_ms
        left_ms = patience_ms
        while left_ms > 0:
            await asyncio.sleep(left_ms / 1000)
            left_ms = patience_ms - self.health.flushes.lasted_ms(self.ports.now_ms())

    def _close_all(self) -> None:
        self.ready.clear()
        self.over.set()
        # Also logs of deleted topics whose last batches are in flight.
        logs = dict.fromkeys((*self.logs(), *self.flusher.pipeline.uncommitted()))
        for log in logs:
            for waiter in log.close():
                waiter.lost(log)
        self.buffer.close()
        for log in logs:
            log.unpark()  # wakes the parked batches, which are refused now
        self._loading.close()

    # ── Topics and partitions ──

    def know(self, topic: Topic) -> None:
        """Adds or updates *topic*, as the metadata store has it."""
        if topic.topic_id in self._going:
            return
        entry = self.topics_by_id.get(topic.topic_id)
        if entry is None:
            entry = TopicLogs(topic)
            self.topics[topic.name] = entry
            self.topics_by_id[topic.topic_id] = entry
        entry.topic = topic
        entry.logs.extend([None] * (topic.partitions - len(entry.logs)))

    def open(self, taken: Taken) -> dict[TopicPartition, PartitionLog]:
        """Serves the claimed partitions; returns the logs of all but those of deleted topics."""
        served: dict[TopicPartition, PartitionLog] = {}
        for tp, log in taken.logs.items():
            entry = self.topics_by_id.get(tp.topic_id)
            if entry is None:
                log.close()  # the topic was deleted meanwhile
                continue
            if tp not in taken.fresh:
                log.settled_ms = self.ports.now_ms() + SETTLED_MS
            log.start_epoch(log.leader_epoch, log.log_end)
            entry.logs[tp.partition] = served[tp] = log
            if log.state is State.LOADING:
                self._loading.begin(self._spawn, log)
        return served

    def pause(self, log: PartitionLog) -> None:
        """Pauses admission: batches wait, and reads continue."""
        log.paused = True

    def resume(self, log: PartitionLog) -> None:
        """Admits the waiting batches."""
        log.paused = False
        if log.state is not State.LOADING or log.damage:
            log.unpark()

    def retire(self, log: PartitionLog) -> None:
        """Stops produce and fetch for *log*; admitted batches are still committed."""
        for waiter in log.retire():
            waiter.lost(log)
        log.paused = False
        log.unpark()  # wakes the parked batches, which are refused now

    def gone(self, log: PartitionLog) -> None:
        """Forgets *log*: it was released, and others may lead it."""
        log.close()
        self.counters.partitions_handed_over += 1
        self.manifests.forget(log)
        entry = self.topics_by_id.get(log.topic_id)
        if entry is not None and entry.logs[log.partition] is log:
            entry.logs[log.partition] = None

    def remove_topic(self, topic_id: UUID) -> None:
        """Stops serving a topic that is deleted, or is about to be."""
        self._going.add(topic_id)
        entry = self.topics_by_id.pop(topic_id, None)
        if entry is None:
            return
        self.assignments.topic_deleted(TopicPartition(topic_id, n) for n in range(len(entry.logs)))
        if self.topics.get(entry.topic.name) is entry:
            del self.topics[entry.topic.name]
        for log in entry.logs:
            if log is not None:
                for waiter in log.close():
                    waiter.lost(log)
                log.unpark()  # wakes the parked batches, which are refused now
                self.manifests.forget(log)
        self.keeper.topic_gone(topic_id)

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
        self.keeper.committed(seq, record, ends)
