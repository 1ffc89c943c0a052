"""The world's ports, with everything that can go wrong between asking and being answered.

    caller ──request──▶ (travels) ──▶ happens, or not ──▶ (travels) ──▶ answer, or silence

A request acts at one instant of virtual time whatever becomes of its caller: a caller that
was cancelled, or killed, may find that what it asked for happens later.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from driftlog_metadata.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.memory_store import MemoryMetadataStore
from driftlog_metadata.store import Compare, KeyValue, Operation, TxnResult
from driftlog_tiering.memory_object_store import MemoryObjectStore
from driftlog_tiering.object_store import Buffer, Listing, ObjectInfo


@dataclass(slots=True)
class Weather:
    """How unkind a peer is now: probabilities per request, milliseconds."""

    refused: float = 0.0
    lost_before: float = 0.0
    lost_after: float = 0.0
    silent: float = 0.0
    """Of those that are lost: no error either, the caller's deadline must end it."""
    late: float = 0.0
    """Travels this share of requests for seconds."""
    latency_ms: tuple[float, float] = (1.0, 10.0)
    down: bool = False


class Process:
    """A life of an agent: when it is dead, nothing it still tries has an effect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        """What a client makes the process do, as long as both live."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    def kill(self) -> None:
        """No instruction of it runs any more."""
        self.dead = True
        for task in self._tasks:
            task.cancel()


class Network:
    """Carries one process's requests to one peer."""

    def __init__(
        self,
        *,
        process: Process,
        peer: str,
        weather: Weather,
        rng: Random,
        trace: Callable[..., None],
    ) -> None:
        self._process = process
        self._peer = peer
        self._weather = weather
        self._rng = rng
        self._trace = trace

    async def request(
        self, what: str, act: Callable[[], Coroutine[Any, Any, Any]], *, writes: bool
    ) -> Any:
        """Send *act* to the peer and wait for its answer."""
        if self._process.dead:
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        weather, rng = self._weather, self._rng
        silent = rng.random() < weather.silent
        fate = rng.random()
        there, back = self._travel_ms(), self._travel_ms()
        if rng.random() < weather.late:
            there += rng.uniform(500, 8_000)
        self._trace(self._process.name, self._peer, what)

        def settle(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def lost() -> None:
            if not silent:
                error = OutcomeUnknownError(what) if writes else UnavailableError(what)
                loop.call_later(back / 1000, settle, None, error)

        def arrive() -> None:
            limit = weather.refused
            if weather.down or fate < limit:
                loop.call_later(back / 1000, settle, None, UnavailableError(f"{what}: refused"))
                return
            limit += weather.lost_before
            if fate < limit:
                lost()
                return
            result, error = now(act())
            self._trace(self._process.name, self._peer, what, "acted", type(error).__name__)
            if fate < limit + weather.lost_after:
                lost()
                return
            loop.call_later(back / 1000, settle, result, error)

        loop.call_later(there / 1000, arrive)
        return await answer

    def _travel_ms(self) -> float:
        return self._rng.uniform(*self._weather.latency_ms) / 2


def now(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, Exception | None]:
    """Run a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value, None
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        return None, error
    raise AssertionError("a memory store waited for something")


class FaultyMetadata:
    """The metadata store as one process sees it."""

    def __init__(self, store: MemoryMetadataStore, network: Network) -> None:
        self._store = store
        self._network = network
        self.leases: dict[int, float] = {}
        """Until when, at least, each lease holds (ms): TTL from when its last renewal was sent."""
        self._ttls_ms: dict[int, int] = {}

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        what = "txn " + " ".join(type(op).__name__ + ":" + op_key(op) for op in then[:3])
        result: TxnResult = await self._network.request(
            what, lambda: self._store.txn(compares, then, otherwise), writes=True
        )
        return result

    async def get(self, key: str) -> KeyValue | None:
        result: KeyValue | None = await self._network.request(
            f"get {key}", lambda: self._store.get(key), writes=False
        )
        return result

    async def get_prefix(self, prefix: str) -> tuple[int, list[KeyValue]]:
        result: tuple[int, list[KeyValue]] = await self._network.request(
            f"get_prefix {prefix}", lambda: self._store.get_prefix(prefix), writes=False
        )
        return result

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        self._ttls_ms[lease_id] = ttl_ms
        sent_s = asyncio.get_running_loop().time()
        await self._network.request(
            "grant", lambda: self._store.grant_lease(lease_id, ttl_ms), writes=True
        )
        self.leases.setdefault(lease_id, sent_s * 1000 + ttl_ms)

    async def keep_alive(self, lease_id: int) -> None:
        sent_s = asyncio.get_running_loop().time()
        await self._network.request(
            "keep_alive", lambda: self._store.keep_alive(lease_id), writes=True
        )
        self.leases[lease_id] = sent_s * 1000 + self._ttls_ms[lease_id]

    async def revoke_lease(self, lease_id: int) -> None:
        await self._network.request(
            "revoke", lambda: self._store.revoke_lease(lease_id), writes=True
        )

    def watch(self, prefix: str, start_revision: int) -> Any:
        raise NotImplementedError("nothing of one agent watches")

    async def close(self) -> None:
        """The memory store outlives its processes."""


def op_key(op: Operation) -> str:
    """The key or prefix that an operation names."""
    return str(getattr(op, "key", None) or getattr(op, "prefix", ""))


class FaultyObjects:
    """The bucket as one process sees it."""

    def __init__(self, store: MemoryObjectStore, network: Network) -> None:
        self._store = store
        self._network = network

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        whole = [b"".join(body)]  # as it is now: it may not change later
        await self._network.request(f"put {key}", lambda: self._store.put(key, whole), writes=True)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        whole = [b"".join(body)]
        await self._network.request(
            f"create {key}", lambda: self._store.create(key, whole), writes=True
        )

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        result: bytes = await self._network.request(
            f"get {key}", lambda: self._store.get(key, start, end), writes=False
        )
        return result

    async def stat(self, key: str) -> ObjectInfo:
        result: ObjectInfo = await self._network.request(
            f"stat {key}", lambda: self._store.stat(key), writes=False
        )
        return result

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        async def collect() -> list[Listing]:
            return [
                page
                async for page in self._store.list(
                    prefix, start_after=start_after, page_size=page_size
                )
            ]

        pages = await self._network.request(f"list {prefix}", collect, writes=False)
        for page in pages:
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._network.request("delete", lambda: self._store.delete(keys), writes=True)

    async def close(self) -> None:
        """The memory store outlives its processes."""
