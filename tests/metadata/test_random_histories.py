"""The simulator's store and the embedded one are the same store."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from driftlog_metadata.memory_store import MemoryMetadataStore
from driftlog_metadata.sqlite_store import SqliteMetadataStore
from driftlog_metadata.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    LeaseNotFoundError,
    MetadataStore,
    ModRevisionIs,
    Operation,
    Put,
    PutEvent,
    TxnResult,
    ValueIs,
    WatchEvent,
)

STEPS = 300
SEEDS = range(20)

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
        match pick.randrange(4):
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
