"""The agent process: identity, listeners, and one session of the log after the other.

    start ──▶ join cluster ──▶ bind ──▶ ┌─ session ──▶ ready: listen ──▶ … ─┐
                                        └──────── lost: back off ◀──────────┘
    stop ──▶ refuse new work, flush, release, answer, close

When the metadata store is not the one that the process has seen (`store_watch`), the session ends
and no other one begins: a restart is how an operator accepts the store as it is.

Shell.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import structlog

from driftlog_agents.allocator import give_back
from driftlog_agents.broker import Broker, BrokerSettings
from driftlog_agents.collector import Collector
from driftlog_agents.decoding import Decoding
from driftlog_agents.fitness_watch import FitnessWatch, set_within
from driftlog_agents.groups.coordinator import GroupCoordinator
from driftlog_agents.handlers.rewrite_lanes import RewriteLanes
from driftlog_agents.identity import WrongClusterError, join_cluster, node_id
from driftlog_agents.limits import Refusals
from driftlog_agents.listeners import ListenAt, refused, take_all
from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.durations import Durations
from driftlog_agents.log.engine import Engine, EngineSettings, Ports
from driftlog_agents.log.footers import Footers
from driftlog_agents.log.keep_alive import KeepAlive
from driftlog_agents.log.partition import PartitionLog
from driftlog_agents.log.reader import LogReader
from driftlog_agents.log.sealing import Spool
from driftlog_agents.log.spawning import first_of
from driftlog_agents.log.strangers import Strangers
from driftlog_agents.loop_watch import LoopWatch
from driftlog_agents.network.dispatcher import Dispatcher
from driftlog_agents.network.peer import PeerLeader
from driftlog_agents.network.server import Server
from driftlog_agents.node_ids import NodeIds
from driftlog_agents.offloading import Offload
from driftlog_agents.producer_ids import ProducerIds
from driftlog_agents.quota import Quota
from driftlog_agents.quota_watch import Ask, QuotaWatch
from driftlog_agents.store_watch import StoreWatch
from driftlog_agents.topics import Topics
from driftlog_metadata.codec import encode_cluster
from driftlog_metadata.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.model import Agent, Listener
from driftlog_metadata.store import MetadataStore
from driftlog_metadata.witness import StoreWitness
from driftlog_metadata.witnessed_store import WitnessedStore
from driftlog_tiering.object_store import ObjectStore

_BACKOFF_S: Final = (0.1, 5.0)
"""First and longest wait before a new session after a lost one; with jitter."""

_NODE_ID_KEPT_MS: Final = 6 * 86_400_000.0
"""Less than a node id is kept without an agent (`node_ids`)."""

_LISTENER: Final = "--listener"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What `driftlog dev` and `driftlog agent run` turn."""

    listeners: tuple[ListenAt, ...] = (ListenAt(),)
    """One at least; the first is the bootstrap address that people are told, and the one by which
    agents reach each other."""
    rack: str | None = None
    http_address: str = ""
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ports of a process."""

    metadata: MetadataStore
    objects: ObjectStore
    disk: AgentDisk
    rng: Random
    offload_seal: Offload
    offload_read: Offload
    offload_produce: Offload
    offload_rewrite: Offload
    """For what takes long of Produce."""
    spool: Callable[[], AbstractContextManager[Spool]]
    keep_alive: KeepAlive | None = None
    usage: Ask | None = None
    """How full the metadata store is; None: it has no quota."""
    log_lines_dropped: Callable[[], Mapping[str, int]] = dict
    """Lines of the process's log that were not written, by reason."""


