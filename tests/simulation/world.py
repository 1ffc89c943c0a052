"""One agent, its stores, its disk and its clients, in one process, on virtual time, from one seed.

    producers ──▶ Producing ──▶ Engine ──▶ FaultyMetadata ──▶ MemoryMetadataStore
    admin     ──▶ Topics ────────┘│  └───▶ FaultyObjects  ──▶ MemoryObjectStore
    consumers ◀── LogReader ──────│─────────────┘
                                  └──────▶ SimDisk        ──▶ Platter

What is checked, all the time or when the faults are over:

1. What was acknowledged is in the log at the offset that was told.  Only of acks=1, only what
   is not committed when the disk is lost, and only if it is told so, may go with it.
2. What a consumer was shown stays what it was; high watermarks never go back.  Every fetch has
   whole batches from the offset it asked for, without a gap and not above the high watermark;
   who reads on gets to it.  Lookups by time are those of the log that is there at the end.
3. Offsets are dense, leader epochs do not go back, in what is sealed neither.
4. An idempotent producer's records are there once each, in order, and those of acks=0 at most
   once; a copy of a batch is answered with its offset, however late it comes; a batch of an
   epoch that has ended is refused.  Out of order is only what is behind something lost.
5. Every object that a flush record or a manifest names is there, however often the collector
   has looked.
6. When faults end, everything is answered in bounded time.
7. Nothing is appended by a session that may have lost its lease, by the agent's own clock.
8. Who waits for a session that ends is told so: producers with any acks, parked ones, fetches.
   Batches in memory are bounded.  On a disk that is well again acks=1 is taken.
9. A topic is there exactly if somebody was told so, with the configs that were told; what is
   produced to a name goes on in the topic that has it next.
"""

import asyncio
import contextlib
import hashlib
from random import Random
from uuid import UUID

from driftlog_metadata.codec import encode_topic
from driftlog_metadata.keys import topic_key
from driftlog_metadata.memory_store import MemoryMetadataStore
from driftlog_metadata.model import Topic, TopicPartition
from driftlog_metadata.store import Put
from driftlog_tiering.memory_object_store import MemoryObjectStore
from tests.simulation.admin import Admin
from tests.simulation.agent import SETTINGS, AgentProcess
from tests.simulation.batches import Row
from tests.simulation.chaos import calm, chaos, grow_old
from tests.simulation.clients import Producer
from tests.simulation.consumers import Consumer, NotServedError
from tests.simulation.faults import Weather, now
from tests.simulation.final_log import read_ends, read_final_log, read_topics
from tests.simulation.loop import VirtualLoop
from tests.simulation.oracle import Oracle, Place
from tests.simulation.sim_disk import Platter

