"""Agents, their stores, disks and clients, in one process, on virtual time, from one seed.

    producers ──▶ Producing ──▶ Engine ──▶ FaultyMetadata ──▶ MemoryMetadataStore
    admin     ──▶ Topics ────────┘│  └───▶ FaultyObjects  ──▶ MemoryObjectStore
    consumers ◀── LogReader ──────│─────────────┘
                                  └──────▶ SimDisk        ──▶ Platter

What is checked, all the time or when the faults are over:

1. What was acknowledged is in the log at the offset that was told.  Only of acks=1, only what
   is not committed when the disk is lost, and only if it is told so, may go with it.  What of
   acks=1 has lost its place to another leader is set aside on its disk, and nothing else is.
2. What a consumer was shown stays what it was; high watermarks never go back.  Every fetch has
   whole batches from the offset it asked for, without a gap and not above the high watermark;
   who reads on gets to it.  Lookups by time are those of the log that is there at the end.  What
   was deleted is not shown any more, and nothing above it is lost (`deletions`).
3. Offsets are dense, leader epochs do not go back, in what is sealed neither.
4. An idempotent producer's records are there once each, in order, and those of acks=0 at most
   once; a copy of a batch is answered with its offset, however late it comes; a batch of an
   epoch that has ended is refused.  Out of order is only what is behind something lost.
5. Every object that a flush record or a manifest names is there, however often the collector
   has looked.
6. When faults end, everything is answered in bounded time; also while the bucket still refuses
   one agent what it does for others.  Where it does so with all, nobody steps down (`one_sided`).
   Nothing is offline for an object that is not shown for a while (`untrue_absence`), and while the
   bucket hangs for all, what could be served is served (`hanging_bucket`).
7. Nothing is appended by a session that may have lost its lease, by the agent's own clock.
   Producers wait where sealing or consolidation falls behind, so that what they do is bounded
   (`slow_upkeep`).
8. Who waits for a session that ends is told so: producers with any acks, parked ones, fetches.
   Batches in memory are bounded.  On a disk that is well again acks=1 is taken.
9. A topic is there exactly if somebody was told so, with the configs that were told; what is
   produced to a name goes on in the topic that has it next.
10. The collector deletes nothing that an entitled reader may ask for (`collecting`).  In the end,
   when topics are deleted and the grace period has passed, bucket and metadata store hold nothing
   that nothing names (`ending`).
11. A metadata store that is not the one that agents have seen is not believed (`store_loss`).
12. Metadata that lose a key, or go back, make nothing up (`older_metadata`).
13. What has expired goes, and nothing else does (`retention`).
14. A merge changes nothing but the number of segments (`merging`).
15. An agent that only seals leads nothing and coordinates nothing (`seal_agents`).
16. A restore has what agents of the old cluster acknowledge, and they stop (`restored`); groups
    come back as the newest snapshot has them (`restored_groups`).
"""

import asyncio
import contextlib
import gc
import hashlib
from collections.abc import Coroutine
from random import Random
from typing import Any, Final
from uuid import UUID

