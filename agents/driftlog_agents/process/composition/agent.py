"""The agent process: identity, listeners, and one session of the log after the other.

    start ──▶ join cluster ──▶ bind ──▶ ┌─ session ──▶ ready: listen ──▶ … ─┐
                                        └──────── lost: back off ◀──────────┘
    stop ──▶ refuse new work, flush, release, answer, close

Only this module builds the parts of an agent.  It builds them from `AgentPorts` alone: `main`
passes sockets, disks and stores; the simulation and the tests pass their own.

When the metadata store is not the one that the process has seen (`health/metadata_store_monitor`),
the session ends and no other one begins: an operator accepts the store by a restart.

Shell.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from random import Random
from typing import Final, Protocol

import structlog

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.cluster.node_ids import NodeIds
from driftlog_agents.cluster.roles import collectors, upkeep_agents
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import SEGMENT_WRITES, Limits, Refusals
from driftlog_agents.foundation.histogram import Histogram
from driftlog_agents.foundation.offload import WatchedOffload, inline
from driftlog_agents.foundation.retry import Retry
from driftlog_agents.foundation.tasks import first_of
from driftlog_agents.groups.coordinator.budget import GroupBudget
from driftlog_agents.groups.coordinator.coordinator import GroupCoordinator
from driftlog_agents.groups.group_snapshots import GROUP_SNAPSHOT_INTERVAL_MS, GroupSnapshots
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.live_configs import LiveConfigs
from driftlog_agents.handlers.common.producer_ids import ProducerIds
from driftlog_agents.handlers.dispatcher import Dispatcher
from driftlog_agents.handlers.produce.conversion_lanes import ConversionLanes
from driftlog_agents.handlers.produce.traces import ProduceTraces
from driftlog_agents.health.etcd_quota_monitor import Ask, EtcdQuotaMonitor
from driftlog_agents.health.metadata_store_monitor import MetadataStoreMonitor
from driftlog_agents.health.write_health import WriteHealthSettings
from driftlog_agents.health.write_health_monitor import WriteHealthMonitor, set_within
from driftlog_agents.health.write_probe import WriteProbe
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.garbage.collector import Collector
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_agents.log.garbage.unreferenced_objects import CollectorSettings
from driftlog_agents.log.local.cached_objects import CachedObjects
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.range_cache import RangeCache
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.objects.footer_cache import FooterCache
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.segments.remote_segments import SealAgents, SegmentTransport
from driftlog_agents.log.segments.write_turns import WriteTurns
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.keep_alive import KeepAlive
from driftlog_agents.log.session.session_health import SessionHealth
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.log.session_ports import Ports
from driftlog_agents.network.server import Dispatch
from driftlog_agents.process.composition.allocator import give_back
from driftlog_agents.process.composition.cluster_identity import (
    Identity,
    WrongClusterError,
    check_level,
    check_roles_known,
)
from driftlog_agents.topics.service import Topics
from driftlog_metadata.schema.codec import decode_cluster, encode_cluster
from driftlog_metadata.schema.model import (
    ALL_ROLES,
    FOOTER_FACTS_LEVEL,
    Agent,
    Listener,
    Role,
    TopicPartition,
)
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.stores.quota import Quota
from driftlog_metadata.stores.store import MetadataStore
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import ObjectStore

_BACKOFF_S: Final = (0.1, 5.0)
"""First and longest wait before a new session after a lost one; with jitter."""

_CHECK_TOPICS: Final = Retry(wait_s=1.0, longest_wait_s=1.0)

_NODE_ID_KEPT_MS: Final = 6 * 86_400_000.0
"""Shorter than the time for which a node id without an agent is kept (`node_ids`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings that `driftlog dev` and `driftlog agent run` change."""

    rack: str | None = None
    roles: frozenset[Role] = ALL_ROLES
    http_address: str = ""
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    reads: ReadSettings = field(default_factory=ReadSettings)
    collector: CollectorSettings = field(default_factory=CollectorSettings)
    fitness: WriteHealthSettings = field(default_factory=WriteHealthSettings)
    connections_possible: int = 2**31 - 1
    """A larger ``max.connections`` is lowered to this: files that the process may open."""
    group_snapshot_interval_ms: float | None = GROUP_SNAPSHOT_INTERVAL_MS
    """At which the controller puts snapshots of groups, for a restore; None: it puts none."""


class RequestServer(Protocol):
    """The server that receives the requests of clients."""

    async def bind(self) -> tuple[Listener, ...]:
        """Bind the addresses, and accept no connection yet; returns what clients receive.

        Raises:
            ListenError: an address cannot be used.
        """
        ...

    def start(self, dispatch: Dispatch) -> None:
        """Accept connections, and give each request to *dispatch*; harmless when repeated.

        Raises:
            ListenError: another process, bound to the same address, listens there.
        """
        ...

    def limit_connections(self, most: int, limits: Limits) -> None:
        """Take other limits of connections: *most* in all."""
        ...

    def hold_producers(self, held: bool) -> None:
        """Stop reading from producers while *held*; consumers are served."""
        ...

    async def run(self) -> None:
        """Close idle connections until cancelled."""
        ...

    async def stop(self) -> None:
        """Accept no more, send the answers that are ready, and close every connection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPorts:
    """Everything outside the agent that it uses."""

    metadata: MetadataStore
    objects: ObjectStore
    disk: AgentDisk
    identity: Identity
    server: RequestServer
    rng: Random
    secrets: Random
    """Of what nobody may guess."""
    now_ms: Callable[[], float]
    """A clock that never goes back and counts the time that the machine was suspended."""
    wall_ms: Callable[[], int]
    """Milliseconds since 1970, by a clock that may jump or stand still."""
    offload_seal: Offload
    offload_read: Offload
    offload_groups: Offload
    """For long decisions of groups and the matching of their patterns, one of each at a time."""
    offload_produce: Offload
    offload_rewrite: Offload
    """For the slow work of Produce."""
    offload_upkeep: Offload
    """For compaction, merging, collecting and verification: requests and sealing do not wait for
    them."""
    offload_disk: Offload
    """For calls that a broken disk may never finish."""
    offload_large: Offload = inline
    """For what reads do with large batches, and for returning memory after any of them: others wait
    for both, so they wait for no other work, as they would in one of these."""
    spool: Callable[[], AbstractContextManager[Spool]]
    read_cache: RangeCache | None = None
    """Holds what cold reads fetched from the objects; None: they are as near."""
    keep_alive: KeepAlive | None = None
    """None: keep-alives are sent from the event loop."""
    usage: Ask | None = None
    """Asks how full the metadata store is; None: it has no quota."""
    traces: ProduceTraces | None = None
    """Takes the way of some Produce requests; None: none is traced."""
    segments: SegmentTransport | None = None
    """Reaches agents that write segments for this one; None: it writes them itself."""
    refusals: Refusals = field(default_factory=Refusals)
    """The server counts its refusals here, too."""


class AgentProcess:
    """See the module."""

    def __init__(self, settings: AgentSettings, ports: AgentPorts) -> None:
        self.settings = settings
        self._ports = ports
        self._metadata = WitnessedStore(ports.metadata, StoreWitness(ports.now_ms))
        self.store_watch = MetadataStoreMonitor(self._metadata)
        self._log = structlog.get_logger()
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        self.listeners: tuple[Listener, ...] = ()
        """The addresses that clients receive; the first is the bootstrap address that the agent
        prints, and the one by which agents reach each other."""
        self.broker: Broker
        self.dispatcher: Dispatcher
        self.collector: Collector
        self.group_snapshots: GroupSnapshots
        self.fitness: WriteHealthMonitor
        self.quota = Quota()
        self.refusals = ports.refusals
        self.read_cache = ports.read_cache
        self.decoding = BatchDecoder(
            settings.broker.limits.batches,
            self.refusals.count,
            settle=partial(ports.offload_large, give_back),
            offload=ports.offload_large,
        )
        self.sealing = WatchedOffload(
            ports.offload_seal, ports.now_ms, settings.engine.seal.hung_ms
        )
        """The threads that write segments; one that hangs does so in every session."""
        self._write_turns = WriteTurns(
            settings.broker.limits.driftlog_max_segment_writes,
            partial(self.refusals.count, SEGMENT_WRITES),
        )
        self._unknown_keys = UnknownKeys()
        self.sessions = 0
        self.counters = LogCounters()
        """Counters of the log, over all sessions."""
        self.group_counters: Counter[str] = Counter()
        """Counters of groups, over all sessions, by the name of their metric."""
        self.group_loads = Histogram()
        """How long it took to claim and read each group."""
        self.engine: Engine | None = None
        """The log of the present session; None: between two sessions."""
        self._footers: FooterCache | None = None
        """The cache of the last session: the next one takes over what that session wrote."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Drain and leave (SIGTERM)."""
        self._stopping.set()
        if self.engine is not None:
            self.engine.stop()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            WrongClusterError: the stores are of different clusters.
            ListenError: the listener's address cannot be used.
        """
        if not await self._prepared():
            return
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self.dispatcher.run()),
                tasks.create_task(self._ports.server.run()),
                tasks.create_task(self.broker.reader.run()),
                tasks.create_task(self.broker.cluster.run()),
                tasks.create_task(self.broker.topics.run()),
                tasks.create_task(self.collector.run()),
                tasks.create_task(self.store_watch.run()),
            ]
            interval_ms = self.settings.group_snapshot_interval_ms
            if interval_ms is not None:
                snapshots = self.group_snapshots.run(self._puts_group_snapshots, interval_ms)
                background.append(tasks.create_task(snapshots))
            if self._ports.usage is not None:
                watch = EtcdQuotaMonitor(self.quota, self._ports.usage)
                background.append(tasks.create_task(watch.run()))
            await self._sessions()
            await self._ports.server.stop()
            for task in background:
                task.cancel()

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the first listener."""
        return f"{self.listeners[0].host}:{self.listeners[0].port}"

    # ── Start ──

    async def _prepared(self) -> bool:
        """Prepare; False: `stop` came first.  So a slow store cannot delay the end of the agent."""
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
        await prepare  # raises its error
        return True

    async def _prepare(self) -> None:
        settings, ports, cache = self.settings, self._ports, self.read_cache
        cluster, number, grace = await ports.identity.join(self._metadata, self._unknown_keys)
        check_roles_known(cluster, settings.roles)
        self._metadata.witness.cluster = encode_cluster(cluster)
        self._node_id = number
        self._engine_settings = settings.engine.within(grace)
        self.listeners = await ports.server.bind()
        self._started_at_ms = max(0, ports.wall_ms())
        self.broker = broker = Broker(
            agent=self._agent(),
            settings=settings.broker,
            cluster=ClusterWatch(self._metadata),
            metadata=self._metadata,
            objects=ports.objects,
            reader=LogReader(
                store=ports.objects if cache is None else CachedObjects(ports.objects, cache),
                offload=ports.offload_read,
                manifests=self,
                now_ms=ports.now_ms,
                settings=settings.reads,
                decoding=self.decoding,
            ),
            wall_ms=ports.wall_ms,
            refusals=self.refusals,
        )
        broker.topics, broker.producer_ids = Topics(broker), ProducerIds(broker)
        self._cluster_file = ClusterFile(ports.objects, cluster.cluster_id, grace, ports.now_ms)
        stores = ConfirmedStores(self._metadata, ports.objects, self._confirm)
        self.collector = Collector(
            stores=stores,
            disk=ports.disk,
            offload=ports.offload_upkeep,
            settings=replace(settings.collector, grace=grace),
            duties=self,
            node_ids=NodeIds(self._metadata, confirm=self.store_watch.confirm),
            unknown_keys=self._unknown_keys,
        )
        self.group_snapshots = GroupSnapshots(
            stores=stores,
            cluster_id=cluster.cluster_id,
            offload=ports.offload_upkeep,
            deleter=self.collector.deletions,
        )
        self.fitness = WriteHealthMonitor(
            node_id=number,
            metadata=self._metadata,
            probe=WriteProbe(
                node_id=number,
                objects=ports.objects,
                disk=ports.disk,
                rng=ports.rng,
                offload=ports.offload_disk,
            ),
            view=broker.view,
            rng=ports.rng,
            now_ms=ports.now_ms,
            settings=settings.fitness,
        )
        lanes = ConversionLanes(
            light=ports.offload_produce,
            heavy=ports.offload_rewrite,
            decoding=self.decoding,
            now_ms=ports.now_ms,
        )
        live = LiveConfigs(broker, self._engine_settings, self._limit_connections)
        broker.cluster.watch_configs(live.changed)
        self.dispatcher = Dispatcher(broker, lanes, ports.now_ms, ports.rng, ports.traces)

    def _limit_connections(self, settings: BrokerSettings) -> None:
        most = min(settings.max_connections, self.settings.connections_possible)
        self._ports.server.limit_connections(most, settings.limits)

    def _agent(self) -> Agent:
        return Agent(
            node_id=self._node_id,
            session_id=f"{self._ports.rng.getrandbits(128):032x}",
            listeners=self.listeners,
            http_address=self.settings.http_address,
            rack=self.settings.rack,
            started_at_ms=self._started_at_ms,
            roles=self.settings.roles,
        )

    async def read_manifest(self, log: PartitionLog) -> Manifest:
        """See `LedManifests`."""
        engine = self.broker.engine
        if engine is None:
            raise UnavailableError("between two sessions")
        return await engine.read_manifest(log)

    async def refresh(self, log: PartitionLog) -> None:
        """See `LedManifests`."""
        engine = self.broker.engine
        if engine is not None:
            await engine.refresh(log)

    # ── The collector's duties ──

    def collects_flush_objects(self) -> bool:
        """See `Duties`: one agent of the cluster."""
        return collectors(self.broker.view)[:1] == [self._node_id]

    def _puts_group_snapshots(self) -> bool:
        """Older releases do not know the keys: the format level says when all agents do.

        The controller does it: the snapshots are of what coordinators store, they are small, and a
        cluster without an agent that serves has no new ones.
        """
        assert self._metadata.witness.cluster is not None
        level = decode_cluster(self._metadata.witness.cluster).format_version
        is_controller = self.broker.view.controller_id == self._node_id
        return level >= FOOTER_FACTS_LEVEL and is_controller

    def listing_share(self) -> tuple[int, int] | None:
        """See `Duties`: by the order of node ids."""
        nodes = collectors(self.broker.view)
        return (nodes.index(self._node_id), len(nodes)) if self._node_id in nodes else None

    def edited(self) -> Iterable[NamedPartition]:
        """See `Duties`."""
        engine = self.engine
        edited = () if engine is None else engine.take_edited()
        return [NamedPartition(topic, tp) for topic, tp in edited]

    async def _confirm(self) -> None:
        """Check that both stores are the cluster's.

        Raises:
            FencedError: one is not.
            CorruptError, StoreError, TimeoutError: that is not known.
        """
        await self.store_watch.confirm()
        await self._cluster_file.confirm()

    # ── Sessions ──

    async def _sessions(self) -> None:
        first, longest = _BACKOFF_S
        backoff = first
        self._served_ms = self._ports.now_ms()
        while not self._stopping.is_set():
            if self.store_watch.evidence is not None:
                await self._stopping.wait()
                return
            self._check_level()
            began = self._ports.now_ms()
            try:
                await self._session()
            except WrongClusterError:
                raise
            except FencedError as error:
                if self.store_watch.evidence is not None:
                    continue  # `health/metadata_store_monitor` logs that
                self._log.warning(
                    "session_lost",
                    reason=str(error),
                    advice="uncommitted requests failed; a new session begins when the metadata "
                    "store answers",
                )
                await self.fitness.lost()
                await self.fitness.until_fit(self._stopping)
            if self._stopping.is_set():
                return
            if self._ports.now_ms() - began > 60_000:
                backoff = first
            if await set_within(self._stopping, backoff * self._ports.rng.uniform(0.5, 1.0)):
                return
            backoff = min(longest, backoff * 2)

    def _check_level(self) -> None:
        """Raises WrongClusterError: the cluster's level was raised above what this release knows,
        between two sessions of this agent."""
        assert self._metadata.witness.cluster is not None
        check_level(decode_cluster(self._metadata.witness.cluster))

    async def _session(self) -> None:
        ports = self._ports
        self.broker.agent = self._agent()
        backpressure = Backpressure(ports.server.hold_producers)
        engine = Engine(
            ports=Ports(
                metadata=self._metadata,
                objects=ports.objects,
                disk=ports.disk,
                rng=ports.rng,
                now_ms=ports.now_ms,
                wall_ms=ports.wall_ms,
                offload=self.sealing,
                offload_read=ports.offload_read,
                offload_groups=ports.offload_groups,
                offload_upkeep=ports.offload_upkeep,
                spool=ports.spool,
                decoding=self.decoding,
                keep_alive=ports.keep_alive,
                ownership=self._cluster_file,
                quota=self.quota,
                unknown_keys=self._unknown_keys,
                secret=f"{ports.secrets.getrandbits(128):032x}",
                seal_agents=self._seal_agents(),
                write_turns=self._write_turns,
                backpressure=backpressure,
                health=SessionHealth(),
                counters=self.counters,
            ),
            agent=self.broker.agent,
            cluster=self.broker.cluster,
            settings=self._engine_settings,
            topic_sealing=self.broker.topics.sealing,
            topic_compaction=self.broker.topics.compaction,
            topic_retention=self.broker.topics.retention,
        )
        if self._footers is not None:
            engine.footers.inherit(self._footers)
        self._footers = engine.footers
        groups = GroupCoordinator(
            engine=engine,
            cluster=self.broker.cluster,
            coordinators=self.broker.coordinators,
            settings=self.settings.broker.groups,
            budget=GroupBudget(self.settings.broker.limits, self.refusals, engine.ports.quota),
            counters=self.group_counters,
            loads=self.group_loads,
        )
        self.engine = engine
        self.broker.begin(engine, groups)
        if self._stopping.is_set():
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._when_ready(engine)),
                    tasks.create_task(self._keep_node_id(engine)),
                    tasks.create_task(self._cluster_file.until_lost()),
                    tasks.create_task(self.fitness.watch(engine)),
                    tasks.create_task(groups.run()),
                ]
                try:
                    await engine.run()
                finally:
                    for task in beside:
                        task.cancel()
        except* FencedError as group:
            wrong = group.subgroup((WrongClusterError, OtherClusterError))
            if wrong is not None:
                raise WrongClusterError(str(first_of(wrong))) from group
            raise FencedError(str(first_of(group))) from group
        finally:
            self.engine = None
            self.broker.end()
            backpressure.close()

    def _seal_agents(self) -> SealAgents | None:
        if self._ports.segments is None:
            return None

        def of(tp: TopicPartition) -> list[Agent]:
            view = self.broker.view
            nodes = takewhile(lambda node: node != self._node_id, upkeep_agents(view, tp))
            return [view.agents[node] for node in nodes]

        return SealAgents(self._ports.segments, of)

    async def _keep_node_id(self, engine: Engine) -> None:
        """Note when the agent last had a session; raise when its node id may be another agent's.

        Raises:
            WrongClusterError: the node id may be another agent's.
        """
        while True:
            if engine.session.alive:
                self._served_ms = self._ports.now_ms()
            elif self._ports.now_ms() - self._served_ms > _NODE_ID_KEPT_MS:
                raise WrongClusterError(
                    f"no session for {_NODE_ID_KEPT_MS / 86_400_000:.0f} days: the node id "
                    f"{self._node_id} may be another agent's by now.  Start this agent again"
                )
            await asyncio.sleep(1)

    async def _when_ready(self, engine: Engine) -> None:
        await engine.ready.wait()
        self._ports.server.start(self.dispatcher.dispatch)  # other agents list this one already
        await _CHECK_TOPICS.run(self.broker.topics.reconcile, self._say_not_checked)
        self.sessions += 1
        self.ready.set()

    async def _say_not_checked(self, error: Exception) -> None:
        self._log.warning("topic_files_not_checked", error=str(error), advice="tried again")


def now_ms() -> float:
    """Milliseconds of a clock that never goes back and counts suspended time."""
    return _clock(_BOOT_TIME) * 1000


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_clock = time.clock_gettime
_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none
