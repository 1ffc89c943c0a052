"""The world's ports, with everything that can go wrong between asking and being answered.

    caller ──request──▶ (travels) ──▶ happens, or not ──▶ (travels) ──▶ answer, or silence

A request acts at one instant of virtual time whatever becomes of its caller: a caller that
was cancelled, or killed, may find that what it asked for happens later.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, Self

from driftlog_metadata.schema.codec import decode_leader
from driftlog_metadata.schema.keys import LEADERS_PREFIX
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import (
    Compare,
    KeyValue,
    Operation,
    Put,
    TxnResult,
    Watch,
    WatchEvent,
)
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import Listing, NotFoundError, ObjectInfo
from tests.simulation.loop import NOBODY, Freezer, VirtualLoop
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.aimed import Aim


class Cut(Enum):
    """Which way nothing gets through, and nobody says so."""

    REQUESTS = "requests"
    """They never arrive."""
    ANSWERS = "answers"
    """What was asked for happens."""


class Refused(Enum):
    """What a peer does not do for one process."""

    NOTHING = "nothing"
    READS = "reads"
    WRITES = "writes"
    ALL = "all"

    def covers(self, *, writes: bool) -> bool:
        """Whether it refuses such a request."""
        return self is Refused.ALL or self is (Refused.WRITES if writes else Refused.READS)


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
    latest_ms: float = 8_000.0
    """For so long at most."""
    latency_ms: tuple[float, float] = (1.0, 10.0)
    down: bool = False
    refused_kind: Refused = Refused.NOTHING
    mute: bool = False
    """What is of the `refused_kind` is not even answered."""
    cut: Cut | None = None
    aim: "Aim | None" = None
    watch_lag_ms: float = 0.0
    """At most so long after they happened events are told."""


class NoAnswerError(Exception):
    """A store's: it has the request, and its answer never comes."""


