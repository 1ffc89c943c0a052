"""One process of the agent: the product's own, on simulated ports."""

import asyncio
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.fetch.handler import FetchHandler
from driftlog_agents.handlers.produce.handler import ProduceHandler
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.garbage.unreferenced_objects import CollectorSettings
from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.ingest.flush_memory import MemorySettings
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.retention.policy import RetentionSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.process.composition.agent import AgentPorts, AgentProcess, AgentSettings
from driftlog_metadata.schema.codec import decode_leader
from driftlog_metadata.schema.keys import LEADERS_PREFIX
from driftlog_metadata.schema.model import Role, TopicPartition
from tests.simulation import compaction, crowded_reads, merging, slow_upkeep
from tests.simulation.aimed import is_aimed
from tests.simulation.bucket_faults import bucket_of
from tests.simulation.faults import FaultyMetadata, Network, Process, Weather
from tests.simulation.format_levels import first_cluster
from tests.simulation.groups import SETTINGS as SETTINGS_OF_GROUPS
from tests.simulation.keep_alive import SimKeepAlive
from tests.simulation.one_sided import FITNESS
from tests.simulation.restarts import settings_of
from tests.simulation.restored import has_restore
from tests.simulation.restored_groups import INTERVAL_MS
from tests.simulation.segment_requests import SimSegmentTransport
from tests.simulation.server import SimIdentity, SimServer
from tests.simulation.sim_disk import SimDisk
from tests.simulation.workers import Workers
from tests.support.agent_ports import spool

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
    prefetch_flush_bytes=1_400,
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

    process: "SimulatedAgent"
    engine: Engine
    log: PartitionLog


class Waiting(Protocol):
    """A request that has no answer yet."""

    @property
    def done(self) -> bool:
        """Whether it was answered."""
        ...


