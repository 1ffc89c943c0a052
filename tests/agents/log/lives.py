"""Agents that are killed and started again: real engines on memory stores and a simulated disk.

    @on_virtual_time
    async def test_…() -> None:
        world = World()
        life = await world.start()
        life.produce("t", 0, b"v", acks=ONE)
        life.kill()
        life = await world.start()          # the next process on the same disk

One world is one cluster: `World.other_disk` is another machine of it.  Nothing fails by
chance; what is to fail is told so (`Bucket.gate`, `Platter.full`, `SimDisk.sync_fails`).
"""

import asyncio
import contextlib
import functools
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, ParamSpec, cast
from uuid import UUID

from driftlog_agents.cluster.cluster_file import Believed, Ownership
from driftlog_agents.cluster.view import TopicEntry, placement_order
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.ingest.admission import Admitted
from driftlog_agents.log.ingest.buffer_files import BufferSettings
from driftlog_agents.log.leadership.takeover import Takeover
from driftlog_agents.log.local.buffer_format import entries
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.objects.footer_cache import FooterCache
from driftlog_agents.log.objects.manifest_check import ManifestCheck
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.known_manifests import KnownManifests
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import object_range
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.policy import TopicSealPolicy
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session_ports import Ports
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import ALL_ROLES, Agent, Role, Topic, TopicPartition
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Delete, MetadataStore, Put
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.batches.batch import HEADER_BYTES, build_batch, check_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record, iterate_records
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import (
    AlreadyExistsError,
    Listing,
    ObjectInfo,
    ObjectStore,
)
from tests.simulation.faults import Process
from tests.simulation.loop import VirtualLoop
from tests.simulation.sim_disk import Platter, SimDisk
from tests.support.clusters import MARK, witnessed
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

ALL, ONE, NOBODY = -1, 1, 0
_SINCE_1970_MS = 1_700_000_000_000
"""When virtual time begins."""
P = ParamSpec("P")
SETTINGS = EngineSettings(buffer=BufferSettings(file_bytes=2_000))


def on_virtual_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on a loop whose time passes when nobody has anything to do.

    A test that nobody can end any more raises `DeadlockError`; one that waits for more than an
    hour has failed as well.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(asyncio.wait_for(test(*args, **kwargs), 3_600))
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()

    return run


