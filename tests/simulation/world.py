"""One agent, its stores, its disk and its clients, in one process, on virtual time, from one seed.

    producers ──▶ Engine ──▶ FaultyMetadata ──▶ MemoryMetadataStore
                    │   └──▶ FaultyObjects  ──▶ MemoryObjectStore
    consumers ◀── LogReader ────┘
                    └──────▶ SimDisk        ──▶ Platter

What is checked, all the time or when the faults are over:

1. What was acknowledged (acks=all, and acks=1) is in the log at the offset that was told.
2. What a consumer was shown stays what it was; high watermarks never go back.  Every fetch has
   whole batches from the offset it asked for, without a gap and not above the high watermark;
   who reads on gets to it.  Lookups by time are those of the log that is there at the end.
3. Offsets are dense, leader epochs do not go back, in what is sealed neither.
4. An idempotent producer's records are there once each, in order.
5. Every object that a flush record or a manifest names is there.
6. When faults end, everything is answered in bounded time.
"""

import asyncio
import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from driftlog_agents.log.buffer import BufferSettings
from driftlog_agents.log.engine import Engine, EngineSettings, Ports
from driftlog_agents.log.flush import FlushSettings
from driftlog_agents.log.flusher import MemorySettings
from driftlog_agents.log.partition import PartitionLog
from driftlog_agents.log.reader import LogReader, ReadSettings
from driftlog_agents.log.seal_policy import SealSettings
from driftlog_agents.log.session import SessionSettings
from driftlog_metadata.codec import encode_topic
from driftlog_metadata.errors import FencedError, UnavailableError
from driftlog_metadata.keys import topic_key
from driftlog_metadata.memory_store import MemoryMetadataStore
from driftlog_metadata.model import Agent, Listener, Topic, TopicPartition
from driftlog_metadata.store import Put
from driftlog_metadata.transactions import lease_id_of
from driftlog_tiering.memory_object_store import MemoryObjectStore
from tests.simulation.batches import Row
from tests.simulation.clients import Producer
from tests.simulation.consumers import Consumer
from tests.simulation.faults import FaultyMetadata, FaultyObjects, Network, Process, Weather
from tests.simulation.final_log import read_final_log
from tests.simulation.loop import VirtualLoop
from tests.simulation.oracle import Oracle
from tests.simulation.sim_disk import Platter, SimDisk

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
    drain_ms=5_000,
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


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class _Spool:
    file: io.BytesIO = field(default_factory=io.BytesIO)

    def body(self) -> bytes:
        return self.file.getvalue()


@contextlib.contextmanager
def _spool() -> Iterator[_Spool]:
    yield _Spool()


async def _offload(fn: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0.002)
    return fn(*args)


