"""An agent with its sockets, in this process: what a test wants to hold up, it holds up.

    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("flights", 1)
        answer = await client.produce("flights", {0: batch})

Everything is real but the moment at which stores and worker threads answer: see `Gate`.
Shell.
"""

import asyncio
import itertools
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Refusals
from driftlog_agents.foundation.fair_queue import NOBODY
from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.foundation.offload import on_threads
from driftlog_agents.handlers.produce.traces import ProduceTraces
from driftlog_agents.health.event_loop_monitor import EventLoopMonitor
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.local.spool import spool_in
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.sealed_cache import SealedCache
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.network.listeners import ListenAt
from driftlog_agents.network.server import Server
from driftlog_agents.process.composition.agent import (
    AgentPorts,
    AgentProcess,
    AgentSettings,
    now_ms,
    wall_ms,
)
from driftlog_agents.process.composition.cluster_identity import ClusterIdentity
from driftlog_agents.process.metrics.observed import Observed
from driftlog_agents.protocol.api import Api
from driftlog_agents.protocol.messages import create_topics, fetch, produce
from driftlog_agents.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from driftlog_agents.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from driftlog_agents.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from driftlog_metadata.schema.model import ALL_ROLES, Role
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.counted_store import StoreRequests
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import Listing, ObjectInfo, ObjectStore

Q = TypeVar("Q")
R = TypeVar("R")

MiB = 1024 * 1024
_ANSWER_S = 30.0

_LIVES = Counter[Path]()
"""Of agents on each bucket: no two of them draw the same ids."""

ENGINE = EngineSettings(
    session=SessionSettings(ttl_ms=60_000, request_deadline_ms=30_000),
    seal=SealSettings(check_interval_ms=50),
)
"""Sessions that outlive a busy machine."""