def make_batch(
    values: Sequence[bytes],
    *,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp_ms: int = 1,
) -> bytearray:
    """A batch of *values*, as a producer sends it."""
    records = (encode_record(Record(0, i, None, v, ())) for i, v in enumerate(values))
    return build_batch(
        b"".join(records),
        base_offset=0,
        last_offset_delta=len(values) - 1,
        record_count=len(values),
        attributes=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def values_of(batch: Buffer) -> list[tuple[int, int, bytes]]:
    """(offset, leader epoch, value) of each record."""
    header = check_batch(batch, from_client=False)
    section = memoryview(batch)[HEADER_BYTES:]
    return [
        (header.base_offset + r.offset_delta, header.partition_leader_epoch, r.value or b"")
        for r in iterate_records(section, header.record_count)
    ]


def now_ms() -> float:
    """Virtual time."""
    return asyncio.get_running_loop().time() * 1000


class Keys(set[str]):
    """All in which one of these words is."""

    def __contains__(self, key: object) -> bool:
        return any(word in str(key) for word in self)


class Bucket(MemoryObjectStore):
    """Takes flush objects when its gate is open; knows what it was asked for."""

    def __init__(self) -> None:
        super().__init__(lambda: int(now_ms()))
        self.gate = asyncio.Event()
        self.gate.set()
        self.puts: list[str] = []
        """Keys of flush objects, as they were asked for."""
        self.put_s = 0.0
        """How long a PUT of one takes."""
        self.fates: list[Exception | None] = []
        """Of the next PUTs of flush objects: an error, after it happened; None: no answer, ever."""
        self.given_up: list[str] = []
        """Of those without an answer, those that nobody waits for any more."""
        self.requests = 0
        """Of any kind."""
        self.manifests = asyncio.Event()
        """Cleared: reads of anything but flush objects are refused."""
        self.manifests.set()
        self.withheld: set[str] = set()
        """Objects that are there, and not given."""
        self.lists_fail: bool | None = False
        """Listings are refused; None: not answered."""
        self.hidden = ""
        """Objects that listings do not show."""
        self.hidden_keys: set[str] = set()
        """As `hidden`, whole keys; a page shows what comes after them."""
        self.lost_creates = 0
        """So many answers to `create` are lost."""
        self.refused_creates = False
        """Whether `create` is refused."""
        self.silent: set[str] = set()
        """Objects of which reads are never answered."""

    def keys(self, part: str = "") -> list[str]:
        """Of all objects those that contain *part*, in order, whatever listings show."""
        return sorted(key for key in self._objects if part in key)

    def damage(self, part: str) -> None:
        """Noise in place of the objects that `keys` gives."""
        for key in self.keys(part):
            self._objects[key] = b"damaged", 0

    @property
    def away(self) -> bool:
        """Whether flush objects wait."""
        return not self.gate.is_set()

    @away.setter
    def away(self, away: bool) -> None:
        if away:
            self.gate.clear()
        else:
            self.gate.set()

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        self.requests += 1
        if key.startswith("flush/"):
            self.puts.append(key)
            if self.fates:
                await self._fail(self.fates.pop(0), key, body)
            await self.gate.wait()
            await asyncio.sleep(self.put_s)
        await super().put(key, body)

    async def _fail(self, fate: Exception | None, key: str, body: Sequence[Buffer]) -> None:
        if fate is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up.append(key)
        elif not isinstance(fate, UnavailableError):
            await super().put(key, body)
        raise cast(Exception, fate)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        self.requests += 1
        if self.refused_creates:
            raise UnavailableError("slow down")
        if not self.lost_creates:
            await super().create(key, body)
            return
        self.lost_creates -= 1
        with contextlib.suppress(AlreadyExistsError):
            await super().create(key, body)
        raise OutcomeUnknownError("reset")

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.requests += 1
        if not key.startswith("flush/") and not self.manifests.is_set():
            raise UnavailableError("slow down")
        if key in self.silent:
            await asyncio.Event().wait()
        if key in self.withheld:
            raise UnavailableError("no read quorum")
        return await super().get(key, start, end)

    def _page(self, prefix: str, start_after: str, size: int) -> Sequence[ObjectInfo]:
        page = super()._page(prefix, start_after, size + len(self.hidden_keys))
        return [info for info in page if info.key not in self.hidden_keys][:size]

    async def list(self, *args: Any, **options: Any) -> AsyncIterator[Listing]:
        self.requests += 1
        if self.lists_fail:
            raise UnavailableError("slow down")
        if self.lists_fail is None:
            await asyncio.Event().wait()
        async for page in super().list(*args, **options):
            shown = [
                info for info in page.objects if not self.hidden or self.hidden not in info.key
            ]
            yield Listing(tuple(shown), page.store_now_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests += 1
        await super().delete(keys)


class Request:
    """One that waits, and what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._event = asyncio.Event()

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._event.set()

    def committed(self, log: PartitionLog) -> None:
        self._tell("committed")

    def synced(self, log: PartitionLog) -> None:
        self._tell("synced")

    def unsynced(self, log: PartitionLog) -> None:
        pass

    def lost(self, log: PartitionLog) -> None:
        self._tell("lost")

    async def answer(self, seconds: float = 60) -> str:
        """What it is told, within virtual *seconds*."""
        async with asyncio.timeout(seconds):
            await self._event.wait()
        assert len(self.told) == 1, "told twice"
        return self.told[0]


@dataclass(slots=True)
class _Spool:
    file: io.BytesIO = field(default_factory=io.BytesIO)

    def body(self) -> list[bytes]:
        return [self.file.getvalue()]


@contextlib.contextmanager
def _spool() -> Iterator[_Spool]:
    yield _Spool()


async def _offload(fn: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0.001)
    return fn(*args)


class World:
    """A cluster's stores, and one disk; *topics*: name → partitions."""

    def __init__(self, **topics: int) -> None:
        self.rng = Random(1)
        self.metadata = MemoryMetadataStore(lambda: int(now_ms()))
        self.bucket = Bucket()
        self.platter = Platter()
        self.topics = {
            name: Topic(name=name, topic_id=UUID(int=n + 1), partitions=partitions)
            for n, (name, partitions) in enumerate((topics or {"t": 2}).items())
        }
        self.node_id = 1
        self.roles = ALL_ROLES
        """Of its agents from the next start on."""
        self.pressure: list[bool] = []
        """When its agents hold producers, and when they go on."""
        self.wall_skew_ms = 0.0
        self.wall_ms: Callable[[], int] = lambda: int(_SINCE_1970_MS + now_ms() + self.wall_skew_ms)
        """The wall clock of its agents."""
        self.sealing: dict[str, TopicSealPolicy] = {}
        self.retention: dict[str, TopicRetention] = {}
        self.compaction: dict[str, CompactionPolicy] = {}
        """What the topics' configs say, by name."""
        self.spool: Callable[[], AbstractContextManager[Spool]] = _spool
        self.ownership: Callable[[], Ownership] = Believed
        """What its agents ask whose the bucket is."""
        self.offloaded: set[str] = set()
        """Functions that ran off the event loop, by name."""
        self._created = False

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Where threads would do it."""
        self.offloaded.add(fn.__name__)
        return await _offload(fn, *args)

    def other_disk(self) -> "World":
        """Another machine of the same cluster."""
        other = World()
        other.node_id = self.node_id + 1
        other.rng = Random(other.node_id)
        other.metadata, other.bucket = self.metadata, self.bucket
        other.topics, other._created = self.topics, True
        return other

    async def start(
        self,
        settings: EngineSettings = SETTINGS,
        *,
        ready: bool = True,
        metadata: Callable[[MetadataStore], MetadataStore] = lambda store: store,
    ) -> "Life":
        """A process on this disk; *ready*: wait until it serves."""
        if not self._created:
            self._created = True
            await self.metadata.txn(
                (), [MARK, *(Put(topic_key(t.name), encode_topic(t)) for t in self.topics.values())]
            )
        life = Life(self, settings, metadata(self.metadata))
        if ready:
            await life.ready()
        return life

    async def delete(self, name: str) -> None:
        """The topic's key goes: for everybody who reads it, the topic is gone."""
        await self.metadata.txn((), [Delete(topic_key(name))])

    def set_aside(self, partition: int = 0, topic: str = "t") -> list[tuple[int, int, bytes]]:
        """What is set aside of a partition on this disk: (offset, leader epoch, value)."""
        wanted = (self.topics[topic].topic_id, partition)
        return [
            found
            for files in self.platter.kept.values()
            for number, data in sorted(files.items())
            for entry in entries(data, number)
            if (entry.topic_id, entry.partition) == wanted
            for found in values_of(entry.batch)
        ]

    @property
    def directories(self) -> list[str]:
        """Sessions whose directories are on the disk."""
        return list(self.platter.sessions)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Asyncio logs an error that no test awaits when the garbage collector comes, in the middle of
    another test; Python 3.11 formats it with `ast.parse`, which fails inside itself (gh-106905)."""
    if not task.cancelled():
        task.exception()


class Life:
    """One process with one session."""

    def __init__(
        self,
        world: World,
        settings: EngineSettings,
        metadata: MetadataStore,
        witness: StoreWitness | None = None,
    ) -> None:
        self.world = world
        self.process = Process("agent", cast(VirtualLoop, asyncio.get_running_loop()))
        rng = Random(world.rng.getrandbits(64))
        self.disk = SimDisk(world.platter, self.process, rng)
        self.session_id = f"{rng.getrandbits(128):032x}"
        self.behind = metadata
        self.metadata = (
            witnessed(metadata) if witness is None else WitnessedStore(metadata, witness)
        )
        self.cluster = ClusterWatch(self.metadata)
        self.engine = Engine(
            ports=Ports(
                metadata=self.metadata,
                objects=world.bucket,
                disk=self.disk,
                rng=rng,
                now_ms=now_ms,
                wall_ms=lambda: world.wall_ms(),
                offload=world.offload,
                spool=lambda: world.spool(),
                backpressure=Backpressure(world.pressure.append),
                ownership=world.ownership(),
            ),
            agent=Agent(
                node_id=world.node_id,
                session_id=self.session_id,
                listeners=(),
                http_address="localhost:9644",
                rack=None,
                started_at_ms=0,
                roles=world.roles,
            ),
            cluster=self.cluster,
            settings=settings,
            topic_sealing=world.sealing,
            topic_retention=world.retention,
            topic_compaction=world.compaction,
        )
        self.cluster.watch_topics(self._topic_changed)
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(_retrieve)

    async def _run(self) -> None:
        watching = asyncio.get_running_loop().create_task(self.cluster.run())
        try:
            await self.engine.run()
        finally:
            watching.cancel()

    def _topic_changed(self, old: TopicEntry | None, new: TopicEntry | None) -> None:
        if new is not None:
            self.engine.know(new.topic)
        elif old is not None:
            self.engine.remove_topic(old.topic.topic_id)

    async def ready(self) -> None:
        """Until it serves and, with the role, leads everything; what ends it before is raised."""
        ready = asyncio.get_running_loop().create_task(self._leads_all())
        async with asyncio.timeout(120):
            await asyncio.wait((ready, self.task), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self.task.done():
            await self.task

    async def _leads_all(self) -> None:
        await self.engine.ready.wait()
        if Role.SERVE not in self.engine.agent.roles:
            return
        view = self.cluster.view
        wanted = [
            TopicPartition(topic_id, n)
            for topic_id, count in placement_order(view.topics.values())
            for n in range(count)
        ]
        while not all(self.engine.find(tp) for tp in wanted):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def log(self, partition: int = 0, topic: str = "t") -> PartitionLog:
        """A partition that is led here."""
        log = self.engine.log(topic, partition)
        assert log is not None
        return log

    def admit(
        self,
        *values: bytes,
        acks: int = ALL,
        partition: int = 0,
        topic: str = "t",
        producer: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        timestamp_ms: int = 1,
        source: ConnectionActivity | None = None,
    ) -> tuple[Admitted, Request]:
        """One batch; what admission says, and the request that waits if it must."""
        batch = make_batch(
            values, producer=producer, epoch=epoch, sequence=sequence, timestamp_ms=timestamp_ms
        )
        header, request = check_batch(batch), Request()
        admitted = self.engine.admission.admit(
            self.log(partition, topic),
            memoryview(batch),
            (
                header.record_count,
                header.attributes,
                producer,
                epoch,
                sequence,
                0,
                header.max_timestamp,
            ),
            acks,
            source or ConnectionActivity(now_ms()),
            request,
        )
        return admitted, request

    def produce(self, *values: bytes, **options: Any) -> Request:
        """As `admit`; the request."""
        return self.admit(*values, **options)[1]

    def kill(self) -> None:
        """SIGKILL: nothing it still tries has an effect."""
        self.process.dead = True
        self.task.cancel()

    def power_off(self) -> None:
        """And of what was not synced any part is lost."""
        self.kill()
        self.world.platter.lose_power(self.world.rng)

    async def stop(self) -> None:
        """SIGTERM: drain, release, leave."""
        self.engine.stop()
        await self.task

    async def lose_session(self) -> None:
        """Its lease is revoked behind its back; returns when the engine has ended."""
        await self.world.metadata.revoke_lease(self.engine.session.lease_id)
        with contextlib.suppress(FencedError):
            await self.task

    async def seal(self, partition: int = 0, topic: str = "t") -> int:
        """Turn all that is committed into a segment."""
        return await self.engine.sealer.seal(self.log(partition, topic))

    async def committed(self, partition: int = 0, topic: str = "t") -> list[tuple[int, int, bytes]]:
        """(offset, leader epoch, value) of what the bucket has, once nothing is in flight."""
        async with asyncio.timeout(120):
            while not self.engine.flusher.pipeline.idle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        log, found = self.log(partition, topic), []
        for tail in log.slices:
            data: Any = tail.data
            for i in range(tail.first, tail.first + tail.count):
                batch = await self.world.bucket.get(*object_range(data, i, i + 1, tail.stored_at))
                found += values_of(batch)
        return found


def takeover_of(
    session: Session,
    objects: ObjectStore,
    topics: dict[UUID, TopicEntry],
    now_ms: Callable[[], float],
) -> Takeover:
    """As an engine has it, without one."""
    footers = FooterCache(session=session, objects=objects, now_ms=now_ms)
    producer_ids = ProducerIdFloor(session, session.node_id)
    return Takeover(
        session=session,
        footers=footers,
        check=ManifestCheck(
            objects=objects,
            probes=footers.probes,
            producer_ids=producer_ids,
            manifests=KnownManifests(),
            now_ms=now_ms,
        ),
        producer_ids=producer_ids,
        topics=topics,
    )
