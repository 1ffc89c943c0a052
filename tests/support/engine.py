"""A real agent without its sockets, on SQLite and directories.

    async with RunningAgent(tmp_path) as agent:
        await agent.append("flights", 0, batch)
        response = await metadata.handle(agent.broker, request, agent.context(12))

Leaving drains and releases, as SIGTERM does; entering another on the same path is a restart.
Shell.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.foundation.offload import on_threads
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.process.composition.agent import AgentPorts, AgentProcess, AgentSettings
from driftlog_metadata.schema.model import Listener
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.agent_ports import (
    FixedIdentity,
    NoServer,
    monotonic_ms,
    spool,
    wall_ms,
)

NODE_ID = 7
PATIENT = EngineSettings(
    session=SessionSettings(ttl_ms=60_000, request_deadline_ms=30_000),
    seal=SealSettings(check_interval_ms=50),
)
"""Sessions that outlive a busy machine."""


LISTENERS = (
    Listener("PLAINTEXT", "localhost", 9092),
    Listener("EXTERNAL", "broker.example.com", 19092),
)


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
        wall_ms: Callable[[], int] = wall_ms,
        seed: int = 1,
    ) -> None:
        self.path = path
        self._settings = AgentSettings(
            rack="rack-a",
            http_address="localhost:9644",
            broker=settings or BrokerSettings(location=str(path / "bucket")),
            engine=engine,
        )
        self._wrap_objects = objects
        self._wrap_metadata = metadata
        self._wall_ms = wall_ms
        self._rng = Random(seed + sum(path.as_posix().encode()))
        self._stack = AsyncExitStack()
        self._life: asyncio.Task[None]
        self.process: AgentProcess
        self.disk: PosixDisk

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
        store = await SqliteMetadataStore.open(self.path / "metadata.db", wall_ms)
        self._stack.push_async_callback(store.close)
        self.metadata_store = self._wrap_metadata(store)
        ports = AgentPorts(
            metadata=self.metadata_store,
            objects=self._wrap_objects(bucket),
            disk=self.disk,
            identity=FixedIdentity(NODE_ID, bucket),
            server=NoServer(LISTENERS),
            rng=self._rng,
            secrets=Random(1),
            now_ms=monotonic_ms,
            wall_ms=self._wall_ms,
            offload_seal=on_threads(),
            offload_read=on_threads(),
            offload_groups=on_threads(),
            offload_produce=on_threads(),
            offload_rewrite=on_threads(),
            offload_upkeep=on_threads(),
            offload_disk=asyncio.to_thread,
            spool=spool,
        )
        self.process = AgentProcess(self._settings, ports)
        self._life = asyncio.get_running_loop().create_task(self.process.run())
        self._stack.push_async_callback(self._leave)
        ready = asyncio.get_running_loop().create_task(self.process.ready.wait())
        await asyncio.wait((ready, self._life), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            ready.cancel()
            await self._life
        assert ready.done(), "no session after a minute"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    # ── For tests ──

    @property
    def broker(self) -> Broker:
        """What handlers see."""
        return self.process.broker

    @property
    def sessions(self) -> int:
        """Begun so far."""
        return self.process.sessions

    @property
    def engine(self) -> Engine:
        """The engine of the present session."""
        assert self.process.engine is not None
        return self.process.engine

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
            ConnectionActivity(),
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
        engine, sessions = self.engine, self.sessions
        await self.broker.metadata.revoke_lease(engine.session.lease_id)
        why = "a test took the session away"
        engine.flusher.end(why, FencedError(why))
        async with asyncio.timeout(60):
            while self.sessions == sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _leave(self) -> None:
        self.process.stop()
        await self._life
