"""Agents of one log in virtual time: killed and started again, while the query lives its own life.

    query's step ──▶ `pass_time` ──▶ agents, producers, administrators ──▶ … ──▶ next step
                                          │
         directory of objects ◀── bucket ─┴─ metadata store ──▶ `log_oracle`

The agents are the product's, on simulated ports.  What they store is at once in a directory, where
the reader finds it with its own code.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.handlers.api import delete_records
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_agents.log.partition.batch import BatchHeaderFields, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.retention.policy import RetentionSettings
from driftlog_agents.process.composition.agent import AgentPorts, AgentProcess, AgentSettings
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from driftlog_metadata.schema.codec import encode_producer_id_block, encode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import CLUSTER_KEY, PRODUCER_IDS_KEY, topic_key
from driftlog_metadata.schema.model import ProducerIdBlock, Topic
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Compare, Operation, Put, TxnResult
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.compaction.policy import CleanerSettings
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.agent import READ_SETTINGS, SETTINGS
from tests.simulation.batches import make_batch
from tests.simulation.faults import FaultyMetadata, FaultyObjects, Network, Process, Weather, now
from tests.simulation.loop import NOBODY, VirtualLoop
from tests.simulation.server import SimIdentity, SimServer
from tests.simulation.sim_disk import Platter, SimDisk
from tests.spark.streams.log_oracle import LogOf, LogOracle
from tests.support.agent_ports import spool
from tests.support.clusters import AUTHOR, CLUSTER
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

BEGIN_S: Final = 1_000_000.0
MOST_PARTITIONS: Final = 3
_PRODUCER_IDS: Final = 1_000
_ASKS_S: Final = 0.1
"""How long a client waits before it asks again."""
_PATIENCE_S: Final = 20.0
_AWAY_S: Final = (0.01, 0.5, 3.0, 9.0)
"""How long, one of these, a killed agent is away: its session lives for six seconds."""
_LAST_TURNS: Final = 30


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is written, and what may happen to it."""

    configs: dict[str, dict[str, str]]
    """Of each topic."""
    agents: int
    deletes: bool
    """Records are deleted by a user, too."""
    segment_ms: int

    @property
    def compacted(self) -> frozenset[str]:
        """Names of the topics that are compacted."""
        return frozenset(n for n, c in self.configs.items() if "compact" in c.values())