from driftlog_agents.cluster.placement import place
from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.codec import (
    decode_cluster,
    decode_topic,
    encode_producer_id_block,
    encode_topic,
)
from driftlog_metadata.schema.keys import CLUSTER_KEY, PRODUCER_IDS_KEY, TOPICS_PREFIX, topic_key
from driftlog_metadata.schema.model import ProducerIdBlock, Role, Topic, TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from tests.simulation import compaction, merging
from tests.simulation.admin import Admin
from tests.simulation.agent import SETTINGS, Led
from tests.simulation.aimed import aimed_faults, is_aimed, swap_disks
from tests.simulation.batches import Row
from tests.simulation.blind_coordinators import blind_coordinators
from tests.simulation.bucket_faults import ForeignObjects, has_foreign_objects
from tests.simulation.chaos import calm, chaos, grow_old
from tests.simulation.clients import Producer
from tests.simulation.clocks import jump_clocks
from tests.simulation.cluster_chaos import cluster_chaos
from tests.simulation.collecting import CollectedObjects, grace_of, let_collect
from tests.simulation.consumer_requests import ConsumerRequests, has_requests
from tests.simulation.consumers import Consumer, NotServedError
from tests.simulation.deletions import Deletions, has_deletions
from tests.simulation.ending import Ending, has_ending
from tests.simulation.expiry_seeds import has_retention
from tests.simulation.failing_disks import has_failing_disk, let_disk_fail
from tests.simulation.faults import now
from tests.simulation.final_log import read_ends, read_final_log, read_log_start, read_topics
from tests.simulation.format_levels import first_cluster, is_raised, raise_level
from tests.simulation.groups import Groups
from tests.simulation.hanging_bucket import HangingBucket, has_hanging_bucket
from tests.simulation.ledger import Ledger
from tests.simulation.long_outages import LongOutage, OutageBucket, OutageStore
from tests.simulation.loop import NOBODY, VirtualLoop
from tests.simulation.many_producers import let_many_produce
from tests.simulation.node import Node
from tests.simulation.older_metadata import OlderMetadata
from tests.simulation.one_sided import LastRefusals, has_refusals
from tests.simulation.oracle import Oracle, Place
from tests.simulation.restarts import restart_often
from tests.simulation.restored import RestoredBeside, has_restore
from tests.simulation.retention import Retention
from tests.simulation.seal_agents import SealAgents, has_seal_agent, roles_of
from tests.simulation.slow_upkeep import SlowUpkeep, has_slow_upkeep
from tests.simulation.store_loss import StoreLoss, has_store_loss
from tests.simulation.tail_readers import tail_readers
from tests.simulation.untrue_absence import UntrueAbsence, has_untrue_absence

BEGIN_S: Final = 1_000_000.0
"""So long after 1970 that a wall clock which is set back by days does not come before it."""
_CLUSTERS: Final = (2, 5, 8)
"""Last digits of the seeds that have several agents."""
_GROUPS: Final = (4, 8)
"""Last digits of the seeds that have consumer groups, too: of one agent, and of several.  Where the
digit before is odd, there is also a group of KIP-848."""

_THREADS: Final = 0.6

_ANSWERED_MS: Final = 120_000.0
"""In which some producer is answered, while one waits."""

_LAST_TURNS: Final = 30
"""Of the loop, in which what is cancelled ends: task groups within task groups."""

_LOADED_S = 35.0
_PROBES_S = 5 * SETTINGS.buffer.probe_interval_ms / 1000


def is_cluster(seed: int) -> bool:
    """Whether the seed has several agents: three in ten."""
    return seed % 10 in _CLUSTERS