class Gate:
    """Where requests of one kind wait while it is closed, or fail."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.error: Exception | None = None
        self.waiting = 0

    def close(self) -> None:
        """Whoever comes waits."""
        self._open.clear()

    def open(self) -> None:
        """All who wait go on."""
        self._open.set()

    async def passed(self) -> None:
        """Return when it is open.

        Raises:
            Exception: `error`, if there is one.
        """
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error


class GatedObjects:
    """A bucket whose writes and reads can be held up, each kind for itself."""

    def __init__(self, behind: ObjectStore) -> None:
        self._behind = behind
        self.writes = Gate()
        self.reads = Gate()
        self.reads_of = self.writes_of = ""
        """Only names with this in them come to the gate."""

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if self.writes_of in key:
            await self.writes.passed()
        await self._behind.put(key, body)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        if self.writes_of in key:
            await self.writes.passed()
        await self._behind.create(key, body)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        if self.reads_of in key:
            await self.reads.passed()
        return await self._behind.get(key, start, end)

    async def stat(self, key: str) -> ObjectInfo:
        return await self._behind.stat(key)

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        async for page in self._behind.list(prefix, start_after=start_after, page_size=page_size):
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._behind.delete(keys)

    async def close(self) -> None:
        await self._behind.close()


class Crowd:
    """Others whose answers take all the room that there is."""

    trusted, client = True, NOBODY

    def go_on(self) -> None:
        raise AssertionError("it does not wait")


class Serving:
    """One agent on a directory, listening.

    Args:
        path: everything of the agent's, its bucket included.
        broker: its limits; the location is *path*'s.
        port: 0: the system chooses.
        listeners: more than one, or another than that of *port*.
        disk, metadata: wrap those ports.
        beside: an agent that was begun, whose metadata store and bucket it shares.
    """

    def __init__(
        self,
        path: Path,
        *,
        broker: BrokerSettings | None = None,
        port: int = 0,
        listeners: tuple[ListenAt, ...] = (),
        engine: EngineSettings = ENGINE,
        disk: Callable[[AgentDisk], AgentDisk] = lambda disk: disk,
        metadata: Callable[[MetadataStore], MetadataStore] = lambda store: store,
        beside: "Serving | None" = None,
        rack: str | None = None,
        roles: frozenset[Role] = ALL_ROLES,
        traces: ProduceTraces | None = None,
    ) -> None:
        self._path = path
        self._traces = traces
        self.bucket: Path = path / "bucket" if beside is None else beside.bucket
        self._listeners = listeners or (ListenAt(port=port),)
        self._settings = AgentSettings(
            broker=replace(broker or BrokerSettings(), location=str(self.bucket)),
            engine=engine,
            rack=rack,
            roles=roles,
        )
        self._beside = beside
        self.metadata_store: MetadataStore
        self._wrap_disk = disk
        self._wrap_metadata = metadata
        self._stack = AsyncExitStack()
        self.rewrites = Gate()
        """In front of the thread that rewrites batches."""
        self.objects: GatedObjects
        self.process: AgentProcess
        self.server: Server
        self.loop_watch = EventLoopMonitor()
        self.running: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        try:
            await self.begin()
            ready = asyncio.create_task(self.process.ready.wait())
            await asyncio.wait(
                (ready, self.running), timeout=60, return_when=asyncio.FIRST_COMPLETED
            )
            if self.running.done():
                ready.cancel()
                await self.running
            assert ready.done(), "not ready after a minute"
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def begin(self) -> None:
        """Start, and do not wait until it is ready."""
        _LIVES[self.bucket] += 1
        self._path.mkdir(parents=True, exist_ok=True)
        disk = PosixDisk(self._path)
        self._stack.callback(disk.close)
        if self._beside is None:
            store = await SqliteMetadataStore.open(
                self._path / "metadata.db", lambda: time.time_ns() // 1_000_000
            )
            self._stack.push_async_callback(store.close)
            self.metadata_store = store
        else:
            self.metadata_store = self._beside.metadata_store
        self.objects = GatedObjects(DirectoryObjectStore(self.bucket, fsync=False))
        self._stack.push_async_callback(self.objects.close)
        pool = self._stack.enter_context(ThreadPoolExecutor(3))

        offload = on_threads(pool)

        async def offload_produce(fn: Callable[..., Any], *args: Any) -> Any:
            await self.rewrites.passed()
            return await offload(fn, *args)

        refusals, disk_port = Refusals(), self._wrap_disk(disk)
        broker, rng = self._settings.broker, Random(_LIVES[self.bucket])
        self.server = Server(
            now_ms=now_ms,
            socket_request_max_bytes=broker.socket_request_max_bytes,
            max_connections=broker.max_connections,
            connections_max_idle_ms=broker.connections_max_idle_ms,
            limits=broker.limits,
            refusals=refusals,
            listeners=self._listeners,
        )
        ports = AgentPorts(
            metadata=self._wrap_metadata(self.metadata_store),
            objects=self.objects,
            disk=disk_port,
            identity=ClusterIdentity(
                objects=self.objects,
                disk=disk_port,
                location=broker.location,
                session_ms=self._settings.engine.session.ttl_ms,
                rng=rng,
            ),
            server=self.server,
            rng=rng,
            secrets=Random(1),
            now_ms=now_ms,
            wall_ms=wall_ms,
            offload_seal=offload,
            offload_read=offload,
            offload_groups=offload,
            offload_produce=offload_produce,
            offload_rewrite=offload_produce,
            offload_upkeep=offload,
            offload_disk=asyncio.to_thread,
            spool=spool_in(self._path / "spool"),
            refusals=refusals,
            traces=self._traces,
        )
        self.process = AgentProcess(self._settings, ports)
        self.running = asyncio.create_task(self.process.run())
        watching = asyncio.create_task(self.loop_watch.run())
        self._stack.callback(watching.cancel)
        self._stack.push_async_callback(self.leave)

    async def leave(self) -> None:
        """As SIGTERM: return when it has left, and nothing is counted of connections any more."""
        for gate in (self.objects.writes, self.objects.reads, self.rewrites):
            gate.error = None
            gate.open()
        self.process.stop()
        await self.running
        await eventually(lambda: not self.server.connections)
        if (dispatcher := getattr(self.process, "dispatcher", None)) is not None:  # it has begun
            await eventually(lambda: dispatcher.producing.waiting.held_bytes == 0)
        held = self.held_bytes
        assert not any(held.values()), f"counted of connections that are gone: {held}"

    async def lose_session(self) -> None:
        """As if the lease had run out; returns when the next session serves."""
        engine, sessions = self.engine, self.process.sessions
        await self.process.broker.metadata.revoke_lease(engine.session.lease_id)
        why = "a test took the session away"
        engine.flusher.end(why, FencedError(why))
        await eventually(lambda: self.process.sessions > sessions)

    async def close(self) -> None:
        """Leave, and give everything back; for who has called `begin` alone."""
        await self._stack.aclose()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def observed(self) -> Observed:
        """What its HTTP port shows."""
        return Observed(
            agent=self.process,
            server=self.server,
            loop_watch=self.loop_watch,
            store_requests=StoreRequests(),
            log_lines_dropped=dict,
        )

    @property
    def ports(self) -> list[int]:
        """Where each listener is, whatever is advertised."""
        return [sockets[0].getsockname()[1] for sockets in self.server.bound]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.process.address.rpartition(":")[2])

    @property
    def held_bytes(self) -> dict[str, int]:
        """What is counted of all connections, in each budget."""
        server = self.server
        return {
            "frames": server.frame_budget.held_bytes,
            "requests": server.requests.budget.held_bytes,
            "answers": server.answers.held_bytes,
        }

    @property
    def engine(self) -> Engine:
        """The engine of the present session."""
        assert self.process.broker.engine is not None
        return self.process.broker.engine

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """A partition that is led here."""
        log = self.engine.log(topic, partition)
        assert log is not None
        return log

    async def seal(self, topic: str) -> None:
        """Everything that is committed, and kept nowhere else: it is read from its segments."""
        self.engine.sealer.sealed_cache = SealedCache(max_bytes=0)
        for log in self.engine.topics[topic].logs:
            assert log is not None
            await self.engine.sealer.seal(log)

    def client(self, address: str = "127.0.0.1") -> "Client":
        """A connection from *address*, for `async with`."""
        return Client(self.port, address)


class Client:
    """One connection that says what it is told to, in any order."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._port = port
        self._address = address
        self._ids = itertools.count(1)
        self.asked: dict[int, tuple[Api[Any, Any], int]] = {}
        self._reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(self._address, 0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def stop_reading(self) -> None:
        """Take nothing from the socket any more."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    # ── Any request ──

    def encode(self, api: Api[Q, R], version: int, request: Q) -> tuple[int, bytes]:
        """The correlation id and the frame of a request whose answer `receive` will know."""
        number = next(self._ids)
        self.asked[number] = (api, version)
        return number, api.encode_request(version, number, "test", request)

    def send(self, api: Api[Q, R], version: int, request: Q) -> int:
        """Send a request; returns its correlation id."""
        number, frame = self.encode(api, version, request)
        self.writer.write(frame)
        return number

    async def receive(self) -> tuple[int, Any]:
        """The next answer: its correlation id, and what it says.

        Raises:
            IncompleteReadError: the agent has closed the connection.
        """
        async with asyncio.timeout(_ANSWER_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            data = await self._reader.readexactly(size)
        (number,) = struct.unpack_from(">i", data)
        api, version = self.asked.pop(number)
        return api.decode_response(version, data)

    async def call(self, api: Api[Q, R], version: int, request: Q) -> R:
        """Ask, and wait for the answer to it."""
        wanted = self.send(api, version, request)
        number, response = await self.receive()
        assert number == wanted, "answered out of turn"
        return response  # type: ignore[no-any-return]

    async def closed(self) -> bool:
        """Wait for the end of the stream; False: something was said before it."""
        async with asyncio.timeout(_ANSWER_S):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    # ── Requests of these tests ──

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic; `_` in the names of *configs* stands for a dot."""
        new = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[new], timeout_ms=30_000)
        response = await self.call(create_topics.API, 5, request)
        assert [0] == [made.error_code for made in response.topics]

    async def produce(
        self, topic: str, batches: Mapping[int, Buffer], *, acks: int = -1, timeout_ms: int = 30_000
    ) -> dict[int, PartitionProduceResponse]:
        """One batch for each partition."""
        request = producing(topic, batches, acks=acks, timeout_ms=timeout_ms)
        response = await self.call(produce.API, 9, request)
        return {p.index: p for p in response.responses[0].partition_responses}

    def send_produce(
        self, topic: str, batches: Mapping[int, Buffer], *, acks: int = -1, timeout_ms: int = 30_000
    ) -> int:
        """The same, without waiting."""
        return self.send(
            produce.API, 9, producing(topic, batches, acks=acks, timeout_ms=timeout_ms)
        )

    async def fetch(
        self, topic: str, offsets: Mapping[int, int], **limits: int
    ) -> dict[int, PartitionData]:
        """The partitions that were asked for, in that order."""
        response = await self.call(fetch.API, 11, fetching(topic, offsets, **limits))
        return fetched(response)


def producing(
    topic: str, batches: Mapping[int, Buffer], *, acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    """A Produce request of one topic."""
    data = [
        PartitionProduceData(index=partition, records=memoryview(batch))
        for partition, batch in batches.items()
    ]
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def fetching(
    topic: str,
    offsets: Mapping[int, int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * MiB,
    partition_max_bytes: int = 50 * MiB,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    """A Fetch request of one topic."""
    partitions = [
        FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for n, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )


def fetched(response: FetchResponse) -> dict[int, PartitionData]:
    """The partitions of an answer of one topic."""
    assert len(response.responses) == 1
    return {p.partition_index: p for p in response.responses[0].partitions}


def records(data: PartitionData) -> bytes:
    """What came of a partition."""
    assert isinstance(data.records, memoryview)
    return bytes(data.records)


def one_in_a_slice() -> None:
    """From now on whatever is done in slices takes a slice."""
    clock = itertools.count()
    measure_by(asyncio.get_running_loop(), lambda: next(clock) * SLICE_S)


async def eventually(true: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait until *true*.

    Raises:
        TimeoutError: it never was.
    """
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