class _Objects(MemoryObjectStore):
    """The bucket, which is a directory as well."""

    def __init__(self, now_ms: Callable[[], int], folder: Path) -> None:
        super().__init__(now_ms)
        self._folder = folder
        self.created: Callable[[str], None] = lambda _: None

    def _add(self, key: str, body: Sequence[Buffer]) -> None:
        super()._add(key, body)
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.read(key))
        self.created(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            (self._folder / key).unlink(missing_ok=True)

    def read(self, key: str) -> bytes:
        """All of an object."""
        return self._object(key)[0]


class _Metadata(MemoryMetadataStore):
    """The metadata store, which tells the oracle of what is put."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.put: Callable[[str, bytes], None] = lambda _, __: None

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        result = await super().txn(compares, then, otherwise)
        for operation in then if result.succeeded else otherwise:
            if isinstance(operation, Put):
                self.put(operation.key, operation.value)
        return result

    async def close(self) -> None:
        """It outlives its readers."""


class _Led(NamedTuple):
    process: Process
    engine: Engine
    log: PartitionLog


class _Acknowledgement:
    """A `Waiter` of acks=all."""

    def __init__(self) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def _settle(self, committed: bool) -> None:
        if not self.done.done():
            self.done.set_result(committed)

    def committed(self, log: PartitionLog) -> None:
        self._settle(True)

    def synced(self, log: PartitionLog) -> None:
        """Of acks=1."""

    unsynced = synced

    def lost(self, log: PartitionLog) -> None:
        self._settle(False)


class Machine:
    """A disk, and one agent after the other on it."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._number = number
        self._rng = Random(f"machine {number} {world.seed}")
        self._platter = Platter()
        self._lives = 0
        self._life: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        world, self._lives = self._world, self._lives + 1
        self.process = Process(f"agent-{self._number}-{self._lives}", world.loop)
        self.server = SimServer(self.process)
        self.agent = AgentProcess(
            world.agent_settings,
            AgentPorts(
                metadata=FaultyMetadata(world.metadata, self._network("metadata", (1.0, 10.0))),
                objects=FaultyObjects(world.bucket, self._network("objects", (5.0, 80.0))),
                disk=SimDisk(self._platter, self.process, Random(self._rng.random())),
                identity=SimIdentity(self._number, CLUSTER, world.grace),
                server=self.server,
                rng=Random(self._rng.random()),
                secrets=Random(1),
                now_ms=world.now_ms,
                wall_ms=world.wall_ms,
                offload_seal=_offload,
                offload_read=_offload,
                offload_groups=_offload,
                offload_produce=_offload,
                offload_rewrite=_offload,
                offload_upkeep=_offload,
                offload_disk=_offload,
                spool=spool,
            ),
        )

    def _network(self, peer: str, latency_ms: tuple[float, float]) -> Network:
        return Network(
            process=self.process,
            peer=peer,
            weather=Weather(latency_ms=latency_ms),
            rng=Random(self._rng.random()),
            trace=lambda *_: None,
            sent=lambda _: None,
            acted=lambda _: None,
        )

    @property
    def engine(self) -> Engine | None:
        """Of the session, if it serves."""
        engine = None if self.process.dead else self.agent.engine
        serves = engine is not None and engine.ready.is_set() and engine.session.alive
        return engine if serves and self.server.accepts else None

    async def run(self) -> None:
        """One life after the other."""
        while True:
            context = self.process.freezer.context
            self._life = asyncio.get_running_loop().create_task(self.agent.run(), context=context)
            try:
                await self._life
            except asyncio.CancelledError:
                if not self.process.dead:
                    raise  # the run is over
            except Exception:
                if not self.process.dead:
                    raise
            self.process.kill()
            await asyncio.sleep(self._rng.choice(_AWAY_S))
            self._begin()

    def kill(self) -> None:
        """SIGKILL."""
        if self._life is not None and not self._life.done():
            self._world.count("agents killed")
            self.process.kill()
            self._cancel(self._life)

    def _cancel(self, life: asyncio.Task[None]) -> None:
        if not life.done():
            life.cancel()
            self._world.loop.call_later(0.01, self._cancel, life, context=NOBODY)


class World:
    """See the module.

    Args:
        folder: becomes the directory of objects.
    """

    def __init__(self, seed: int, folder: Path, log: Log) -> None:
        self.seed = seed
        self.log = log
        self.loop = VirtualLoop(BEGIN_S)
        self.loop.set_exception_handler(self._callback_failed)
        self.grace = Grace()
        self.counts: dict[str, int] = {}
        self.bucket = _Objects(self.wall_ms, folder)
        self.metadata = _Metadata(self.wall_ms)
        self.agent_settings = _settings(log)
        self._rng = Random(f"world {seed}")
        self.topics = {
            name: Topic(
                name=name,
                topic_id=UUID(int=self._rng.getrandbits(128)),
                partitions=self._rng.randint(1, 2),
                configs=configs,
            )
            for name, configs in log.configs.items()
        }
        self.oracle = LogOracle(
            topics={topic.topic_id: name for name, topic in self.topics.items()},
            compacted=log.compacted,
            read=self.bucket.read,
            now_s=lambda: self.loop.now_s,
            expect=self.expect,
        )
        self.bucket.created = self.oracle.created
        self.metadata.put = self.oracle.put
        self.calm = False
        """Nothing happens any more but what agents do by themselves."""
        self._failed: list[BaseException] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[asyncio.Task[None]] = []
        self.machines = [Machine(self, number) for number in range(1, log.agents + 1)]

    # ── Time ──

    def now_ms(self) -> float:
        """Virtual time."""
        return self.loop.now_s * 1000

    def wall_ms(self) -> int:
        """The same of every machine."""
        return int(self.loop.now_s * 1000)

    def count(self, what: str) -> None:
        """For the summary."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def expect(self, holds: bool, message: str) -> None:
        """A promise."""
        if not holds:
            error = Broken(f"seed {self.seed}, at {self.loop.now_s - BEGIN_S:.3f} s: {message}")
            self._failed.append(error)
            raise error

    def pass_time(self, seconds: float) -> None:
        """Everything goes on for so long, but for the caller."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self._failed.append(error)
        if self._failed:
            raise self._failed[0]

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Let time pass until *condition*."""
        until_s = self.loop.now_s + seconds
        while not condition():
            self.expect(self.loop.now_s < until_s, f"after {seconds} s: {what}")
            self.pass_time(0.5)

    def _callback_failed(self, _: object, context: dict[str, Any]) -> None:
        if "handle" in context:  # nobody awaits a callback
            self._failed.append(context.get("exception") or Broken(context["message"]))

    # ── Its life ──

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Agents and clients live within."""
        gc.disable()  # a collection would get turns of the loop
        try:
            self._store()
            self._tasks = [self._task(machine.run()) for machine in self.machines]
            self._clients = [self._task(self._produce(name)) for name in self.topics]
            self._clients += [self._task(self._kill()), self._task(self._administer())]
            self._tasks += self._clients
            self.wait_for(
                "no agent", lambda: any(m.agent.ready.is_set() for m in self.machines), 60
            )
            yield
        finally:
            self._end_tasks()
            self.loop.close()
            gc.enable()

    def settle(self) -> None:
        """Clients and faults end; returns when all agents serve, and all that was sent is there."""
        self.calm = True
        self.wait_for("a client waits", lambda: all(task.done() for task in self._clients), 120)
        self.wait_for("an agent is away", lambda: all(m.engine for m in self.machines), 60)

    def is_sealed(self) -> bool:
        """Whether all that is committed is in segments."""
        return all(self.oracle.sealed_ends[log] == self.oracle.end(log) for log in self.logs())

    def logs(self) -> list[LogOf]:
        """All partitions."""
        return [LogOf(name, p) for name, t in self.topics.items() for p in range(t.partitions)]

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work)

    def _store(self) -> None:
        ids = ProducerIdBlock(first_producer_id=0, size=_PRODUCER_IDS, node_id=0)  # our producers'
        puts = [Put(topic_key(name), encode_topic(topic)) for name, topic in self.topics.items()]
        puts.append(Put(PRODUCER_IDS_KEY, encode_producer_id_block(ids)))
        puts.append(Put(CLUSTER_KEY, CLUSTER))
        now(self.metadata.txn((), puts))
        now(self.bucket.create(layout.CLUSTER_KEY, [encode_cluster(AUTHOR, self.grace)]))

    def _end_tasks(self) -> None:
        for _ in range(_LAST_TURNS):
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(asyncio.sleep(0))

    # ── Clients ──

    async def _kill(self) -> None:
        rng = Random(f"kills {self.seed}")
        while not self.calm:
            await asyncio.sleep(rng.uniform(1, 15))
            rng.choice(self.machines).kill()

    async def _administer(self) -> None:
        rng = Random(f"admin {self.seed}")
        while not self.calm:
            await asyncio.sleep(rng.uniform(0.3, 4))
            machine = rng.choice(self.machines)
            topic = self.topics[rng.choice(list(self.topics))]
            deletes = self.log.deletes and topic.name not in self.log.compacted
            if machine.engine is None:
                continue
            with contextlib.suppress(TimeoutError, RefusedError):
                async with asyncio.timeout(_PATIENCE_S):
                    await machine.process.do(
                        self._delete(machine, topic, rng)
                        if deletes and rng.random() < 0.6
                        else self._extend(machine, topic.name)
                    )

    async def _extend(self, machine: Machine, name: str) -> None:
        topics = machine.agent.broker.topics
        known = topics.by_name.get(name)
        if known is None or known.partitions >= MOST_PARTITIONS:
            return
        self.topics[name] = await topics.create_partitions(known, known.partitions + 1)
        self.count("partitions added")

    async def _delete(self, machine: Machine, topic: Topic, rng: Random) -> None:
        log = LogOf(topic.name, rng.randrange(topic.partitions))
        start, end = self.oracle.start(log), self.oracle.end(log)
        offset = rng.choice((end, min(end, start + rng.randint(1, 12))))
        wanted = DeleteRecordsPartition(partition_index=log.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=log.topic, partitions=[wanted])], timeout_ms=5_000
        )
        context = RequestContext(
            api_version=2, client_id="deletes", client_host="localhost", listener="PLAINTEXT"
        )
        response = await delete_records.handle(machine.agent.broker, request, context)
        if not response.topics[0].partitions[0].error_code:
            self.count("deletions of records")

    async def _produce(self, name: str) -> None:
        rng = Random(f"producer {name} {self.seed}")
        producer_id = list(self.topics).index(name)
        sequences: dict[int, int] = {}
        number = 0
        while not self.calm:
            await asyncio.sleep(rng.choice((0.02, 0.2, 0.2, 1.0)))
            partition = rng.randrange(self.topics[name].partitions)
            sequence = sequences.get(partition, 0)
            count = rng.randint(1, 5)
            values = [f"{name}/{number + i:02}".encode() for i in range(count)]
            batch = make_batch(
                values,
                timestamp_ms=self.wall_ms(),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                keyed=name in self.log.compacted,
            )
            base = await self._acknowledged(LogOf(name, partition), batch)
            rows = self.oracle.rows[LogOf(name, partition)]
            found = [rows.get(base + i) for i in range(count)]
            self.expect(found == values, f"{values} were acknowledged at {base}: {found}")
            number += count
            sequences[partition] = sequence + count

    async def _acknowledged(self, log: LogOf, batch: bytearray) -> int:
        """The offset of the batch: it is sent until some agent says so."""
        while True:
            led = self._leading(log)
            if led is not None:
                with contextlib.suppress(RefusedError, UnavailableError, TimeoutError):
                    return await _sent(led, batch)
            await asyncio.sleep(_ASKS_S)

    def _leading(self, log: LogOf) -> _Led | None:
        for machine in self.machines:
            engine = machine.engine
            led = None if engine is None else engine.log(*log)
            if engine is not None and led is not None and led.state is not State.CLOSED:
                return _Led(machine.process, engine, led)
        return None


