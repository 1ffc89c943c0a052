"""The simulator's store, the embedded one and etcd are the same store."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    ModRevisionIs,
    NotWrittenSince,
    Operation,
    Put,
    PutEvent,
    TxnResult,
    ValueIs,
    Watch,
    WatchEvent,
)
from tests.support import etcd_server
from tests.support.memory_store import MemoryMetadataStore

STEPS = 300
SEEDS = range(20)
ETCD_SEEDS = range(100, 110)

Call = Callable[[MetadataStore], Awaitable[object]]


class History:
    """A random sequence of calls; the same seed gives the same one.

    Few keys, values, leases and revisions, so that calls meet: compares hold about half the
    time, transactions are refused sometimes, leases expire between calls.
    """

    KEYS = ("/a", "/a/", "/a/1", "/a/2", "/b", "/b/é", "/b/\uffff", "/b/\U0001f600")
    PREFIXES = ("/", "/a", "/a/", "/b/", "/c")
    VALUES = (b"", b"0", b"1")
    LEASES = (1, 2, 3)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now_ms = 1_000_000

    def clock(self) -> int:
        """The time of the call that comes next."""
        return self._now_ms

    def next_call(self, revision: int) -> Call:
        """A call to make on each store; *revision* is about where they are."""
        pick = self._random
        if pick.random() < 0.3:
            self._now_ms += pick.choice((1, 50, 400))
        match pick.randrange(10):
            case 0 | 1:
                lease_id, ttl_ms = pick.choice(self.LEASES), pick.choice((100, 800))
                return lambda store: store.grant_lease(lease_id, ttl_ms)
            case 2:
                lease_id = pick.choice(self.LEASES)
                return lambda store: store.keep_alive(lease_id)
            case 3 if pick.random() < 0.2:
                lease_id = pick.choice(self.LEASES)
                return lambda store: store.revoke_lease(lease_id)
            case 4:
                key = pick.choice(self.KEYS)
                return lambda store: store.get(key)
            case 5:
                prefix = pick.choice(self.PREFIXES)
                return lambda store: store.get_prefix(prefix)
            case _:
                compares = [self._compare(revision) for _ in range(pick.randrange(3))]
                then, otherwise = self._operations(), self._operations()
                return lambda store: store.txn(compares, then, otherwise)

    def _compare(self, revision: int) -> Compare:
        pick = self._random
        key = pick.choice(self.KEYS)
        match pick.randrange(5):
            case 4:
                prefix = pick.choice(self.PREFIXES)
                return NotWrittenSince(prefix, max(0, revision - pick.randrange(6)))
            case 0:
                return CreateRevisionIs(key, pick.choice((0, 0, max(0, revision - 3))))
            case 1:
                return ModRevisionIs(key, pick.choice((0, 0, revision, max(0, revision - 1))))
            case _:
                return ValueIs(key, pick.choice(self.VALUES))

    def _operations(self) -> list[Operation]:
        return [self._operation() for _ in range(self._random.choice((0, 1, 1, 2, 3, 4)))]

    def _operation(self) -> Operation:
        pick = self._random
        key, prefix = pick.choice(self.KEYS), pick.choice(self.PREFIXES)
        match pick.randrange(10):
            case 0:
                return Delete(key)
            case 1:
                return DeletePrefix(pick.choice((prefix, "/c")))
            case 2:
                return Get(key)
            case 3:
                return GetPrefix(prefix)
            case _:
                lease_id = pick.choice((0, pick.choice(self.LEASES)))
                return Put(key, pick.choice(self.VALUES), lease_id)


async def outcome(call: Call, store: MetadataStore) -> object:
    """What a call returns, or the class of what it raises."""
    try:
        return await call(store)
    except (LeaseNotFoundError, ValueError) as error:
        return type(error)


async def told(store: MetadataStore, up_to_revision: int) -> list[WatchEvent]:
    """Everything that a watch from the beginning tells up to *up_to_revision*."""
    watch = store.watch("/", 1)
    events: list[WatchEvent] = []
    revision = 1
    while revision < up_to_revision:
        for event in await anext(watch):
            events.append(event)
            revision = event.kv.mod_revision if isinstance(event, PutEvent) else event.mod_revision
    await watch.aclose()
    return events


class EtcdOnVirtualTime:
    """etcd, whose leases end by a clock of ours: its own counts whole seconds of real time.

    Each is granted for an hour, and revoked when it is over, before the next call is made.
    """

    def __init__(self, etcd: EtcdMetadataStore, now_ms: Callable[[], int]) -> None:
        self._etcd = etcd
        self._now_ms = now_ms
        self._leases: dict[int, tuple[int, int]] = {}  # when it is over, and its time to live

    async def _expire(self) -> None:
        for expires_at_ms, lease_id in sorted((at, id_) for id_, (at, _) in self._leases.items()):
            if expires_at_ms <= self._now_ms():
                await self._etcd.revoke_lease(lease_id)
                del self._leases[lease_id]

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """Of etcd."""
        await self._expire()
        return await self._etcd.txn(compares, then, otherwise)

    async def get(self, key: str) -> KeyValue | None:
        """Of etcd."""
        await self._expire()
        return await self._etcd.get(key)

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        """Of etcd."""
        await self._expire()
        return await self._etcd.get_prefix(prefix, keys_only=keys_only)

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """Of etcd, and ours if it is new."""
        await self._expire()
        await self._etcd.grant_lease(lease_id, 3_600_000)
        self._leases.setdefault(lease_id, (self._now_ms() + ttl_ms, ttl_ms))

    async def keep_alive(self, lease_id: int) -> None:
        """Of etcd, and ours."""
        await self._expire()
        await self._etcd.keep_alive(lease_id)
        _, ttl_ms = self._leases[lease_id]
        self._leases[lease_id] = (self._now_ms() + ttl_ms, ttl_ms)

    async def revoke_lease(self, lease_id: int) -> None:
        """Of etcd, and ours."""
        await self._expire()
        await self._etcd.revoke_lease(lease_id)
        self._leases.pop(lease_id, None)

    def watch(self, prefix: str, start_revision: int) -> Watch:
        """Of etcd."""
        return self._etcd.watch(prefix, start_revision)

    async def close(self) -> None:
        """Of etcd."""
        await self._etcd.close()


@pytest.mark.parametrize("version", etcd_server.EACH_VERSION)
async def test_memory_and_etcd_give_equal_results(version: str, tmp_path: Path) -> None:
    """
    Every result of every call, every revision, and every event of a watch: the same.
    """
    for seed in ETCD_SEEDS:
        history = History(seed)
        memory = MemoryMetadataStore(history.clock)
        (tmp_path / str(seed)).mkdir()
        with etcd_server.start(version, tmp_path / str(seed)) as cluster:
            settings = EtcdSettings(endpoints=cluster.endpoints, try_timeout_ms=10_000)
            real = EtcdMetadataStore(settings)
            etcd = EtcdOnVirtualTime(real, history.clock)
            for step in range(STEPS):
                call = history.next_call(memory.revision)
                expected = await outcome(call, memory)

                assert expected == await outcome(call, etcd), f"seed {seed}, step {step}"

            revision, kvs = await memory.get_prefix("/")
            assert (revision, kvs) == await etcd.get_prefix("/")
            assert await told(memory, revision) == await told(etcd, revision)
            await etcd.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_memory_and_sqlite_give_equal_results(seed: int, tmp_path: Path) -> None:
    """
    Every result of every call, every revision, and every event of a watch: the same.
    """
    history = History(seed)
    memory = MemoryMetadataStore(history.clock)
    sqlite = await SqliteMetadataStore.open(tmp_path / "metadata.db", history.clock)
    for step in range(STEPS):
        call = history.next_call(memory.revision)

        assert await outcome(call, memory) == await outcome(call, sqlite), f"step {step}"

    revision, kvs = await memory.get_prefix("/")
    assert (revision, kvs) == await sqlite.get_prefix("/")
    assert await told(memory, revision) == await told(sqlite, revision)
    await sqlite.close()


async def test_a_store_that_is_reopened_at_every_step_is_the_same_store(tmp_path: Path) -> None:
    """
    Nothing that a result depends on lives outside the file, but the history of watches.
    """
    history = History(seed=99)
    memory = MemoryMetadataStore(history.clock)
    for step in range(60):
        sqlite = await SqliteMetadataStore.open(tmp_path / "metadata.db", history.clock)
        call = history.next_call(memory.revision)

        assert await outcome(call, memory) == await outcome(call, sqlite), f"step {step}"
        await sqlite.close()


async def test_the_histories_reach_what_they_are_for() -> None:
    """
    Their calls meet: compares hold and fail, transactions are refused, leases take keys along.
    """
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        history = History(seed)
        memory = MemoryMetadataStore(history.clock)
        for _ in range(STEPS):
            call = history.next_call(memory.revision)
            revision = memory.revision
            memory.expire()
            seen["expired with keys"] += memory.revision > revision
            match await outcome(call, memory):
                case TxnResult(succeeded=True):
                    seen["succeeded"] += 1
                case TxnResult(succeeded=False):
                    seen["failed compare"] += 1
                case error if error is LeaseNotFoundError:
                    seen["no lease"] += 1
                case error if error is ValueError:
                    seen["over a limit"] += 1

    common = {name for name, count in seen.items() if count >= 100}
    assert {
        "expired with keys",
        "succeeded",
        "failed compare",
        "no lease",
        "over a limit",
    } == common, seen
