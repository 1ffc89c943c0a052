"""One process of the agent: what `Agent` and `Dispatcher` wire, on simulated ports.

The product's own broker, topics, Produce handler, reader and engine; no sockets.
"""

import asyncio
import contextlib
import io
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from driftlog_agents.broker import Broker, BrokerSettings
from driftlog_agents.collector import Collector, CollectorSettings
from driftlog_agents.decoding import Decoding
from driftlog_agents.fitness_watch import FitnessWatch
from driftlog_agents.groups.coordinator import GroupCoordinator
from driftlog_agents.handlers.fetch import Fetching
from driftlog_agents.handlers.produce import Producing
from driftlog_agents.handlers.rewrite_lanes import RewriteLanes
from driftlog_agents.log.buffer import BufferSettings
from driftlog_agents.log.consolidation import ConsolidationSettings
from driftlog_agents.log.engine import Engine, EngineSettings, Ports
from driftlog_agents.log.flush import FlushSettings
from driftlog_agents.log.flusher import MemorySettings
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_agents.log.reader import LogReader, ReadSettings
from driftlog_agents.log.seal_policy import SealSettings
from driftlog_agents.log.session import SessionSettings
from driftlog_agents.store_watch import StoreWatch
from driftlog_agents.topics import Topics
from driftlog_metadata.codec import decode_leader
from driftlog_metadata.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.keys import LEADERS_PREFIX
from driftlog_metadata.model import Agent, Listener, TopicPartition
from tests.simulation import crowded_reads
from tests.simulation.aimed import is_aimed
from tests.simulation.bucket_faults import bucket_of
from tests.simulation.faults import FaultyMetadata, Network, Process, Weather
from tests.simulation.groups import SETTINGS as SETTINGS_OF_GROUPS
from tests.simulation.keep_alive import SimKeepAlive
from tests.simulation.loop import NOBODY
from tests.simulation.one_sided import FITNESS
from tests.simulation.peer import Peer
from tests.simulation.restarts import settings_of
from tests.simulation.sim_disk import SimDisk
from tests.simulation.store_loss import has_store_loss
from tests.simulation.workers import Workers
from tests.support.clusters import witnessed

if TYPE_CHECKING:
    from tests.simulation.node import Node

SETTINGS = EngineSettings(
    session=SessionSettings(ttl_ms=6_000),
    flush=FlushSettings(flush_bytes=1_500, max_uploads=3, upload_deadline_ms=3_000),
    memory=MemorySettings(memory_bytes=6_000, pending_bytes=40_000),
    buffer=BufferSettings(disk_bytes=24_000, cache_bytes=12_000, file_bytes=3_000),
    seal=SealSettings(
        segment_bytes=3_000,
        segment_ms=4_000,
        small_ms=4_000,
        small_bytes=500,
        unsealed_bytes=30_000,
        unsealed_bytes_per_partition=0,
        check_interval_ms=400,
    ),
    consolidation=ConsolidationSettings(
        age_ms=1_000,
        dead_age_ms=500,
        ended_ms=300,
        records=4,
        large_bytes=1_200,
        large_records=4,
        level_one_records=3,
        object_bytes=3_000,
        sparse_records=2,
        check_interval_ms=200,
        sealed_interval_ms=2_000,
    ),
    drain_ms=5_000,
    drain_failing_ms=2_000,
)
READ_SETTINGS = ReadSettings(
    requests_at_once=3,
    request_deadline_ms=3_000,
    row_group_cache_bytes=12_000,
    flush_cache_bytes=2_000,
    index_cache_bytes=6_000,
    read_ahead_bytes=700,
    hold_ms=100,
    patience_ms=300,
    batch_bytes=300,
)


_STALLING: Final = 73
"""Last digits of the seeds in which disks are busy now and then."""

_STALLS: Final = 0.1
"""Of their syncs."""

_TELL_S: Final = 0.5
"""How long who waits for a session that has ended may wait for the news."""

_RESIDENT_BYTES: Final = 2 * SETTINGS.memory.memory_bytes
"""Of batches in memory: the budget, and as much again that no file holds or that is on its way.
(200 seeds came to 1.2 of the budget.)"""


class Led(NamedTuple):
    """A partition, where it is led."""

    process: "AgentProcess"
    engine: Engine
    log: PartitionLog


class Waiting(Protocol):
    """A request that has no answer yet."""

    @property
    def done(self) -> bool:
        """Whether it was answered."""
        ...


