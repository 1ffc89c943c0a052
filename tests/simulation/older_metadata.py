"""When all else is over: metadata that lose single keys, and metadata that go back.

    everybody has left ──▶ a copy of the store without one key     ──▶ an agent starts, and stops
                       ──▶ the store as it was at some time before ──▶ an agent starts, and stops
                       ──▶ the right store                         ──▶ an agent starts, and stops

1. A partition with one key is not served; it is whole when the key is back, or was made again
   for an operator who accepts its loss.
2. Under the older store a record is served as it was, or not at all, and nothing is taken for a
   partition of which the bucket has more sealed than that store knows.  (What was committed after
   the copy and is not sealed is not known to anybody.)
3. No agent ends.
4. Under the right store everything is there, as if nothing had been, and no producer id is given
   out that the log has, nor one that another agent was given before the store went back.

The older stores' agents are asked for nothing that would change the log: what is committed under
two stores at once is two logs.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.handlers.common.producer_ids import ProducerIds
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import RefusedError
from driftlog_metadata.schema.codec import encode_producer_id_block
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY, leader_key, partition_key
from driftlog_metadata.schema.model import ProducerIdBlock, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.store import Delete, KeyValue, Put
from driftlog_tiering.formats.manifests import load_newest
from tests.simulation.batches import rows_of
from tests.simulation.faults import now
from tests.simulation.final_log import Log, read_final_log, read_topics
from tests.simulation.node import Node
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.world import World

_SINGLE: Final = 6
_SINGLES_OF: Final = 20
_CLUSTER: Final = 12
_CLUSTERS_OF: Final = 50

_STARTED_S: Final = 20.0
_BUMP: Final = 1_000
"""As etcd's manual advises for a backup that is put back."""

_SERVED_S: Final = 12.0
"""Longer than everything that is due is sealed after."""
_FETCH_BYTES: Final = 1_000


def has_older_metadata(seed: int) -> bool:
    """Whether the seed has them: one in twenty of single agents, and some of clusters."""
    return seed % _SINGLES_OF == _SINGLE or seed % _CLUSTERS_OF == _CLUSTER