async def _sent(led: _Led, batch: bytearray) -> int:
    """The offset of a batch that is committed.

    Raises:
        RefusedError, UnavailableError, TimeoutError: it is to be sent again.
    """
    async with asyncio.timeout(_PATIENCE_S):
        await led.process.do(led.engine.loaded(led.log))
    if led.process.dead:
        raise UnavailableError("killed")
    waiter = _Acknowledgement()
    header = check_batch(batch, from_client=True)
    fields: BatchHeaderFields = (
        header.record_count,
        header.attributes,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_timestamp,
        header.max_timestamp,
    )
    admitted = led.process.freezer.context.copy().run(
        led.engine.admission.admit,
        led.log,
        memoryview(bytearray(batch)),
        fields,
        -1,
        ConnectionActivity(),
        waiter,
    )
    while not admitted.answered and not waiter.done.done():
        await asyncio.wait([waiter.done], timeout=_ASKS_S)
        if led.process.dead:
            raise UnavailableError("killed")
    if not admitted.answered and not waiter.done.result():
        raise UnavailableError("not led any more")
    return admitted.base_offset


async def _offload(fn: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0.002)
    return fn(*args)


def _settings(log: Log) -> AgentSettings:
    """Everything that agents do by themselves, within seconds."""
    engine = replace(
        SETTINGS,
        seal=replace(SETTINGS.seal, segment_ms=log.segment_ms, small_ms=log.segment_ms),
        compaction=CompactionSettings(
            backoff_ms=400, cleaner=CleanerSettings(map_bytes=24_000, reader_ms=100)
        ),
        merging=MergeSettings(interval_ms=700, factor=2),
        retention=RetentionSettings(check_interval_ms=1_000),
    )
    return AgentSettings(
        http_address="localhost:9644",
        broker=BrokerSettings(log_retention_ms=-1, log_retention_check_interval_ms=1_000),
        engine=engine,
        reads=READ_SETTINGS,
        group_snapshot_interval_ms=None,
    )