_LOADED_S = 35.0
_PROBES_S = 5 * SETTINGS.buffer.probe_interval_ms / 1000


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.cuts_beginnings = seed % 10 == 7
        """Every tenth seed: sessions that end while they load, files that end torn.  The others
        are without these, and have the more of all the rest."""
        self.loop = VirtualLoop()
        self._trace = hashlib.sha256()
        self.events = 0
        self.counts: dict[str, int] = {}
        self.metadata = MemoryMetadataStore(lambda: int(self.loop.now_s * 1000))
        self.bucket = MemoryObjectStore(lambda: int(self.loop.now_s * 1000))
        self.platter = Platter()
        self.metadata_weather = Weather()
        self.store_weather = Weather(latency_ms=(5.0, 80.0))
        self.oracle = Oracle(self.expect)
        self.lives = 0
        self.process = self._new_process()
        self.admin = Admin(self, Random(self.rng.random()))
        self.producers: list[Producer] = []
        self._clients: asyncio.TaskGroup | None = None
        self._life: asyncio.Task[None] | None = None
        self._last_life = False

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

    def acknowledge(self, place: Place, *, one: bool) -> None:
        """A producer was told that a batch is at *place*."""
        self.trace("ack", place.tp.partition, place.base_offset, place.records)
        self.oracle.acknowledge(place, one=one)

    def show(self, tp: TopicPartition, offset: int, row: Row) -> None:
        """A consumer was given *row* at *offset*."""
        self.trace("shown", tp.partition, offset, row)
        self.oracle.show(tp, offset, row)

    def saw_high_watermark(self, tp: TopicPartition, high_watermark: int) -> None:
        """A consumer was told a high watermark."""
        self.trace("high watermark", tp.partition, high_watermark)
        self.oracle.saw_high_watermark(tp, high_watermark)

    def leads(self, tp: TopicPartition, epoch: int) -> None:
        """A session leads a partition."""
        self.oracle.leads(tp, epoch)

    def count(self, what: str) -> None:
        """For the summary."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def count_many(self, what: str, times: int) -> None:
        """As `count`."""
        if times:
            self.counts[what] = self.counts.get(what, 0) + times

    def note(self, what: str) -> None:
        """A fault happens."""
        self.count(what)
        self.trace(what)

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
        topics = [
            Topic(name=name, topic_id=UUID(int=self.rng.getrandbits(128)), partitions=2)
            for name in ("a", "b")
        ]
        await self.metadata.txn((), [Put(topic_key(t.name), encode_topic(t)) for t in topics])
        async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as self._clients:
            for topic in topics:
                self.produce_to(topic, batches=50)
            others = [
                tasks.create_task(Consumer(self, Random(self.rng.random())).run()) for _ in range(2)
            ]
            others.append(tasks.create_task(self.admin.run()))
            agent = tasks.create_task(self._agent())
            await chaos(self)
            if self.rng.random() < 0.1:
                await grow_old(self)
            calm(self)
            await self._answered(others.pop())
            for task in others:
                task.cancel()
            await self._finish(agent)
        await self._check()

    async def _answered(self, admin: asyncio.Task[None]) -> None:
        """Wait until every client has what it asked for."""
        await asyncio.sleep(5)
        admin.cancel()
        for _ in range(1_200):
            topics = (await read_topics(self)).values()
            there = {topic.name: topic.partitions for topic in topics}
            for producer in self.producers:
                producer.abandoned = producer.partition >= there.get(producer.topic, 0)
            late = [p.name for p in self.producers if not p.finished]
            if not late:
                return
            await asyncio.sleep(0.1)
        self.expect(False, f"never answered: {late}")

    async def _finish(self, agent: asyncio.Task[None]) -> None:
        """Leave as SIGTERM does, or be killed and come back once more: nothing may differ."""
        if self.rng.random() < 0.5:
            self.kill("kill")
            await asyncio.sleep(3)
        await asyncio.sleep(self.rng.uniform(0, 8))
        await self._ready()
        for producer in self.producers:
            producer.check_copies()
            await producer.send_again()
        await self._read_everything()
        await self._disk_is_used()
        self._last_life = True
        self.process.stop()
        async with asyncio.timeout(60):
            await agent

    async def _ready(self) -> None:
        for _ in range(600):
            if self.process.serving and not self.process.stopping:
                return
            await asyncio.sleep(0.1)
        self.expect(False, "the agent did not come back")

    async def _read_everything(self) -> None:
        last = Consumer(self, Random(self.rng.random()))
        engine = self.process.engine
        assert engine is not None
        for log in engine.logs():
            try:
                async with asyncio.timeout(60):
                    await self.process.do(last.read_all(engine, log))
            except (TimeoutError, NotServedError) as error:
                self.expect(False, f"{log!r} could not be read: {error!r}")

    async def _disk_is_used(self) -> None:
        """The disk is well: acks=1 is taken again after a few probes at most."""
        engine = self.process.engine
        assert engine is not None
        for log in engine.logs():
            # A request that was lost before the calm is not repeated before its deadline.
            async with asyncio.timeout(_LOADED_S):
                await engine.loaded(log)
        probes = [
            self._producer(log.topic, log.partition, acks=1, total=1) for log in engine.logs()
        ]
        try:
            async with asyncio.timeout(_PROBES_S):
                await asyncio.gather(*(probe.run() for probe in probes))
        except TimeoutError:
            late = [f"{p.topic}-{p.partition}" for p in probes if not p.finished]
            self.expect(False, f"acks=1 is not taken for {late}")

    def produce_to(self, topic: Topic, batches: int) -> None:
        """Producers for each partition; each sends about so many *batches*."""
        assert self._clients is not None
        for partition in range(topic.partitions):
            for _ in range(self.rng.randint(1, 2)):
                acks = self.rng.choice((-1, -1, -1, -1, 1, 1, 0))
                total = self.rng.randint(batches // 2, batches * 3 // 2)
                producer = self._producer(topic.name, partition, acks, total)
                self._clients.create_task(producer.run())

    def _producer(self, topic: str, partition: int, acks: int, total: int) -> Producer:
        number = len(self.producers)
        producer = Producer(
            world=self,
            name=f"p{number}",
            topic=topic,
            partition=partition,
            acks=acks,
            producer_id=number if acks and self.rng.random() < 0.6 else -1,
            window=self.rng.choice((1, 1, 5, 20)),
            total=total,
            rng=Random(self.rng.random()),
        )
        self.producers.append(producer)
        return producer

    # ── The agent's lives ──

    def _new_process(self) -> AgentProcess:
        self.lives += 1
        return AgentProcess(self, self.lives)

    async def _agent(self) -> None:
        while True:
            self._life = asyncio.get_running_loop().create_task(self.process.run())
            try:
                await self._life
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self.process.dead or (task is not None and task.cancelling()):
                    raise  # not killed: the simulation itself is over
            if self._last_life:
                return
            self.process.kill()
            await asyncio.sleep(self.rng.choice((0.01, 0.5, 3.0, 9.0)))
            self.process = self._new_process()

    def kill(self, how: str) -> None:
        """SIGKILL, or the loss of power."""
        if self._life is None or self._life.done():
            return
        self.note(how)
        self.process.kill()
        self._life.cancel()
        if how == "power":
            self.platter.lose_power(self.rng)
        if how == "disk lost":
            self.platter.lose_everything()
            self._disk_is_gone()
        if how == "disk back":
            self.platter.swap()
            self._disk_is_gone()
            self.oracle.disk_is_back()

    def _disk_is_gone(self) -> None:
        committed, error = now(read_ends(self, without=self.admin.dying))
        if error is not None:
            raise error
        self.oracle.lose_disk(committed)

    def pass_time(self, seconds: float) -> None:
        """All of a sudden: whoever was to do something meanwhile is late."""
        self.note("suspended")
        self.loop.now_s += seconds

    # ── The end ──

    async def _check(self) -> None:
        there = await read_topics(self)
        self.admin.check(there)
        told = {tp.topic_id for tp, _ in self.oracle.acked} - self.admin.dying
        self.expect(told <= set(there), "a topic with acknowledged records is gone")
        for topic in there.values():
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.topic_id, partition)
                log = await read_final_log(self, topic.name, tp)
                if topic.topic_id not in self.admin.dying:
                    self._check_partition(tp, log)

    def _check_partition(self, tp: TopicPartition, log: list[Row]) -> None:
        self.oracle.check(tp, log)
        for producer in self.producers:
            if producer.idempotent or producer.acks == 0:
                prefix = producer.name.encode() + b"/"
                mine = [row.value for row in log if row.value.startswith(prefix)]
                numbers = [int(v.rpartition(b"/")[2]) for v in mine if v not in producer.repeatable]
                self.expect(numbers == sorted(set(numbers)), f"{producer.name}: {numbers}")