class OlderMetadata:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"older metadata {world.seed}")
        self.active = has_older_metadata(world.seed)
        self.going_on = False
        """Partitions may be offline, by what is done here."""
        self._copy: list[KeyValue] = []
        self._logs: dict[TopicPartition, Log] = {}
        self._machines = 100

    async def remember(self) -> None:
        """Make the backup at some time, or when cancelled."""
        if not self.active:
            return
        try:
            await asyncio.sleep(self._rng.uniform(2, 30))
        finally:
            self._copy = self._world.metadata.snapshot()

    async def run(self) -> None:
        """After everybody has left."""
        if not self.active:
            return
        world = self._world
        right = world.metadata
        topics = await read_topics(world)
        self._logs = {
            tp: await read_final_log(world, topic.name, tp)
            for topic in topics.values()
            for tp in (TopicPartition(topic.topic_id, n) for n in range(topic.partitions))
        }
        self.going_on = True
        await self._without_a_key(right.snapshot())
        await self._as_it_was()
        self.going_on = False
        right.become(right.copy(), revision=world.metadata.revision + _BUMP)
        world.metadata = right
        await self._under_the_right_store()

    # ── The stores ──

    async def _without_a_key(self, kvs: list[KeyValue]) -> None:
        """One partition loses one key."""
        key = self._rng.choice((leader_key, partition_key))
        led = [tp for tp in self._logs if any(kv.key == key(tp) for kv in kvs)]
        if not led:
            return
        hurt = self._rng.choice(led)
        self._world.note("a key is lost")
        store = await self._put_in_place(kvs)
        await store.txn((), [Delete(key(hurt))])
        node = await self._start()
        engine = self._engine(node)
        self._expect(engine.find(hurt) is None, f"{hurt} is led without {key(hurt)}")
        self._expect(hurt in engine.offline(), f"nobody is told that {key(hurt)} is missing")
        if self._rng.random() < 0.5:
            await self._accept_loss(engine, hurt)
        else:
            await store.txn((), [Put(kv.key, kv.value) for kv in kvs if kv.key == key(hurt)])
        log = await self._led(engine, hurt)
        if log is None:
            self._expect(False, f"{hurt} has its keys, and is not led")
            return
        await asyncio.sleep(2)
        self._expect(
            log.high_watermark == len(self._logs[hurt]), f"{log!r} has {len(self._logs[hurt])}"
        )
        await self._look(node, log)
        await self._stop(node)

    async def _led(self, engine: Engine, tp: TopicPartition) -> PartitionLog | None:
        """The partition, once it is led: keys are looked at every few seconds."""
        for _ in range(80):
            log = engine.find(tp)
            if log is not None:
                return log
            await asyncio.sleep(0.1)
        return None

    async def _accept_loss(self, engine: Engine, hurt: TopicPartition) -> None:
        """An operator has the key made again: nothing is lost with it."""
        self._world.note("a loss is accepted")
        plan = await engine.losses.examine(hurt)
        self._expect(not plan.lost, f"{hurt}: {plan} is said to be lost")
        loss = await engine.losses.accept(hurt, plan.as_json(), int(self._world.now_ms()))
        there, _ = now(self._world.bucket.get(loss.key))
        self._expect(there is not None, f"there is no {loss.key}")

    async def _as_it_was(self) -> None:
        """The store goes back."""
        self._world.note("metadata go back")
        await self._put_in_place(self._copy)
        node = await self._start()
        for log in self._engine(node).logs():
            await self._look(node, log)
        await asyncio.sleep(_SERVED_S)
        for log in self._engine(node).logs():
            await self._look(node, log)
        await self._stop(node)

    async def _under_the_right_store(self) -> None:
        producers = [
            producer.producer_id
            for producer in self._world.producers
            if producer.last is not None and producer.idempotent and producer.acks == -1
            for place in (producer.last.place,)
            if place is not None and place.tp in self._logs and not producer.last.sent.garbage
        ]
        none = encode_producer_id_block(ProducerIdBlock(first_producer_id=0, size=0, node_id=0))
        await self._world.metadata.txn((), [Put(PRODUCER_IDS_KEY, none)])
        node = await self._start()
        engine = self._engine(node)
        for tp, rows in self._logs.items():
            log = engine.find(tp)
            if log is None:
                self._expect(False, f"{tp} is not led under the right store")
                return
            await engine.loaded(log)
            end = log.high_watermark
            self._expect(end == len(rows), f"{log!r} ended at {len(rows)} and ends at {end}")
            await self._look(node, log)
        given = await ProducerIds(node.process.broker).next()
        self._expect(given > max(producers, default=-1), f"producer id {given} is given out again")
        await self._stop(node)
        # As it was before that block: nothing in a log shows an id of it.
        before = ProducerIdBlock(first_producer_id=0, size=given, node_id=0)
        put = Put(PRODUCER_IDS_KEY, encode_producer_id_block(before))
        await self._world.metadata.txn((), [put])
        node = await self._start()
        again = await ProducerIds(node.process.broker).next()
        self._expect(again != given, f"producer id {given} is given out by an older store")
        await self._stop(node)

    # ── What is checked ──

    async def _look(self, node: Node, log: PartitionLog) -> None:
        """What is served of *log* is what it was."""
        tp = TopicPartition(log.topic_id, log.partition)
        rows = self._logs.get(tp)
        if rows is None or log.state not in (State.ONLINE, State.LOADING):
            return  # its topic is gone by now, or it is offline
        newest, _ = now(load_newest(self._world.bucket, log.topic, tp))
        sealed = 0 if newest is None else newest.end
        end = log.high_watermark
        self._expect(sealed <= end, f"{log!r} is served, and sealed up to {sealed}")
        self._expect(end <= len(rows), f"{log!r}: the log ends at {len(rows)}")
        offset = log.log_start
        while offset < end:
            try:
                batches = await node.process.reader.read(log, offset, _FETCH_BYTES, zstd=True)
            except (UnavailableError, RefusedError, CorruptError):
                return  # what that store names may be gone by now
            for batch in batches:
                for at, row in rows_of(bytes(batch)):
                    self._expect(row == rows[at], f"{tp}: {row} at {at}, where {rows[at]} was")
                    offset = at + 1
            if not batches:
                return

    # ── One agent ──

    async def _put_in_place(self, kvs: list[KeyValue]) -> MemoryMetadataStore:
        """Another store, that has what *kvs* say, but for those whose leases are over."""
        loop = self._world.loop
        store = MemoryMetadataStore(lambda: int(loop.now_s * 1000))
        for kv in kvs:
            if not kv.lease_id:
                await store.txn((), [Put(kv.key, kv.value)])
        # Without the bump, agents end at the first final head that is newer (`newer_objects`).
        store.become(store.copy(), revision=self._world.metadata.revision + _BUMP)
        self._world.metadata = store  # type: ignore[assignment]  # nobody watches what it is told
        return store

    async def _start(self) -> Node:
        """A machine that was never seen before, on the world's store."""
        self._machines += 1
        node = Node(self._world, self._machines)
        self._world.nodes.append(node)
        self._world.start(node)
        await asyncio.sleep(_STARTED_S)
        self._engine(node)
        return node

    def _engine(self, node: Node) -> Engine:
        engine = node.process.engine
        if engine is None or not engine.ready.is_set():
            self._expect(False, f"{node.process.name} does not serve, or has ended")
        assert engine is not None
        return engine

    async def _stop(self, node: Node) -> None:
        self._engine(node)
        async with asyncio.timeout(60):
            await node.leave()
        self._world.nodes.remove(node)

    def _expect(self, holds: bool, message: str) -> None:
        self._world.expect(holds, message)