class AgentProcess:
    """See the module.

    Args:
        listening: bound to the address of each listener; none: they are taken at the start.
    """

    def __init__(
        self,
        settings: AgentSettings,
        world: World,
        listening: Sequence[Sequence[socket.socket]] = (),
    ) -> None:
        self.settings = settings
        self._world = world
        self._metadata = WitnessedStore(world.metadata, StoreWitness(now_ms))
        self.store_watch = StoreWatch(self._metadata)
        self._listening = listening
        self._log = structlog.get_logger()
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        self.address = ""
        self.listeners: tuple[Listener, ...] = ()
        """What clients are told to connect to."""
        self.broker: Broker
        self.server: Server
        self.dispatcher: Dispatcher
        self.collector: Collector
        self.fitness: FitnessWatch
        self.quota = Quota()
        self.refusals = Refusals()
        self.decoding = Decoding(
            settings.broker.limits.batches,
            self.refusals.count,
            settle=partial(world.offload_read, give_back),
        )
        self.loop_watch = LoopWatch()
        self._strangers = Strangers()
        self.sessions = 0
        self._engine: Engine | None = None
        self._footers: Footers | None = None
        """Of the last session: the next one takes over from what that one wrote."""
        self._counted: Counter[str] = Counter()
        self._commits = Durations()
        self._group_loads = Durations()

    def stop(self) -> None:
        """Drain and leave (SIGTERM)."""
        self._stopping.set()
        if self._engine is not None:
            self._engine.stop()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            WrongClusterError: the stores are not of one cluster.
            ListenError: the listener's address cannot be used.
        """
        if not await self._prepared():
            return
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self.dispatcher.run()),
                tasks.create_task(self.server.close_idle()),
                tasks.create_task(self.broker.reader.run()),
                tasks.create_task(self.broker.cluster.run()),
                tasks.create_task(self.broker.topics.run()),
                tasks.create_task(self.collector.run()),
                tasks.create_task(self.store_watch.run()),
                tasks.create_task(self.loop_watch.run()),
            ]
            if self._world.usage is not None:
                watch = QuotaWatch(self.quota, self._world.usage)
                background.append(tasks.create_task(watch.run()))
            await self._sessions()
            self.server.stop_listening()
            await self.server.finish()
            for task in background:
                task.cancel()

    # ── What was counted, over all sessions ──

    @property
    def counted(self) -> Counter[str]:
        """The log's counters, by the name of their metric."""
        engine, groups = self._engine, self.broker.groups
        counted = self._counted if engine is None else self._counted + _counts(engine)
        return counted if groups is None else counted + groups.counted

    @property
    def commits(self) -> Durations:
        """How long commits took."""
        engine = self._engine
        return self._commits if engine is None else self._commits + engine.flusher.commits

    @property
    def group_loads(self) -> Durations:
        """How long it took to claim and read a group."""
        groups = self.broker.groups
        return self._group_loads if groups is None else self._group_loads + groups.loads

    @property
    def log_lines_dropped(self) -> Mapping[str, int]:
        """Lines of the process's log that were not written, by reason."""
        return self._world.log_lines_dropped()

    # ── Start ──

    async def _prepared(self) -> bool:
        """Prepare, unless `stop` comes first: a store that is slow holds up nobody who leaves."""
        prepare = asyncio.create_task(self._prepare())
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([prepare, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            given_up = not prepare.done()
            prepare.cancel()
            stop.cancel()
            await asyncio.gather(prepare, stop, return_exceptions=True)
        if given_up and (prepare.cancelled() or prepare.exception() is not None):
            if not prepare.cancelled():
                self._log.warning("start_given_up", error=repr(prepare.exception()))
            return False
        await prepare  # raises what it raised
        return True

    async def _prepare(self) -> None:
        settings, world = self.settings, self._world
        cluster = await join_cluster(
            self._metadata, world.objects, settings.broker.location, world.rng, self._strangers
        )
        self._metadata.witness.cluster = encode_cluster(cluster)
        session_ms = settings.engine.session.ttl_ms
        number = await node_id(
            self._metadata, world.disk, cluster, session_ms, world.rng, self._strangers
        )
        self.server = Server(
            now_ms=now_ms,
            socket_request_max_bytes=settings.broker.socket_request_max_bytes,
            max_connections=settings.broker.max_connections,
            connections_max_idle_ms=settings.broker.connections_max_idle_ms,
            limits=settings.broker.limits,
            refusals=self.refusals,
        )
        self._listening = self._listening or await take_all(settings.listeners)
        for at, sockets in zip(settings.listeners, self._listening, strict=True):
            self.server.use(at.name, sockets)
            self.listeners += (at.advertised(sockets[0].getsockname()[1]),)
        self.address = f"{self.listeners[0].host}:{self.listeners[0].port}"
        self._started_at_ms = time.time_ns() // 1_000_000
        self._node_id = number
        self.broker = Broker(
            cluster_id=cluster.cluster_id,
            agent=self._agent(),
            settings=settings.broker,
            metadata=self._metadata,
            objects=world.objects,
            reader=LogReader(
                store=world.objects,
                offload=world.offload_read,
                manifest=self._manifest,
                refresh=self._refresh,
                now_ms=now_ms,
                decoding=self.decoding,
            ),
            wall_ms=_wall_ms,
            refusals=self.refusals,
        )
        self.broker.topics = Topics(self.broker)
        self.broker.producer_ids = ProducerIds(self.broker)
        self.collector = Collector(
            metadata=self._metadata,
            objects=world.objects,
            disk=world.disk,
            offload=world.offload_seal,
            wanted=lambda: self.broker.view.controller_id == number,
            confirm=self.store_watch.confirm,
            node_ids=NodeIds(self._metadata, confirm=self.store_watch.confirm),
            strangers=self._strangers,
        )
        self.fitness = FitnessWatch(
            node_id=number,
            metadata=self._metadata,
            objects=world.objects,
            disk=world.disk,
            view=self.broker.cluster.view,
            rng=world.rng,
            now_ms=now_ms,
        )
        lanes = RewriteLanes(
            light=world.offload_produce,
            heavy=world.offload_rewrite,
            decoding=self.decoding,
            now_ms=now_ms,
        )
        self.dispatcher = Dispatcher(self.broker, lanes.run, now_ms)
        self.server.dispatch = self.dispatcher.dispatch

    def _agent(self) -> Agent:
        return Agent(
            node_id=self._node_id,
            session_id=f"{self._world.rng.getrandbits(128):032x}",
            listeners=self.listeners,
            http_address=self.settings.http_address,
            rack=self.settings.rack,
            started_at_ms=self._started_at_ms,
        )

    async def _manifest(self, log: PartitionLog) -> Any:
        engine = self.broker.engine
        if engine is None:
            raise UnavailableError("between two sessions")
        return await engine.manifests.get(log)

    async def _refresh(self, log: PartitionLog) -> None:
        engine = self.broker.engine
        if engine is not None:
            await engine.refresh(log)

    # ── Sessions ──

    async def _sessions(self) -> None:
        first, longest = _BACKOFF_S
        backoff = first
        self._served_ms = now_ms()
        while not self._stopping.is_set():
            if self.store_watch.evidence is not None:
                await self._stopping.wait()
                return
            began = now_ms()
            try:
                await self._session()
            except WrongClusterError:
                raise
            except FencedError as error:
                if self.store_watch.evidence is not None:
                    continue  # `store_watch` says so
                self._log.warning(
                    "session_lost",
                    reason=str(error),
                    advice="what was not committed was answered as failed; a new session "
                    "begins as soon as the metadata store answers",
                )
                await self.fitness.lost()
                await self.fitness.until_fit(self._stopping)
            if self._stopping.is_set():
                return
            if now_ms() - began > 60_000:
                backoff = first
            if await set_within(self._stopping, backoff * self._world.rng.uniform(0.5, 1.0)):
                return
            backoff = min(longest, backoff * 2)

    async def _session(self) -> None:
        world = self._world
        self.broker.agent = self._agent()
        engine = Engine(
            ports=Ports(
                metadata=self._metadata,
                objects=world.objects,
                disk=world.disk,
                rng=world.rng,
                now_ms=now_ms,
                wall_ms=_wall_ms,
                offload=world.offload_seal,
                offload_read=world.offload_read,
                spool=world.spool,
                decoding=self.decoding,
                keep_alive=world.keep_alive,
                quota=self.quota,
                connect=PeerLeader,
                strangers=self._strangers,
            ),
            agent=self.broker.agent,
            cluster=self.broker.cluster,
            settings=self.settings.engine,
            topic_sealing=self.broker.topics.sealing,
        )
        engine.flusher.on_pressure = partial(self.server.set_pressure, "buffer")
        engine.sealer.on_pressure = partial(self.server.set_pressure, "sealing")
        engine.keeper.on_pressure = partial(self.server.set_pressure, "consolidation")
        if self._footers is not None:
            engine.footers.inherit(self._footers)
        self._footers = engine.footers
        groups = GroupCoordinator(
            engine=engine,
            cluster=self.broker.cluster,
            settings=self.settings.broker.groups,
            wall_ms=_wall_ms,
            limits=self.settings.broker.limits,
            refusals=self.broker.refusals,
        )
        self.broker.engine = self._engine = engine
        self.broker.groups = groups
        if self._stopping.is_set():
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                begun = tasks.create_task(self._when_ready(engine))
                keeping = tasks.create_task(self._keep_node_id(engine))
                watch = tasks.create_task(self.fitness.watch(engine))
                coordinating = tasks.create_task(groups.run())
                try:
                    await engine.run()
                finally:
                    begun.cancel()
                    keeping.cancel()
                    watch.cancel()
                    coordinating.cancel()
        except* WrongClusterError as group:
            raise WrongClusterError(str(first_of(group))) from group
        except* FencedError as group:
            raise FencedError(str(first_of(group))) from group
        finally:
            self._counted, self._commits = self.counted, self.commits
            self._group_loads = self.group_loads
            self.broker.engine = self._engine = self.broker.groups = None
            # Batches of it that are still rewritten have its flusher say so when they are done.
            for part in (engine.flusher, engine.sealer, engine.keeper):
                part.on_pressure = lambda _: None
            for reason in list(self.server.pressures):
                self.server.set_pressure(reason, False)

    async def _keep_node_id(self, engine: Engine) -> None:
        """Note until when the agent was there; end it when its node id may be another's by now.

        Raises:
            WrongClusterError: it may.
        """
        while True:
            if engine.session.alive:
                self._served_ms = now_ms()
            elif now_ms() - self._served_ms > _NODE_ID_KEPT_MS:
                raise WrongClusterError(
                    f"no session for {_NODE_ID_KEPT_MS / 86_400_000:.0f} days: the node id "
                    f"{self._node_id} may be another agent's by now.  Start this agent again"
                )
            await asyncio.sleep(1)

    async def _when_ready(self, engine: Engine) -> None:
        await engine.ready.wait()
        # At once: other agents name this one already.
        for at, sockets in zip(self.settings.listeners, self._listening, strict=True):
            try:
                self.server.start(at.name)
            except OSError as error:
                port = sockets[0].getsockname()[1]
                raise refused(error, at.host, port, _LISTENER) from error
        while True:
            try:
                await self.broker.topics.reconcile()
                break
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                self._log.warning("topic_files_not_checked", error=str(error), advice="tried again")
                await asyncio.sleep(1)
        self.sessions += 1
        self.ready.set()


def _counts(engine: Engine) -> Counter[str]:
    """What this session has counted."""
    pipeline, sealer = engine.flusher.pipeline, engine.sealer
    return Counter(
        {
            "driftlog_partitions_taken_over": engine.leading.taken_over,
            "driftlog_partitions_handed_over": engine.leading.handed_over,
            "driftlog_flush_puts": pipeline.puts,
            "driftlog_flush_hedges": pipeline.hedges,
            "driftlog_flushes_early": engine.flusher.early,
            "driftlog_committed_bytes": engine.flusher.committed_bytes,
            "driftlog_buffer_bytes": engine.buffer.bytes_written,
            "driftlog_buffer_syncs": engine.buffer.syncs,
            "driftlog_buffer_unreadable": engine.unreadable,
            "driftlog_buffer_damaged_files": engine.buffer_damage.files,
            "driftlog_buffer_damaged_entries": engine.buffer_damage.entries,
            "driftlog_buffer_damaged_bytes": engine.buffer_damage.size_bytes,
            "driftlog_producers_refused": engine.producers.refused,
            "driftlog_segments_sealed": sealer.segments,
            "driftlog_sealed_bytes": sealer.sealed_bytes,
            "driftlog_undecodable_batches": sealer.undecodable_batches,
        }
    )


def now_ms() -> float:
    """Milliseconds of a clock that never goes back and counts suspended time."""
    return _clock(_BOOT_TIME) * 1000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


_clock = time.clock_gettime
_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none