class SimulatedAgent(Process):
    """See the module."""

    def __init__(self, node: "Node", life: int) -> None:
        world = node.world
        super().__init__(f"agent-{node.number}-{life}", world.loop)
        self._world = world
        self.node = node
        self.disk = SimDisk(node.platter, self, Random(world.rng.random()))
        self.disk.sync_stalls = _STALLS if world.seed % 100 == _STALLING else 0.0
        self.disk.spares_files = is_aimed(world.seed)
        self.server = SimServer(self)
        self.stopping = False
        self.recovers = bool(node.platter.sessions)
        """Earlier sessions are on its disk."""
        self.waiting: dict[Engine, list[Waiting]] = {}
        """Requests that the sessions were asked; those that were answered go, in time."""
        self._faulty = FaultyMetadata(
            world.metadata, self._network("metadata", node.metadata_weather)
        )
        rng = Random(f"workers {self.name} {world.seed}")
        workers = Workers(rng, world.thread_share, longest_s=4.0)
        # Clients wait for these, and send the more the longer they take.
        of_requests = Workers(rng, world.thread_share, longest_s=0.1)
        self.agent = AgentProcess(
            self._settings(),
            AgentPorts(
                metadata=self._faulty,
                objects=bucket_of(
                    world,
                    self._network("objects", node.store_weather),
                    partial(world.untrue.hides, node.number),
                ),
                disk=self.disk,
                identity=SimIdentity(node.number, first_cluster(node.world.seed), world.grace),
                server=self.server,
                rng=Random(world.rng.random()),
                secrets=Random(f"secrets {self.name} {world.seed}"),
                now_ms=world.now_ms,
                wall_ms=node.wall.now_ms,
                offload_seal=world.slow_upkeep.offload(workers.offload),
                offload_read=workers.offload,
                offload_groups=workers.offload,
                offload_produce=of_requests.offload,
                offload_rewrite=of_requests.offload,
                offload_upkeep=workers.offload,
                offload_disk=workers.offload,
                spool=spool,
                keep_alive=SimKeepAlive(self._faulty, self.thread) if node.has_threads else None,
                segments=SimSegmentTransport(world, self),
            ),
        )
        self.store_watch = self.agent.store_watch

    @property
    def broker(self) -> Broker:
        """What handlers see, once it listens."""
        return self.agent.broker

    @property
    def reader(self) -> LogReader:
        """What reads the bucket, once it listens."""
        return self.agent.broker.reader

    @property
    def producing(self) -> ProduceHandler:
        """Of its dispatcher, once it listens."""
        return self.agent.dispatcher.producing

    @property
    def fetching(self) -> FetchHandler:
        """Of its dispatcher, once it listens."""
        return self.agent.dispatcher.fetching

    @property
    def engine(self) -> Engine | None:
        """The present session's; None between two."""
        return None if self.dead else self.agent.engine

    @property
    def listening(self) -> bool:
        """Whether a producer's request is read."""
        return self.server.accepts and not self.dead and not self.server.holds_producers

    @property
    def serving(self) -> bool:
        """Whether the session is ready."""
        engine = self.engine
        return self.server.accepts and engine is not None and engine.ready.is_set()

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
        if self.agent.engine is None:
            return False
        mine = self.agent.engine.agent.session_id
        leaders = self._world.metadata.snapshot(LEADERS_PREFIX)
        return any(decode_leader(kv.value).session_id == mine for kv in leaders)

    @property
    def looked_ms(self) -> float:
        """When the collector last looked at everything, by the bucket's clock; 0: never."""
        return self.agent.collector.looked_ms if self.server.accepts else 0.0

    @property
    def listed_ms(self) -> float:
        """When the last listing of sealed objects began, by the bucket's clock; 0: never."""
        return self.agent.collector.sealed.listed_ms if self.server.accepts else 0.0

    def stop(self) -> None:
        """SIGTERM."""
        self.stopping = True
        self.agent.stop()

    # ── Life ──

    async def run(self) -> None:
        """Until it is stopped or killed."""
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch())
            try:
                await self.agent.run()
            finally:
                watch.cancel()
                self._count()

    async def _watch(self) -> None:
        """What must hold of every session, looked at all the time."""
        unfit = False
        last: Engine | None = None
        while True:
            await asyncio.sleep(0.3)
            engine = self.agent.engine
            if engine is not None:
                self._nothing_offline(engine)
                self._memory_is_bounded(engine)
                self._world.seal_agents.look(self, engine)
                if last not in (None, engine):
                    self._world.last_refusals.begins_again(self.node)
                last = engine
            fitness = getattr(self.agent, "fitness", None)
            was, unfit = unfit, fitness is not None and fitness.unfit
            if unfit and not was:
                self._world.note("stepped down")
                ended = engine or last
                has_looked = ended is None or ended.session.ownership.holds()
                self._world.last_refusals.stepped_down(self.name, has_looked=has_looked)

    def _count(self) -> None:
        world, counters = self._world, self.agent.counters
        world.count_many("segments sealed", counters.segments_sealed)
        world.count_many("compactions", counters.compactions)
        world.count_many("merges", counters.merges)
        if Role.SERVE not in self.agent.settings.roles:
            world.count_many("rewrites by an agent that only seals", counters.compactions)
            world.count_many("rewrites by an agent that only seals", counters.merges)
        elif Role.SEAL not in self.agent.settings.roles:
            world.count_many("rewrites by an agent that only serves", counters.compactions)
            world.count_many("rewrites by an agent that only serves", counters.merges)
        world.count_many("records compacted", counters.compaction_removed_records)
        world.count_many("sessions", self.agent.sessions)
        if self.server.accepts:
            world.count_many("objects collected", self.agent.collector.deleted_objects)

    def _nothing_offline(self, engine: Engine) -> None:
        world = self._world
        beside = world.restored is not None and world.restored.is_over
        for log in () if world.older_metadata.going_on or beside else engine.logs():
            if log.state is State.OFFLINE and log.topic_id not in world.admin.dying:
                world.expect(False, f"{log!r}: {log.offline_reason}")
            # (A manifest that contradicts its key ends no agent: it would pass unnoticed.)
            world.expect("its partition is sealed up to" not in log.damage, log.damage)

    def _memory_is_bounded(self, engine: Engine) -> None:
        flusher, expect = engine.flusher, self._world.expect
        held = flusher.memory.held_bytes
        expect(held <= _RESIDENT_BYTES, f"{held} bytes of batches are in memory")
        waiting = self.producing.waiting.held_bytes
        expect(waiting >= 0, f"{waiting} bytes of batches wait to be admitted")
        limit = SETTINGS.memory.pending_bytes * 1.2
        expect(flusher.pending_bytes <= limit, f"{flusher.pending_bytes} bytes wait")

    def waits(self, engine: Engine, waiting: Waiting) -> None:
        """Remember a request: it must be told when the session ends."""
        followed = self.waiting.get(engine)
        if followed is None:
            followed = self.waiting[engine] = []
            self.agent.dispatcher.spawn(self._all_told(engine))
        followed.append(waiting)
        if len(followed) > 200:
            followed[:] = [one for one in followed if not one.done]

    async def _all_told(self, engine: Engine) -> None:
        await engine.over.wait()
        for _ in range(10):  # it may be frozen meanwhile
            await asyncio.sleep(_TELL_S / 10)
        forgotten = [one for one in self.waiting.pop(engine) if not one.done]
        names = [getattr(one, "name", type(one).__name__) for one in forgotten]
        self._world.expect(not forgotten, f"nobody told {names} that the session ended")

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

    # ── Ports ──

    def _settings(self) -> AgentSettings:
        world = self._world
        engine = settings_of(world.seed, SETTINGS)
        engine = slow_upkeep.engine_settings(world.seed, engine)
        engine = compaction.engine_settings(world.seed, engine)
        engine = merging.engine_settings(world.seed, engine)
        world.segment_ms = int(engine.seal.segment_ms)
        broker = BrokerSettings(groups=SETTINGS_OF_GROUPS, log_retention_ms=-1)
        if world.retention is not None:
            broker = world.retention.broker(broker)
            interval_ms = world.retention.interval_ms
            engine = replace(engine, retention=RetentionSettings(check_interval_ms=interval_ms))
        return AgentSettings(
            http_address="localhost:9644",
            roles=world.seal_agents.roles(self.node.number),
            broker=broker,
            engine=crowded_reads.engine_settings(world.seed, engine),
            reads=crowded_reads.read_settings(world.seed, READ_SETTINGS),
            collector=CollectorSettings(interval_ms=3_000, pause_ms=1),
            fitness=FITNESS,
            group_snapshot_interval_ms=INTERVAL_MS if has_restore(world.seed) else None,
        )

    def _network(self, peer: str, weather: Weather) -> Network:
        return Network(
            process=self,
            peer=peer,
            weather=weather,
            rng=Random(self._world.rng.random()),
            trace=self._world.trace,
            sent=self.node.sent,
            acted=self.node.acted,
        )