class World:
    """See the module."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.faults = faults
        self.loop = VirtualLoop()
        self._trace = hashlib.sha256()
        self.events = 0
        self.metadata = MemoryMetadataStore(lambda: int(self.loop.now_s * 1000))
        self.bucket = MemoryObjectStore(lambda: int(self.loop.now_s * 1000))
        self.platter = Platter()
        self.metadata_weather = Weather()
        self.store_weather = Weather(latency_ms=(5.0, 80.0))
        self.process = Process("agent-0")
        self.engine: Engine | None = None
        self.disk: SimDisk | None = None
        self.lives = 0
        self.oracle = Oracle(self.expect)
        self.counts: dict[str, int] = {}
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.topics = [
            Topic(name=name, topic_id=UUID(int=self.rng.getrandbits(128)), partitions=2)
            for name in ("a", "b")
        ]
        self.producers: list[Producer] = []
        self._agent_task: asyncio.Task[None] | None = None
        self._kill_mode = ""
        self._stopping = False

    # ── What it sees ──

    def now_ms(self) -> float:
        """Virtual time."""
        return self.loop.now_s * 1000

    def trace(self, *what: object) -> None:
        """Everything that happens, for the comparison of two runs."""
        self.events += 1
        self._trace.update(repr((round(self.loop.now_s, 6), *what)).encode())

    @property
    def trace_hash(self) -> str:
        """One number for all that happened."""
        return self._trace.hexdigest()

    def expect(self, holds: bool, message: str) -> None:
        """A promise."""
        if not holds:
            raise Violation(f"seed {self.seed}, at {self.loop.now_s:.3f} s: {message}")

    def acknowledge(self, tp: TopicPartition, offset: int, value: bytes, garbage: bool) -> None:
        """A producer was told that *value* is at *offset*."""
        self.trace("ack", tp.partition, offset, value)
        self.oracle.acknowledge(tp, offset, value, garbage)

    def show(self, tp: TopicPartition, offset: int, row: Row) -> None:
        """A consumer was given *row* at *offset*."""
        self.trace("shown", tp.partition, offset, row)
        self.oracle.show(tp, offset, row)

    def saw_high_watermark(self, tp: TopicPartition, high_watermark: int) -> None:
        """A consumer was told a high watermark."""
        self.trace("high watermark", tp.partition, high_watermark)
        self.oracle.saw_high_watermark(tp, high_watermark)

    def count(self, what: str) -> None:
        """For the summary."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # ── Running ──

    def run(self) -> "World":
        """Live through the seed's schedule, then check what is left.

        Raises:
            Violation: a promise was broken.
        """
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            self.loop.close()
        return self

    async def _main(self) -> None:
        await self.metadata.txn((), [Put(topic_key(t.name), encode_topic(t)) for t in self.topics])
        self._make_producers()
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(p.run()) for p in self.producers]
            consumers = [
                tasks.create_task(Consumer(self, Random(self.rng.random())).run()) for _ in range(2)
            ]
            agent = tasks.create_task(self._agent())
            if self.faults:
                await self._chaos()
            self._calm()
            try:
                async with asyncio.timeout(120):
                    await asyncio.gather(*clients)
            except TimeoutError:
                late = [p.name for p in self.producers if not p.finished]
                raise Violation(f"seed {self.seed}: never answered: {late}") from None
            for consumer in consumers:
                consumer.cancel()
            await self._finish(agent)
        await self._check()

    async def _finish(self, agent: asyncio.Task[None]) -> None:
        """Leave as SIGTERM does, or be killed and come back once more: nothing may differ."""
        if self.rng.random() < 0.5:
            self._kill("kill")
            await asyncio.sleep(3)
        await asyncio.sleep(self.rng.uniform(0, 8))
        while self._stopping:  # noqa: ASYNC110  # it leaves, and will be started again
            await asyncio.sleep(0.1)
        self._kill_mode = "finish"
        for _ in range(600):
            if self.engine is not None and self.engine.ready.is_set():
                break
            await asyncio.sleep(0.1)
        self.expect(self.engine is not None, "the agent did not come back")
        for producer in self.producers:
            await producer.send_again()
        assert self.engine is not None
        await self._read_everything(self.engine)
        self._stopping = True
        self.engine.stop()
        async with asyncio.timeout(60):
            await agent

    async def _read_everything(self, engine: Engine) -> None:
        last = Consumer(self, Random(self.rng.random()))
        for log in engine.logs():
            try:
                async with asyncio.timeout(60):
                    await self.process.do(last.read_all(engine, log))
            except TimeoutError:
                raise Violation(f"seed {self.seed}: {log!r} could not be read") from None

    def _make_producers(self) -> None:
        names = iter(range(100))
        for topic in self.topics:
            for partition in range(topic.partitions):
                for _ in range(self.rng.randint(1, 2)):
                    idempotent = self.rng.random() < 0.6
                    number = next(names)
                    self.producers.append(
                        Producer(
                            world=self,
                            name=f"p{number}",
                            tp=TopicPartition(topic.topic_id, partition),
                            topic=topic.name,
                            acks=self.rng.choice((-1, -1, 1)),
                            producer_id=number if idempotent else -1,
                            window=self.rng.choice((1, 1, 5, 20)),
                            total=self.rng.randint(20, 80),
                            rng=Random(self.rng.random()),
                        )
                    )

    # ── The agent's lives ──

    async def _agent(self) -> None:
        while True:
            self.lives += 1
            self._stopping = False
            self.process = Process(f"agent-{self.lives}")
            self.disk = SimDisk(self.platter, self.process, Random(self.rng.random()))
            self._agent_task = asyncio.get_running_loop().create_task(self._process())
            try:
                await self._agent_task
            except asyncio.CancelledError:
                if not self.process.dead:
                    raise  # not killed: the simulation itself is over
            self.engine = None
            if self._kill_mode == "finish":
                return
            await asyncio.sleep(self.rng.choice((0.01, 0.5, 3.0, 9.0)))

    async def _process(self) -> None:
        """One process: sessions, one after the other, until it is stopped or killed."""
        process = self.process
        objects = self._objects(process)
        process.reader = LogReader(
            store=objects,
            offload=_offload,
            manifest=self._manifest,
            refresh=self._refresh,
            now_ms=self.now_ms,
            settings=READ_SETTINGS,
        )
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(process.reader.run())
            await self._sessions(process)
            reader.cancel()

    async def _manifest(self, log: PartitionLog) -> Any:
        if self.engine is None:
            raise UnavailableError("between two sessions")
        return await self.engine.manifests.get(log)

    async def _refresh(self, log: PartitionLog) -> None:
        if self.engine is not None:
            self.engine.manifests.drop(log)

    async def _sessions(self, process: Process) -> None:
        while not process.dead and not self._stopping:
            engine = self._new_engine(process)
            self.engine = engine
            try:
                async with asyncio.TaskGroup() as tasks:
                    epochs = tasks.create_task(self._watch_epochs(engine))
                    try:
                        await engine.run()
                    finally:
                        epochs.cancel()
            except* FencedError as error:
                self.count("sessions lost")
                self.trace("session lost", str(error.exceptions[0]))
            else:
                return
            if self._stopping:
                return  # a session that was lost while it was leaving is not begun again
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))

    def _new_engine(self, process: Process) -> Engine:
        rng = Random(self.rng.random())
        session_id = f"{rng.getrandbits(128):032x}"
        assert self.disk is not None
        return Engine(
            ports=Ports(
                metadata=FaultyMetadata(
                    self.metadata, self._network(process, "metadata", self.metadata_weather)
                ),
                objects=self._objects(process),
                disk=self.disk,
                rng=rng,
                now_ms=self.now_ms,
                offload=_offload,
                spool=_spool,
            ),
            agent=Agent(
                node_id=1,
                session_id=session_id,
                listeners=(Listener("PLAINTEXT", "localhost", 9092),),
                http_address="localhost:9644",
                rack=None,
                started_at_ms=int(self.now_ms()),
            ),
            settings=SETTINGS,
        )

    def _objects(self, process: Process) -> FaultyObjects:
        return FaultyObjects(self.bucket, self._network(process, "objects", self.store_weather))

    def _network(self, process: Process, peer: str, weather: Weather) -> Network:
        return Network(
            process=process,
            peer=peer,
            weather=weather,
            rng=Random(self.rng.random()),
            trace=self.trace,
        )

    async def _watch_epochs(self, engine: Engine) -> None:
        """Every claim has a larger leader epoch than all before it."""
        await engine.ready.wait()
        for log in engine.logs():
            tp = TopicPartition(log.topic_id, log.partition)
            before = self.leader_epochs.get(tp, -1)
            self.expect(log.leader_epoch > before, f"epoch {before}, then {log.leader_epoch}")
            self.leader_epochs[tp] = log.leader_epoch

    def _kill(self, how: str) -> None:
        if self._agent_task is None or self._agent_task.done():
            return
        self.count(how)
        self.trace(how)
        self.process.kill()
        self.engine = None
        self._agent_task.cancel()
        if how == "power":
            self.platter.lose_power(self.rng)

    # ── Faults ──

    async def _chaos(self) -> None:
        end = self.loop.now_s + self.rng.uniform(10, 45)
        while self.loop.now_s < end:
            await asyncio.sleep(self.rng.uniform(0.2, 4))
            match self.rng.choice(
                ("kill", "power", "stop", "expire", "disk", "outage", "weather", "weather")
            ):
                case "kill":
                    self._kill("kill")
                case "power":
                    self._kill("power")
                case "stop" if self.engine is not None:
                    self.count("stop")
                    self.trace("stop")
                    self._stopping = True
                    self.engine.stop()
                case "expire" if self.engine is not None:
                    self.count("expire")
                    self.trace("expire")
                    await self.metadata.revoke_lease(lease_id_of(self.engine.agent.session_id))
                case "disk":
                    self.platter.full = not self.platter.full
                    if self.disk is not None:
                        self.disk.sync_fails = self.rng.choice((0.0, 0.3))
                        self.disk.write_fails = self.rng.choice((0.0, 0.05, 0.3))
                case "outage":
                    weather = self.rng.choice((self.metadata_weather, self.store_weather))
                    weather.down = not weather.down
                case "weather":
                    self._new_weather(self.metadata_weather)
                    self._new_weather(self.store_weather)
                case _:
                    pass

    def _new_weather(self, weather: Weather) -> None:
        strength = self.rng.choice((0.0, 0.05, 0.2))
        weather.refused = strength * self.rng.random()
        weather.lost_before = strength * self.rng.random()
        weather.lost_after = strength * self.rng.random()
        weather.silent = self.rng.choice((0.0, 0.5))
        weather.late = self.rng.choice((0.0, 0.02))

    def _calm(self) -> None:
        for weather in (self.metadata_weather, self.store_weather):
            weather.refused = weather.lost_before = weather.lost_after = weather.late = 0.0
            weather.down = False
        self.platter.full = False
        if self.disk is not None:
            self.disk.sync_fails = self.disk.write_fails = 0.0

    # ── The end ──

    async def _check(self) -> None:
        for topic in self.topics:
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.topic_id, partition)
                log = await read_final_log(self, topic.name, tp)
                self._check_partition(tp, log)

    def _check_partition(self, tp: TopicPartition, log: list[Row]) -> None:
        self.oracle.check(tp, log)
        for producer in self.producers:
            if producer.tp == tp and producer.idempotent:
                prefix = producer.name.encode() + b"/"
                mine = [row.value for row in log if row.value.startswith(prefix)]
                numbers = [int(v.rpartition(b"/")[2]) for v in mine]
                self.expect(numbers == sorted(set(numbers)), f"{producer.name}: {numbers}")
