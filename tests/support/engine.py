"""A real agent without its sockets: an `Engine` on SQLite and directories, and a `Broker` on it.

    async with RunningAgent(tmp_path) as agent:
        await agent.append("flights", 0, batch)
        response = await metadata.handle(agent.broker, request, agent.context(12))

Leaving drains and releases, as SIGTERM does; entering another on the same path is a restart.
Shell.
"""

import asyncio
import contextlib
import io
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, Any, Self

from driftlog_agents.broker import Broker, BrokerSettings, RequestContext
from driftlog_agents.groups.coordinator import GroupCoordinator
from driftlog_agents.log.engine import Engine, EngineSettings, Ports
from driftlog_agents.log.flush import Source
from driftlog_agents.log.partition import PartitionLog
from driftlog_agents.log.posix_disk import PosixDisk
from driftlog_agents.log.reader import LogReader
from driftlog_agents.log.seal_policy import SealSettings
from driftlog_agents.log.session import SessionSettings
from driftlog_agents.producer_ids import ProducerIds
from driftlog_agents.thread_pools import on_threads
from driftlog_agents.topics import Topics
from driftlog_metadata.errors import FencedError
from driftlog_metadata.model import Agent, Listener
from driftlog_metadata.sqlite_store import SqliteMetadataStore
from driftlog_metadata.store import MetadataStore
from driftlog_metadata.witnessed_store import WitnessedStore
from driftlog_tiering.batch import check_batch
from driftlog_tiering.directory_store import DirectoryObjectStore
from driftlog_tiering.object_store import ObjectStore
from tests.support.clusters import in_cluster

NODE_ID = 7
PATIENT = EngineSettings(
    session=SessionSettings(ttl_ms=60_000, request_deadline_ms=30_000),
    seal=SealSettings(check_interval_ms=50),
)
"""Sessions that outlive a busy machine."""


@dataclass(slots=True)
class _Spool:
    file: IO[bytes] = field(default_factory=io.BytesIO)

    def body(self) -> list[bytes]:
        self.file.seek(0)
        return [self.file.read()]


@contextlib.contextmanager
def _spool() -> Iterator[_Spool]:
    yield _Spool()