def has_threads(seed: int) -> bool:
    """Whether what worker threads do can be stopped between two lines."""
    return seed // 10 % 2 == 1


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calm = False
        """The faults are over."""
        self.rng = Random(seed)
        self.cuts_beginnings = seed % 10 == 7
        """Every tenth seed: sessions that end while they load, files that end torn.  The others
        are without these, and have the more of all the rest."""
        self.thread_share = _THREADS if has_threads(seed) else 0.0
        """Of what worker threads do: how much can be stopped between two lines."""
        self.loop = VirtualLoop(BEGIN_S)
        self.loop.set_exception_handler(self._callback_failed)
        self._trace = hashlib.sha256()
        self._broken: Violation | None = None
        self.events = 0
        self.counts: dict[str, int] = {}
        self.grace = grace_of(seed)
        self.collected = CollectedObjects(self)
        self.long_outage = LongOutage(self)
        self.slow_upkeep = SlowUpkeep(self)
        self.metadata = OutageStore(self)
        self.bucket = OutageBucket(self)
        self.withheld: set[str] = set()
        """Objects that are there, and given to nobody."""
        self.untrue = UntrueAbsence(self)
        self.oracle = Oracle(self.expect)
        self.ledger = Ledger(self)
        self.retention: Retention | None = None
        if has_retention(seed) and not has_restore(seed):
            self.retention = Retention(self)
        self.seal_agents = SealAgents(self)
        self.nodes = [Node(self, 1)]
        self.merges = merging.Merges(self)
        self.segment_ms = 0
        """Of the agents' settings: see `merging`."""
        self.compacted = frozenset({compaction.TOPIC} if compaction.has_compaction(seed) else ())
        """Names of topics that are compacted."""
        self.unsettled: set[TopicPartition] = set()
        """What a disk was lost of, or another node has led: acks=1 may be in no log."""
        self.admin = Admin(self, Random(self.rng.random()))
        self.deletions: Deletions | None = None
        if has_deletions(seed):
            self.deletions = Deletions(self, Random(f"deletions {seed}"))
        self.foreign = ForeignObjects(self)
        """What unknown_keys have put into the bucket."""
        self.requests: ConsumerRequests | None = None
        if has_requests(seed):
            self.requests = ConsumerRequests(self, Random(f"requests {seed}"))
        self.producers: list[Producer] = []
        has_groups = seed % 10 in _GROUPS
        self.groups: Groups | None = None
        if has_groups:
            self.groups = Groups(self, Random(f"groups {seed}"), both=seed // 10 % 2 == 1)
        self.last_refusals = LastRefusals(self)
        self.first_topics: list[Topic] = []
        self.store_loss: StoreLoss | None = None
        self.older_metadata = OlderMetadata(self)
        self.restored: RestoredBeside | None = None
        self.hides_objects = has_untrue_absence(seed) or (is_cluster(seed) and seed // 100 % 2 == 1)
        """Objects that are there are not given now and then: what needs them may be refused."""
        self.hides_objects |= has_restore(seed)
        self._clients: asyncio.TaskGroup | None = None
        self._machines: asyncio.TaskGroup | None = None
        self._consuming: asyncio.Task[None] | None = None
        if is_cluster(seed):
            for number in range(2, 2 + self.rng.randint(1, 3)):
                self.nodes.append(Node(self, number))
        if has_store_loss(seed):
            self.store_loss = StoreLoss(self)
        if has_restore(seed):
            self.restored = RestoredBeside(self)

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
        """A promise.  The first one that is broken ends everything, whoever has noticed."""
        if not holds:
            error = Violation(f"seed {self.seed}, at {self.loop.now_s:.3f} s: {message}")
            self._broken = self._broken or error
            self.loop.stop()
            raise error

    def _callback_failed(self, _: object, context: dict[str, Any]) -> None:
        """Nobody awaits a callback: what it raises would be lost."""
        if "handle" in context and self._broken is None:
            error = context.get("exception")
            with contextlib.suppress(Violation):
                self.expect(False, f"{context['message']}: {error!r}")

    def acknowledge(self, place: Place, node: Node, epoch: int, *, one: bool) -> None:
        """A producer was told by *node*, a leader of *epoch*, that a batch is at *place*."""
        self.trace("ack", place.tp.partition, place.base_offset, place.records)
        if one:
            if self.ledger.overtaken(place.tp, place.base_offset, epoch, node.number):
                self.oracle.overtaken(place, node.number)
                return
            end = place.base_offset + len(place.records)
            there = self.ledger.ends.get(place.tp, 0)
            if there < end and place.tp.topic_id not in self.admin.dying:
                synced = node.platter.synced_end(place.tp, there)
                self.expect(
                    synced >= end,
                    f"acks=1 was told up to {end} of {place.tp}: committed is {there}, and the "
                    f"disk of {node.number} has all up to {synced}",
                )
        else:
            end = place.base_offset + len(place.records)
            if self.restored is not None:
                self.restored.acknowledged(place)
            self.ledger.committed(place.tp, end, "an acknowledgement")
        self.oracle.acknowledge(place, one=one, node=node.number)

    def show(self, tp: TopicPartition, offset: int, row: Row) -> None:
        """A consumer was given *row* at *offset*."""
        self.trace("shown", tp.partition, offset, row)
        self.ledger.committed(tp, offset + 1, "a fetch")
        self.oracle.show(tp, offset, row)

    def saw_high_watermark(self, tp: TopicPartition, high_watermark: int) -> None:
        """A consumer was told a high watermark."""
        self.trace("high watermark", tp.partition, high_watermark)
        self.ledger.committed(tp, high_watermark, "a high watermark")
        self.oracle.saw_high_watermark(tp, high_watermark)

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
        # What a collection finds gets turns of the loop (generators are closed), and when there is
        # one depends on the size of the environment, for one: a seed would have several schedules.
        gc.disable()
        try:
            self.loop.run_until_complete(self._main())
        except BaseException as error:
            if self._broken is not None and error is not self._broken:
                raise self._broken from error
            raise
        finally:
            for node in self.nodes:
                node.process.thaw()
            left = self._end_tasks()
            asyncio.set_event_loop(None)
            self.loop.close()
            gc.enable()
        if self._broken is not None:
            raise self._broken
        assert not left, f"seed {self.seed} leaves {left}"
        return self

    def _end_tasks(self) -> list[Any]:
        """Cancel what still runs, until it has ended: asyncio lets an error that a task group ends
        with win over a cancel.  What stays, and is returned, ends and raises in the middle of
        some later test.
        """
        for _ in range(_LAST_TURNS):
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(asyncio.sleep(0))
        return [task.get_coro() for task in asyncio.all_tasks(self.loop)]

    async def _main(self) -> None:
        topics = [
            Topic(
                name=name,
                topic_id=UUID(int=self.rng.getrandbits(128)),
                partitions=2,
                configs=compaction.configs(self.seed, name, deletions=self.deletions is not None),
            )
            for name in ("a", "b")
        ]
        self.first_topics = topics
        ids = ProducerIdBlock(first_producer_id=0, size=1_000_000, node_id=0)  # our producers'
        puts = [Put(topic_key(t.name), encode_topic(t)) for t in topics]
        puts += [Put(PRODUCER_IDS_KEY, encode_producer_id_block(ids))]
        puts.append(Put(CLUSTER_KEY, first_cluster(self.seed)))
        await self.metadata.txn((), puts)
        mark = encode_cluster(decode_cluster(first_cluster(self.seed)), self.grace)
        await self.bucket.create(layout.CLUSTER_KEY, [mark])
        if self.restored is not None:
            await self._restore(self.restored)
            return
        async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as self._clients:
            for topic in topics:
                self.produce_to(topic, batches=50)
            others = [
                tasks.create_task(Consumer(self, Random(self.rng.random())).run()) for _ in range(2)
            ]
            if self.groups is not None:
                self._consuming = tasks.create_task(self.groups.run())
            if self.deletions is not None:
                others.append(tasks.create_task(self.deletions.run()))
            retaining = tasks.create_task(self._watch_retention())
            clocks = tasks.create_task(jump_clocks(self))
            others += [tasks.create_task(r.run()) for r in tail_readers(self)]
            aimed = [tasks.create_task(fault) for fault in aimed_faults(self)]
            if has_foreign_objects(self.seed):
                others.append(tasks.create_task(self.foreign.run()))
            if self.requests is not None:
                others.append(tasks.create_task(self.requests.run()))
            others.append(tasks.create_task(self.older_metadata.remember()))
            others.append(tasks.create_task(self.admin.run()))
            if is_raised(self.seed):
                tasks.create_task(raise_level(self))
            self._machines = tasks
            for node in self.nodes:
                self.start(node)
            if has_untrue_absence(self.seed):
                tasks.create_task(self.untrue.run())
            await (cluster_chaos(self) if self.many else chaos(self))
            if self.rng.random() < 0.1:
                await grow_old(self)
            await self.long_outage.run()
            await let_collect(self)
            calm(self)
            self.seal_agents.settle()
            clocks.cancel()
            for task in aimed:
                task.cancel()
            if not self.many and is_aimed(self.seed):
                await swap_disks(self)
            if self.many and is_aimed(self.seed) and self.groups is not None:
                await blind_coordinators(self)
            if self.many and has_refusals(self.seed) and not has_seal_agent(self.seed):
                await self.last_refusals.begin()
            if self.many and has_hanging_bucket(self.seed):
                await HangingBucket(self).run()
            await self._answered(others.pop())
            self.last_refusals.end()
            if has_slow_upkeep(self.seed):
                await self.slow_upkeep.run()
                await self._answered(None)
            if has_failing_disk(self.seed):
                await let_disk_fail(self)
                await self._answered(None)
            if self.store_loss is not None:
                await self.store_loss.run()
                await self._answered(None)
            await restart_often(self, SETTINGS)
            for task in others:
                task.cancel()
            await self._finish()
            retaining.cancel()
            await self.older_metadata.run()
        await self._check()
        if has_ending(self.seed):
            await Ending(self).run()
        await self.foreign.check()

    async def _restore(self, restored: RestoredBeside) -> None:
        async with asyncio.TaskGroup() as self._machines, asyncio.TaskGroup() as self._clients:
            for node in self.nodes:
                self.start(node)
            await restored.run()
            for producer in self.producers:
                producer.abandoned = True

    async def _watch_retention(self) -> None:
        if self.retention is not None:
            await self.retention.run()

    async def _answered(self, admin: asyncio.Task[None] | None) -> None:
        """Wait until every client has what it asked for."""
        await asyncio.sleep(5)
        if admin is not None:
            admin.cancel()
        acknowledged, until_ms = -1, 0.0
        while True:
            topics = (await read_topics(self)).values()
            there = {topic.name: topic.partitions for topic in topics}
            for producer in self.producers:
                # (for good: its task has ended, though the topic may be made again behind this)
                producer.abandoned |= producer.partition >= there.get(producer.topic, 0)
            late = [p.name for p in self.producers if not p.finished]
            if not late:
                return
            done = sum(p.produced - len(p.unacknowledged) for p in self.producers)
            if done != acknowledged:
                # Sealing that is behind may hold producers for minutes between two batches.
                acknowledged, until_ms = done, self.now_ms() + _ANSWERED_MS
            self.expect(self.now_ms() < until_ms, f"never answered: {late}")
            await asyncio.sleep(0.1)

    async def _finish(self) -> None:
        """Leave as SIGTERM does, or be killed and come back once more: nothing may differ."""
        if self.rng.random() < 0.5:
            self.some_node().kill("kill")
            await asyncio.sleep(3)
        await asyncio.sleep(self.rng.uniform(0, 8))
        await self.ready()
        self.seal_agents.check()
        if self.groups is not None and self._consuming is not None:
            await self.groups.settle()
            self._consuming.cancel()
        for producer in self.producers:
            producer.check_copies()
            await producer.send_again()
        await self._read_everything()
        if self.requests is not None:
            await self.requests.read_everything()
        await self._disk_is_used()
        await let_many_produce(self)
        if self.retention is not None:
            await self.retention.settle()
        async with asyncio.timeout(60), asyncio.TaskGroup() as leaving:
            for node in self.nodes:
                leaving.create_task(node.leave())
                if self.many:
                    await asyncio.sleep(self.rng.choice((0.0, 0.1, 2.0)))

    async def ready(self) -> None:
        """Every partition is led, by one agent, and each agent that is to run does."""
        missing: list[str] = []
        for _ in range(600):
            missing = [
                f"{topic.name}-{partition}"
                for topic in (await read_topics(self)).values()
                for partition in range(topic.partitions)
                if self.leading(topic.name, partition) is None
            ]
            missing += [node.process.name for node in self.nodes if not node.well]
            missing += [] if missing else self._misplaced()
            missing += [f"{n.process.name}: leftovers" for n in self.nodes if n.has_leftovers]
            if not missing:
                return
            await asyncio.sleep(0.1)
        self.expect(False, f"not there again: {missing}")

    def leading(self, topic: str, partition: int) -> Led | None:
        """Who leads the partition, if it is one."""
        found: list[Led] = []
        for node in self.nodes:
            engine = node.process.engine
            if engine is None or not node.process.serving or not engine.session.alive:
                continue
            log = engine.log(topic, partition)
            if log is not None and log.state is not State.CLOSED:
                found.append(Led(node.process, engine, log))
        return found[0] if len(found) == 1 else None

    def _misplaced(self) -> list[str]:
        """Partitions that are not led where all agents are to place them."""
        kvs = self.metadata.snapshot(TOPICS_PREFIX)
        known = [(kv.create_revision, decode_topic(kv.value)) for kv in kvs]
        known.sort(key=lambda entry: (entry[0], entry[1].topic_id.int))
        topics = {topic.topic_id: topic for _, topic in known}
        order = [(topic_id, topic.partitions) for topic_id, topic in topics.items()]
        nodes = [
            node.number
            for node in self.nodes
            if not node.last_life and Role.SERVE in roles_of(node)
        ]
        found: list[str] = []
        for tp, number in place(order, nodes).items():
            name = topics[tp.topic_id].name
            led = self.leading(name, tp.partition)
            there = None if led is None else led.process.node.number
            if there != number:
                found.append(f"{name}-{tp.partition}: led by {there} and placed on {number}")
        return found

    def topic_partition(self, topic: str, partition: int) -> TopicPartition | None:
        """What the name stands for now."""
        kv, _ = now(self.metadata.get(topic_key(topic)))
        return None if kv is None else TopicPartition(decode_topic(kv.value).topic_id, partition)

    async def _read_everything(self) -> None:
        last = Consumer(self, Random(self.rng.random()))
        # Threads that stop between lines take seconds for one row group.
        limit_s = 300 if self.thread_share else 60
        for topic in (await read_topics(self)).values():
            for partition in range(topic.partitions):
                try:
                    async with asyncio.timeout(limit_s):
                        await self._read_whole(last, topic.name, partition)
                except TimeoutError as error:
                    self.expect(False, f"{topic.name}-{partition} could not be read: {error!r}")

    async def _read_whole(self, last: Consumer, topic: str, partition: int) -> None:
        while True:
            led = self.leading(topic, partition)
            if led is not None:
                with contextlib.suppress(NotServedError):
                    await led.process.do(last.read_all(led))
                    return
            elif self.topic_partition(topic, partition) is None:
                return  # deleted by a request from before the calm
            await asyncio.sleep(0.1)

    async def _disk_is_used(self) -> None:
        """The disk is well: acks=1 is taken again after a few probes at most."""
        probes: list[Producer] = []
        for node in self.nodes:
            engine = node.process.engine
            for log in engine.logs() if engine is not None and node.process.serving else ():
                # A request that was lost before the calm is not repeated before its deadline.
                assert engine is not None
                async with asyncio.timeout(_LOADED_S):
                    with contextlib.suppress(UnavailableError):
                        await engine.loaded(log)
                probes.append(self._producer(log.topic, log.partition, acks=1, total=1))
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
                self._clients.create_task(producer.run(), context=NOBODY.copy())

    def produce_one(self, topic: str, partition: int) -> Coroutine[Any, Any, None]:
        """Send a record with acks=all, until it is answered."""
        return self._producer(topic, partition, acks=-1, total=1).run()

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
        if self.many:
            producer.patience_ms = self.rng.choice((1_500, 6_000, 30_000))
        self.producers.append(producer)
        return producer

    # ── The machines ──

    @property
    def many(self) -> bool:
        """Whether it is a cluster."""
        return len(self.nodes) > 1

    def some_node(self) -> Node:
        """One that has not left for good."""
        there = [node for node in self.nodes if not node.last_life]
        return there[0] if len(there) == 1 else self.rng.choice(there)

    def start(self, node: Node) -> None:
        """Let its lives begin."""
        assert self._machines is not None
        self._machines.create_task(node.run())

    def join(self) -> None:
        """A machine that was never seen before."""
        self.note("join")
        self.nodes.append(Node(self, len(self.nodes) + 1))
        self.start(self.nodes[-1])

    def disk_is_gone(self, node: Node) -> None:
        """With all that was only there."""
        committed, error = now(read_ends(self, without=self.admin.dying))
        if error is not None:
            raise error
        self.oracle.lose_disk(committed, node.number)
        self.unsettled.update(committed)

    def pass_time(self, seconds: float) -> None:
        """All of a sudden: whoever was to do something meanwhile is late."""
        self.note("suspended")
        self.loop.now_s += seconds

    # ── The end ──

    async def _check(self) -> None:
        left = {node.number for node in self.nodes if node.left}
        self.oracle.never_back(left)
        there = await read_topics(self)
        self.admin.check(there)
        told = {tp.topic_id for tp, _ in self.oracle.acked} - self.admin.dying
        self.expect(told <= set(there), "a topic with acknowledged records is gone")
        for topic in there.values():
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.topic_id, partition)
                log = await read_final_log(self, topic.name, tp)
                if topic.topic_id not in self.admin.dying:
                    self._check_partition(tp, log, await read_log_start(self, topic.name, tp))

    def _check_partition(self, tp: TopicPartition, log: list[Row], start: int) -> None:
        kept = {node.number: node.kept(tp) for node in self.nodes}
        self.count_many("records set aside", sum(map(len, kept.values())))
        self.oracle.check(tp, log, start, kept)
        if self.retention is not None:
            pass  # looked at when it moved
        elif self.deletions is None:
            self.expect(not start, f"{tp} starts at {start}, and nobody deletes")
        else:
            self.deletions.check(tp, start)
        for producer in self.producers:
            if producer.idempotent or producer.acks == 0:
                prefix = producer.name.encode() + b"/"
                mine = [row.value for row in log if row.value.startswith(prefix)]
                numbers = [int(v.rpartition(b"/")[2]) for v in mine if v not in producer.repeatable]
                self.expect(numbers == sorted(set(numbers)), f"{producer.name}: {numbers}")