@dataclass(slots=True)
class _Spool:
    file: io.BytesIO = field(default_factory=io.BytesIO)

    def body(self) -> list[bytes]:
        return [self.file.getvalue()]


@contextlib.contextmanager
def _spool() -> Iterator[_Spool]:
    yield _Spool()


class AgentProcess(Process):
    """See the module."""

    def __init__(self, node: "Node", life: int) -> None:
        world = node.world
        super().__init__(f"agent-{node.number}-{life}", world.loop)
        self._world = world
        self.node = node
        self.disk = SimDisk(node.platter, self, Random(world.rng.random()))
        self.disk.sync_stalls = _STALLS if world.seed % 100 == _STALLING else 0.0
        self.disk.spares_files = is_aimed(world.seed)
        self.overloaded = False
        """Connections are not read: what the flusher says."""
        self._unread: list[Callable[[], None]] = []
        self.begun = False
        """The listener is open."""
        self.stopping = False
        self._last: Engine | None = None
        self.waiting: list[tuple[Engine, Waiting]] = []
        """Requests that the sessions were asked; those that were answered go, in time."""
        self._faulty = FaultyMetadata(
            world.metadata, self._network("metadata", node.metadata_weather)
        )
        self._metadata = witnessed(self._faulty)
        self.store_watch = StoreWatch(self._metadata)
        rng = Random(f"workers {self.name} {world.seed}")
        self._workers = Workers(rng, world.thread_share, longest_s=4.0)
        # Clients wait for these, and send the more the longer they take.
        of_requests = Workers(rng, world.thread_share, longest_s=0.1)
        self._keep_alive = SimKeepAlive(self._faulty, self.thread)
        self._objects = bucket_of(
            world,
            self._network("objects", node.store_weather),
            partial(world.untrue.hides, node.number),
        )
        self.reader = LogReader(
            store=self._objects,
            offload=self._workers.offload,
            manifest=self._manifest,
            refresh=self._refresh,
            now_ms=world.now_ms,
            settings=crowded_reads.read_settings(world.seed, READ_SETTINGS),
        )
        self.broker = Broker(
            cluster_id="simulated",
            agent=self._agent(),
            settings=BrokerSettings(),
            metadata=self._metadata,
            objects=self._objects,
            reader=self.reader,
            wall_ms=lambda: int(world.now_ms() + node.wall_skew_ms),
        )
        self.broker.topics = Topics(self.broker)
        lanes = RewriteLanes(
            light=of_requests.offload,
            heavy=of_requests.offload,
            decoding=Decoding(),
            now_ms=world.now_ms,
        )
        self.producing = Producing(self.broker, lanes.run, self.spawn)
        self._collector = self._new_collector(Random(f"collector {self.name} {world.seed}"))
        self.fetching = Fetching(self.broker, self.spawn)
        self.fitness = FitnessWatch(
            node_id=node.number,
            metadata=self._metadata,
            objects=self._objects,
            disk=self.disk,
            view=self.broker.cluster.view,
            rng=Random(f"fitness {self.name} {world.seed}"),
            now_ms=world.now_ms,
            offload=self._workers.offload,
            settings=FITNESS,
        )
        self._stopping = asyncio.Event()
        self._requests: asyncio.TaskGroup | None = None

    @property
    def engine(self) -> Engine | None:
        """The present session's; None between two."""
        return None if self.dead else self.broker.engine

    @property
    def listening(self) -> bool:
        """Whether a producer's request is read."""
        return self.begun and not self.dead and not self.overloaded

    @property
    def serving(self) -> bool:
        """Whether the session is ready."""
        engine = self.engine
        return self.begun and engine is not None and engine.ready.is_set()

    def leader_of(self, topic: str, partition: int) -> int | None:
        """What Metadata says: the node id of the partition's leader, as far as is known here."""
        known = self.broker.topics.by_name.get(topic)
        if known is None:
            return None
        leader, _ = self.broker.view.leader_of(TopicPartition(known.topic_id, partition))
        return None if leader is None else leader.node_id

    @property
    def leads(self) -> bool:
        """Whether the session has claimed anything, as the store has it."""
        mine = self.broker.agent.session_id
        leaders = self._world.metadata.snapshot(LEADERS_PREFIX)
        return any(decode_leader(kv.value).session_id == mine for kv in leaders)

    @property
    def looked_ms(self) -> float:
        """When the collector last looked at everything, by the bucket's clock; 0: never."""
        return self._collector.looked_ms

    def stop(self) -> None:
        """SIGTERM."""
        self.stopping = True
        self._stopping.set()
        if self.broker.engine is not None:
            self.broker.engine.stop()

    # ── Life ──

    async def run(self) -> None:
        """Sessions, one after the other, until it is stopped or killed."""
        world = self._world
        async with asyncio.TaskGroup() as tasks:
            self._requests = tasks
            background = [
                tasks.create_task(self.reader.run()),
                tasks.create_task(self.broker.cluster.run()),
                tasks.create_task(self.broker.topics.run()),
                tasks.create_task(self._sweep()),
                tasks.create_task(self._collect()),
                tasks.create_task(self._watch_memory()),
            ]
            if has_store_loss(world.seed):
                background.append(tasks.create_task(self.store_watch.run()))
            await self._sessions()
            for task in background:
                task.cancel()

    async def _sessions(self) -> None:
        world = self._world
        while self._goes_on():
            if self.store_watch.evidence is not None:
                await self._stopping.wait()
                return
            try:
                await self._session()
                lost = False
            except FencedError as error:
                lost = True
                world.count("sessions lost")
                world.trace("session lost", str(error))
            if self._last is not None and not self.dead:
                self.spawn(self._all_told(self._last))
            if lost and not self.dead and self.store_watch.evidence is None:
                await self._become_fit()
            if self._goes_on():
                await asyncio.sleep(world.rng.uniform(0.05, 0.5))

    async def _become_fit(self) -> None:
        if self.fitness.unfit:
            self._world.note("stepped down")
            self._world.last_refusals.stepped_down(self.name)
        await self.fitness.lost()
        await self.fitness.until_fit(self._stopping)

    async def _confirm(self) -> None:
        """As `StoreWatch.confirm`, which costs a request; seeds without such losses do without."""
        if has_store_loss(self._world.seed):
            await self.store_watch.confirm()

    def _goes_on(self) -> bool:
        return not self.stopping and not self.dead  # asyncio lets an error win over a cancel

    async def _session(self) -> None:
        self.broker.agent = self._agent()
        engine = self._new_engine()
        engine.flusher.on_pressure = self._set_overloaded
        self.broker.engine = self._last = engine
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._when_ready(engine)),
                    tasks.create_task(self.fitness.watch(engine)),
                ]
                if self._world.groups is not None:
                    self.broker.groups = self._new_groups(engine)
                    beside.append(tasks.create_task(self.broker.groups.run()))
                try:
                    await engine.run()
                finally:
                    for task in beside:
                        task.cancel()
        except* FencedError as group:
            raise FencedError(str(group.exceptions[0])) from group
        finally:
            self._world.count_many("flushes consolidated", engine.keeper.rewrites)
            self.broker.engine = self.broker.groups = None
            self._set_overloaded(overloaded=False)

    async def _when_ready(self, engine: Engine) -> None:
        await engine.ready.wait()
        self._nothing_offline(engine)
        while True:
            try:
                await self.broker.topics.reconcile()
                break
            except (UnavailableError, OutcomeUnknownError, TimeoutError):
                await asyncio.sleep(1)
        self.begun = True

    def _nothing_offline(self, engine: Engine) -> None:
        world = self._world
        for log in () if world.older_metadata.going_on else engine.logs():
            if log.state is State.OFFLINE and log.topic_id not in world.admin.dying:
                world.expect(False, f"{log!r}: {log.offline_reason}")
            # (A manifest that contradicts its key ends no agent: it would pass unnoticed.)
            world.expect("its partition is sealed up to" not in log.damage, log.damage)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.producing.sweep(self._world.now_ms())

    def waits(self, engine: Engine, waiting: Waiting) -> None:
        """Remember a request: it must be told when the session ends."""
        self.waiting.append((engine, waiting))
        if len(self.waiting) > 200:
            self.waiting = [entry for entry in self.waiting if not entry[1].done]

    async def _all_told(self, engine: Engine) -> None:
        for _ in range(10):  # it may be frozen meanwhile
            await asyncio.sleep(_TELL_S / 10)
        forgotten = [one for asked, one in self.waiting if asked is engine and not one.done]
        names = [getattr(one, "name", type(one).__name__) for one in forgotten]
        self._world.expect(not forgotten, f"nobody told {names} that the session ended")

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            engine = self.broker.engine
            if engine is None:
                continue
            self._nothing_offline(engine)
            flusher, expect = engine.flusher, self._world.expect
            # What it counts for itself is private; who else knows what it holds?
            held = flusher._resident_bytes() + flusher._cached_bytes + flusher.held_bytes
            expect(held <= _RESIDENT_BYTES, f"{held} bytes of batches are in memory")
            limit = SETTINGS.memory.pending_bytes * 1.2
            expect(flusher.pending_bytes <= limit, f"{flusher.pending_bytes} bytes wait")

    async def _collect(self) -> None:
        try:
            await self._collector.run()
        finally:
            self._world.count_many("objects collected", self._collector.deleted_objects)

    def admitted(self, tp: TopicPartition) -> None:
        """A batch was appended just now: what it relies on must hold by the lease's own time."""
        engine = self.engine
        assert engine is not None
        self._world.ledger.admitted(engine.session.session_id, tp)
        until_ms = self.lease_until_ms(engine)
        now_ms = self._world.now_ms()
        self._world.expect(now_ms < until_ms, f"appended {now_ms - until_ms} ms after the lease")

    def lease_until_ms(self, engine: Engine) -> float:
        """Until when the session's lease holds at least, by when its last renewal was sent; 0: it
        has none yet."""
        return self._faulty.leases.get(engine.session.lease_id, 0.0)

    # ── Wiring ──

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what a request asks for."""
        assert self._requests is not None
        self._requests.create_task(work)

    def read(self, request: Callable[[], None]) -> None:
        """Of a producer: it waits in its socket while nothing more is read from producers."""
        if self.overloaded:
            self._unread.append(request)
        else:
            request()

    def _set_overloaded(self, overloaded: bool) -> None:
        self.overloaded = overloaded
        if overloaded:
            return
        unread, self._unread = self._unread, []
        for request in unread:
            self.loop.call_soon(self.receive, partial(self.read, request), context=NOBODY)

    def _agent(self) -> Agent:
        return Agent(
            node_id=self.node.number,
            session_id=f"{self._world.rng.getrandbits(128):032x}",
            listeners=(Listener("PLAINTEXT", "localhost", 9092),),
            http_address="localhost:9644",
            rack=None,
            started_at_ms=int(self._world.now_ms()),
        )

    def _new_engine(self) -> Engine:
        world = self._world
        return Engine(
            ports=Ports(
                metadata=self._metadata,
                objects=self._objects,
                disk=self.disk,
                rng=Random(world.rng.random()),
                now_ms=world.now_ms,
                wall_ms=self.node.wall.now_ms,
                offload=self._workers.offload,
                spool=_spool,
                keep_alive=self._keep_alive if self.node.has_threads else None,
                connect=self._connect,
            ),
            agent=self.broker.agent,
            cluster=self.broker.cluster,
            settings=self._settings(),
            topic_sealing=self.broker.topics.sealing,
        )

    def _new_groups(self, engine: Engine) -> GroupCoordinator:
        return GroupCoordinator(
            engine=engine,
            cluster=self.broker.cluster,
            settings=SETTINGS_OF_GROUPS,
            wall_ms=self.broker.wall_ms,
        )

    def _connect(self, agent: Agent) -> Peer:
        nodes = self._world.nodes
        node = next(node for node in nodes if node.number == agent.node_id)
        return Peer(self, node, Random(self._world.rng.random()))

    async def _manifest(self, log: PartitionLog) -> Any:
        if self.broker.engine is None:
            raise UnavailableError("between two sessions")
        return await self.broker.engine.manifests.get(log)

    async def _refresh(self, log: PartitionLog) -> None:
        if self.broker.engine is not None:
            await self.broker.engine.refresh(log)

    def _new_collector(self, rng: Random) -> Collector:
        """With a randomness of its own: how much it asks changes nobody else's schedule."""
        world, node = self._world, self.node
        to_metadata = self._network("metadata", node.metadata_weather, rng)
        to_objects = self._network("objects", node.store_weather, rng)
        return Collector(
            metadata=FaultyMetadata(world.metadata, to_metadata),
            objects=bucket_of(world, to_objects),
            disk=self.disk,
            offload=Workers(rng, world.thread_share, longest_s=4.0).offload,
            settings=world.long_outage.collector(CollectorSettings(interval_ms=3_000, pause_ms=1)),
            confirm=self._confirm,
        )

    def _settings(self) -> EngineSettings:
        world = self._world
        settings = settings_of(world.seed, world.long_outage.engine(SETTINGS))
        return crowded_reads.engine_settings(world.seed, settings)

    def _network(self, peer: str, weather: Weather, rng: Random | None = None) -> Network:
        return Network(
            process=self,
            peer=peer,
            weather=weather,
            rng=rng or Random(self._world.rng.random()),
            trace=self._world.trace,
            sent=self.node.sent,
            acted=self.node.acted,
        )