class _Produce:
    """A request with acks=all that a test awaits."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, log: PartitionLog) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def synced(self, log: PartitionLog) -> None:
        pass

    def unsynced(self, log: PartitionLog) -> None:
        pass

    def lost(self, log: PartitionLog) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"{log!r} is not led any more"))


class RunningAgent:
    """One agent on a directory.  Sessions that are lost begin again, as in production.

    Args:
        path: everything of the agent's, its bucket included.
        objects: wraps the bucket: what a test wants to refuse or to slow.
        metadata: the same of the metadata store.
    """

    def __init__(
        self,
        path: Path,
        *,
        settings: BrokerSettings | None = None,
        engine: EngineSettings = PATIENT,
        objects: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        metadata: Callable[[MetadataStore], MetadataStore] = lambda store: store,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        seed: int = 1,
    ) -> None:
        self.path = path
        self._settings = settings or BrokerSettings(location=str(path / "bucket"))
        self._engine_settings = engine
        self._wrap_objects = objects
        self._wrap_metadata = metadata
        self._wall_ms = wall_ms
        self._rng = Random(seed + sum(path.as_posix().encode()))
        self._stack = AsyncExitStack()
        self._life: asyncio.Task[None] | None = None
        self._stopping = False
        self.sessions = 0
        self._began = asyncio.Event()
        self.broker: Broker
        self.disk: PosixDisk
        self.metadata: WitnessedStore

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _enter(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.disk = PosixDisk(self.path)
        self._stack.callback(self.disk.close)
        bucket = DirectoryObjectStore(self.path / "bucket", fsync=False)
        self._stack.push_async_callback(bucket.close)
        store = await SqliteMetadataStore.open(
            self.path / "metadata.db", lambda: time.time_ns() // 1_000_000
        )
        self._stack.push_async_callback(store.close)
        objects, metadata = self._wrap_objects(bucket), await in_cluster(self._wrap_metadata(store))
        self.metadata = metadata
        agent = self._agent()
        self.broker = Broker(
            cluster_id="a-cluster",
            agent=agent,
            settings=self._settings,
            metadata=metadata,
            objects=objects,
            reader=LogReader(
                store=objects,
                offload=on_threads(),
                manifest=lambda log: self.engine.manifests.get(log),
                refresh=self._refresh,
                now_ms=_now_ms,
            ),
            wall_ms=self._wall_ms,
        )
        self.broker.topics = Topics(self.broker)
        self.broker.producer_ids = ProducerIds(self.broker)
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._stack.push_async_callback(self._leave)
        began = asyncio.get_running_loop().create_task(self._began.wait())
        await asyncio.wait((began, self._life), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            began.cancel()
            await self._life
        assert began.done(), "no session after a minute"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    # ── For tests ──

    @property
    def engine(self) -> Engine:
        """The engine of the present session."""
        assert self.broker.engine is not None
        return self.broker.engine

    def context(
        self, api_version: int, *, listener: str = "PLAINTEXT", client_id: str | None = "test"
    ) -> RequestContext:
        """Of a request in *api_version*."""
        return RequestContext(
            api_version=api_version,
            client_id=client_id,
            client_host="127.0.0.1",
            listener=listener,
        )

    def log(self, topic: str, partition: int) -> PartitionLog:
        """A partition that is led here."""
        log = self.engine.log(topic, partition)
        assert log is not None
        return log

    async def append(self, topic: str, partition: int, data: bytes | bytearray) -> int:
        """Produce one batch with acks=all; returns its base offset once it is committed."""
        log = self.log(topic, partition)
        await self.engine.loaded(log)
        waiter = _Produce()
        header = check_batch(data, from_client=True)
        result = self.engine.admission.admit(
            log,
            memoryview(bytearray(data)),
            (
                header.record_count,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_timestamp,
                header.max_timestamp,
            ),
            -1,
            Source(),
            waiter,
        )
        if not result.answered:
            await waiter.done
        return result.base_offset

    async def seal(self, topic: str, partition: int) -> int:
        """Turn all that is committed into a segment; returns the sealed end."""
        return await self.engine.sealer.seal(self.log(topic, partition))

    async def lose_session(self) -> None:
        """As if the lease had run out; returns when the next session serves."""
        engine = self.engine
        self._began.clear()
        await self.broker.metadata.revoke_lease(engine.session.lease_id)
        engine.session.end("as the test has it")
        assert engine._tasks is not None
        engine._tasks.create_task(_fenced())
        async with asyncio.timeout(60):
            await self._began.wait()

    # ── Its life ──

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            topics = tasks.create_task(self.broker.topics.run())
            cluster = tasks.create_task(self.broker.cluster.run())
            while not self._stopping:
                await self._session()
            topics.cancel()
            cluster.cancel()

    async def _session(self) -> None:
        engine = Engine(
            ports=Ports(
                metadata=self.metadata,
                objects=self.broker.objects,
                disk=self.disk,
                rng=self._rng,
                now_ms=_now_ms,
                wall_ms=self._wall_ms,
                offload=on_threads(),
                spool=_spool,
            ),
            agent=self.broker.agent,
            cluster=self.broker.cluster,
            settings=self._engine_settings,
            topic_sealing=self.broker.topics.sealing,
        )
        self.broker.engine = engine
        self.broker.groups = GroupCoordinator(
            engine=engine,
            cluster=self.broker.cluster,
            settings=self._settings.groups,
            wall_ms=self._wall_ms,
            limits=self._settings.limits,
            refusals=self.broker.refusals,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                ready = tasks.create_task(self._when_ready(engine))
                groups = tasks.create_task(_until_fenced(self.broker.groups.run()))
                with contextlib.suppress(FencedError):
                    await engine.run()
                ready.cancel()
                groups.cancel()
        finally:
            self.broker.engine = self.broker.groups = None
            self.broker.agent = self._agent()

    async def _when_ready(self, engine: Engine) -> None:
        await engine.ready.wait()
        await self.broker.topics.reconcile()
        self.sessions += 1
        self._began.set()

    async def _leave(self) -> None:
        self._stopping = True
        assert self._life is not None
        if self.broker.engine is not None:
            self.broker.engine.stop()
        await self._life

    async def _refresh(self, log: PartitionLog) -> None:
        await self.engine.refresh(log)

    def _agent(self) -> Agent:
        return Agent(
            node_id=NODE_ID,
            session_id=f"{self._rng.getrandbits(128):032x}",
            listeners=(
                Listener("PLAINTEXT", "localhost", 9092),
                Listener("EXTERNAL", "broker.example.com", 19092),
            ),
            http_address="localhost:9644",
            rack="rack-a",
            started_at_ms=0,
        )


def _now_ms() -> float:
    return time.monotonic() * 1000


async def _until_fenced(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except* FencedError:
        pass  # The engine says so too.


async def _fenced() -> Any:
    raise FencedError("a test took the session away")