class Process:
    """A life of an agent: when it is dead, nothing it still tries has an effect.

    While it is frozen (SIGSTOP, a paused machine) requests wait in its sockets.
    """

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.loop = loop
        self.dead = False
        self.freezer = Freezer(loop)
        self.thread = Freezer(loop)
        """Of what runs beside its event loop."""
        self.waits_for: set[asyncio.Future[Any]] = set()
        """Answers of its peers: not there yet, or lost without a word."""
        self._inbox: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def receive(self, request: Callable[[], None]) -> None:
        """Handle a client's request, now or when the process goes on."""
        if self.freezer.frozen:
            self._inbox.append(request)
        elif not self.dead:
            self.freezer.context.copy().run(request)

    def freeze(self, *, threads: bool = True) -> None:
        """It does nothing, until `thaw`; without *threads*, its event loop does not."""
        self.freezer.freeze()
        if threads:
            self.thread.freeze()

    def thaw(self, *, timers_last: bool = False) -> None:
        """Go on; what was sent meanwhile is read."""
        self.thread.thaw()
        self.freezer.thaw(timers_last=timers_last)
        inbox, self._inbox = self._inbox, []
        for request in inbox:
            self.loop.call_soon(self.receive, request, context=NOBODY)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin what a request of a peer makes it do; it ends with the process."""
        task = self.loop.create_task(work, context=self.freezer.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=NOBODY)

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        """What a client makes the process do, as long as both live."""
        context = self.freezer.context.copy()
        task = asyncio.get_running_loop().create_task(work, context=context)
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
        self._inbox.clear()
        self.thread.thaw()
        self.freezer.thaw()


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
        sent: Callable[[str], None],
        acted: Callable[[str], None],
    ) -> None:
        self._process = process
        self._peer = peer
        self._weather = weather
        self._rng = rng
        self._trace = trace
        self._sent = sent
        self._acted = acted

    @property
    def weather(self) -> Weather:
        """How it is now."""
        return self._weather

    @property
    def process(self) -> Process:
        """Whose requests it carries."""
        return self._process

    @property
    def rng(self) -> Random:
        """For what depends on the weather."""
        return self._rng

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
            there += rng.uniform(500, weather.latest_ms)
        if weather.aim is not None:
            there += weather.aim.delay_ms(what)
            silent |= (unanswered := weather.aim.loses_answer(what))
        else:
            unanswered = False
        self._trace(self._process.name, self._peer, what)
        self._sent(what)

        def settle(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def answered(result: Any, error: Exception | None) -> None:
            loop.call_later(back / 1000, settle, result, error, context=NOBODY)

        def lost() -> None:
            if not silent:
                error = OutcomeUnknownError(what) if writes else UnavailableError(what)
                answered(None, error)

        def arrive() -> None:
            if weather.cut is Cut.REQUESTS:
                return
            if weather.refused_kind.covers(writes=writes):
                if not weather.mute:
                    answered(None, UnavailableError(f"{what}: access denied"))
                return
            limit = weather.refused
            if weather.down or fate < limit:
                answered(None, UnavailableError(f"{what}: refused"))
                return
            limit += weather.lost_before
            if fate < limit:
                lost()
                return
            result, error = now(act())
            self._trace(self._process.name, self._peer, what, "acted", type(error).__name__)
            self._acted(what)
            if weather.cut is Cut.ANSWERS or isinstance(error, NoAnswerError):
                return
            if unanswered or fate < limit + weather.lost_after:
                lost()
                return
            answered(result, error)

        loop.call_later(there / 1000, arrive, context=NOBODY)
        self._process.waits_for.add(answer)
        try:
            return await answer
        finally:
            self._process.waits_for.discard(answer)

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
        what = _kind(then) + " ".join(type(op).__name__ + ":" + op_key(op) for op in then[:3])
        result: TxnResult = await self._network.request(
            what, lambda: self._store.txn(compares, then, otherwise), writes=True
        )
        return result

    async def get(self, key: str) -> KeyValue | None:
        result: KeyValue | None = await self._network.request(
            f"get {key}", lambda: self._store.get(key), writes=False
        )
        return result

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        result: tuple[int, list[KeyValue]] = await self._network.request(
            f"get_prefix {prefix}",
            lambda: self._store.get_prefix(prefix, keys_only=keys_only),
            writes=False,
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

    def watch(self, prefix: str, start_revision: int) -> Watch:
        return _LateWatch(self._store.watch(prefix, start_revision), self._network)

    async def close(self) -> None:
        """The memory store outlives its processes."""


_CUT_OFF_S = 0.1


class _LateWatch:
    """A `Watch` whose events travel; none while its process is cut off, or the store is down."""

    def __init__(self, watch: Watch, network: Network) -> None:
        self._watch = watch
        self._network = network
        self._events: list[WatchEvent] | None = None
        self._due_s = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WatchEvent]:
        loop = asyncio.get_running_loop()
        weather, rng = self._network.weather, self._network.rng
        if self._network.process.dead:
            raise asyncio.CancelledError
        if self._events is None:
            self._events = await anext(self._watch)
            travels_ms = rng.uniform(*weather.latency_ms) + weather.watch_lag_ms * rng.random()
            self._due_s = loop.time() + travels_ms / 1000
        while loop.time() < self._due_s or weather.down or weather.cut:
            left_s = self._due_s - loop.time()  # it is a journey, and no event ends it
            await asyncio.sleep(left_s if left_s > 0 else _CUT_OFF_S)
        events, self._events = self._events, None
        return events

    async def aclose(self) -> None:
        await self._watch.aclose()


def _kind(then: Sequence[Operation]) -> str:
    """What a transaction is about, where its keys do not say it."""
    if then and isinstance(then[0], Put) and then[0].key.startswith(LEADERS_PREFIX):
        return "txn release " if decode_leader(then[0].value).session_id is None else "txn claim "
    return "txn "


def op_key(op: Operation) -> str:
    """The key or prefix that an operation names."""
    return str(getattr(op, "key", None) or getattr(op, "prefix", ""))


class FaultyObjects:
    """The bucket as one process sees it.

    Args:
        withheld: objects that it has and does not give, for now.
        hidden: whether it says of an object that is there that it is not.
    """

    def __init__(
        self,
        store: MemoryObjectStore,
        network: Network,
        withheld: Collection[str] = (),
        hidden: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._network = network
        self._withheld = withheld
        self._hidden = hidden
        self.parts = store, network, withheld, hidden
        """What a bucket with more faults is made from."""

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        whole = [b"".join(body)]  # as it is now: it may not change later
        await self._network.request(f"put {key}", lambda: self._store.put(key, whole), writes=True)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        whole = [b"".join(body)]
        await self._network.request(
            f"create {key}", lambda: self._store.create(key, whole), writes=True
        )

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        async def give() -> bytes:
            if key in self._withheld:
                raise UnavailableError("no read quorum")
            if self._hidden(key):
                raise NotFoundError(key)
            return await self._store.get(key, start, end)

        result: bytes = await self._network.request(f"get {key}", give, writes=False)
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
