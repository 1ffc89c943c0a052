"""The store on three etcd members keeps its promises while they are killed, frozen, cut off."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.store import CreateRevisionIs, Get, KeyValue, Put, PutEvent, ValueIs
from tests.support import etcd_server
from tests.support.etcd_server import EtcdCluster, EtcdMember

# One cluster at a time is enough for two cores.
pytestmark = pytest.mark.xdist_group("etcd-three")

TASKS = 8
FAULT_SECONDS = 1.0
END = "/counters/end"


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members, of the newest version if the test does not say which."""
    version = getattr(request, "param", None) or etcd_server.newest_version()
    with etcd_server.start(version, tmp_path, members=3) as started:
        yield started


def store_on(
    cluster: EtcdCluster, *, first: EtcdMember | None = None, try_timeout_ms: int = 1_500
) -> EtcdMetadataStore:
    """A store that asks *first* as long as that answers."""
    order = sorted(cluster.members, key=lambda member: member is not first)
    endpoints = tuple(member.url for member in order)
    return EtcdMetadataStore(
        EtcdSettings(endpoints=endpoints, try_timeout_ms=try_timeout_ms, connect_timeout_ms=500)
    )


async def count_up(
    store: EtcdMetadataStore, key: str, stop: asyncio.Event
) -> tuple[int, Counter[str]]:
    """Write 1, 2, 3, … each under a compare of the one before, repeating what is in doubt."""
    seen: Counter[str] = Counter()
    count = 0
    in_doubt = False
    while count == 0 or not stop.is_set() or in_doubt:
        before = ValueIs(key, b"%d" % count) if count else CreateRevisionIs(key, 0)
        try:
            result = await store.txn([before], [Put(key, b"%d" % (count + 1))], [Get(key)])
        except OutcomeUnknownError:
            seen["in doubt"] += 1
            in_doubt = True
            continue
        except UnavailableError:
            seen["refused"] += 1
            await asyncio.sleep(0.02)
            continue
        if not result.succeeded:
            # Ours, of which the answer was lost: nobody else writes this key.
            assert b"%d" % (count + 1) == result.reads[0][0].value
            seen["was done"] += 1
        in_doubt = False
        count += 1
    return count, seen


async def watch_counters(store: EtcdMetadataStore) -> dict[str, list[int]]:
    """What one watch tells of every counter, until it tells of the end."""
    told: dict[str, list[int]] = {}
    watch = store.watch("/counters/", 1)
    async for events in watch:
        for event in events:
            assert isinstance(event, PutEvent)
            if event.kv.key == END:
                await watch.aclose()
            else:
                told.setdefault(event.kv.key, []).append(int(event.kv.value))
    return told


async def hurt(cluster: EtcdCluster, kinds: str, seconds: float, rng: random.Random) -> int:
    """One member after the other, the leader every other time, killed or frozen for a while."""
    until = time.monotonic() + seconds
    faults = 0
    while time.monotonic() < until:
        leader = await asyncio.to_thread(cluster.leader)
        member = leader if faults % 2 == 0 else rng.choice(cluster.members)
        kill = rng.choice(kinds) == "k"
        member.kill() if kill else member.freeze()
        await asyncio.sleep(FAULT_SECONDS)
        member.start() if kill else member.thaw()
        await asyncio.to_thread(cluster.wait_until_healthy)
        await asyncio.sleep(0.2)
        faults += 1
    return faults


@pytest.mark.parametrize("kinds", ["k", "f"], ids=["killed", "frozen"])
@pytest.mark.parametrize("cluster", etcd_server.EACH_VERSION, indirect=True)
async def test_guarded_counters_and_a_watch_survive_faults(
    cluster: EtcdCluster, kinds: str
) -> None:
    """
    Eight tasks count up for some seconds while members, and leaders, go and come back: what was
    acknowledged is there, once, and a watch has told every step once, in order.
    """
    stop = asyncio.Event()
    stores = [
        store_on(cluster, first=cluster.members[n % 3], try_timeout_ms=500) for n in range(TASKS)
    ]
    watcher = store_on(cluster, try_timeout_ms=500)
    async with asyncio.TaskGroup() as tasks:
        counting = [
            tasks.create_task(count_up(store, f"/counters/{n}", stop))
            for n, store in enumerate(stores)
        ]
        watching = tasks.create_task(watch_counters(watcher))
        faults = await hurt(cluster, kinds, 4, random.Random(7))
        stop.set()
        counts = [(await task)[0] for task in counting]
        await count_up(stores[0], END, stop)
    seen = sum((task.result()[1] for task in counting), Counter())

    _, kvs = await watcher.get_prefix("/counters/")
    for store in (*stores, watcher):
        await store.close()

    expected = {f"/counters/{n}": count for n, count in enumerate(counts)}
    assert {**expected, END: 1} == {kv.key: int(kv.value) for kv in kvs}
    assert {key: list(range(1, count + 1)) for key, count in expected.items()} == (
        watching.result()
    )
    assert faults >= 2
    assert seen["in doubt"] > 0, "no fault met a write"
    assert min(counts) > 10


async def test_a_frozen_member_costs_one_deadline(cluster: EtcdCluster) -> None:
    """
    The write that it swallowed is in doubt, after one deadline; reads, leases and the next write
    go elsewhere.  The write was not sent again behind our back.
    """
    first = cluster.members[0]
    store = store_on(cluster, first=first)
    created = (await store.txn([], [Put("/a", b"1")])).revision
    await store.grant_lease(7, 60_000)
    first.freeze()
    await asyncio.to_thread(cluster.wait_until_healthy, cluster.members[1:])

    started = time.monotonic()
    with pytest.raises(OutcomeUnknownError, match=first.url):
        await store.txn([], [Put("/a", b"2")])
    waited = time.monotonic() - started
    await store.keep_alive(7)
    found = await store.get("/a")
    written = await store.txn([ValueIs("/a", b"1")], [Put("/a", b"3")])
    elsewhere = time.monotonic() - started - waited
    first.thaw()
    await store.close()

    assert 1.4 < waited < 30
    assert elsewhere < 30
    assert KeyValue("/a", b"1", created, created) == found
    assert written.succeeded


@pytest.mark.parametrize("call", ["get", "keep_alive", "grant_lease", "revoke_lease"])
async def test_what_may_be_repeated_is_not_told_of_a_frozen_member(
    cluster: EtcdCluster, call: str
) -> None:
    """
    Reads and leases are asked of the next endpoint when the first one does not answer.
    """
    first = cluster.members[0]
    store = store_on(cluster, first=first)
    await store.grant_lease(7, 60_000)
    first.freeze()
    await asyncio.to_thread(cluster.wait_until_healthy, cluster.members[1:])

    started = time.monotonic()
    match call:
        case "get":
            assert await store.get("/a") is None
        case "keep_alive":
            await store.keep_alive(7)
        case "grant_lease":
            await store.grant_lease(8, 60_000)
        case _:
            await store.revoke_lease(7)
    waited = time.monotonic() - started
    first.thaw()
    await store.close()

    assert waited < 30


@pytest.mark.parametrize("call", ["txn", "get"])
async def test_a_deadline_of_the_callers_own_does_not_keep_it_at_a_frozen_member(
    cluster: EtcdCluster, call: str
) -> None:
    """
    Shorter than what the store gives an endpoint: what was given up there is repeated elsewhere.
    """
    first = cluster.members[0]
    store = store_on(cluster, first=first, try_timeout_ms=5_000)
    await store.get("/a")
    first.freeze()
    await asyncio.to_thread(cluster.wait_until_healthy, cluster.members[1:])
    given_up = 0
    while True:
        try:
            async with asyncio.timeout(1):
                if call == "txn":
                    await store.txn([], [Put("/a", b"1")])
                else:
                    await store.get("/a")
            break
        except (TimeoutError, UnavailableError, OutcomeUnknownError):
            given_up += 1
            assert given_up < 4
    first.thaw()
    await store.close()

    assert given_up >= 1


async def test_a_refusal_does_not_settle_what_another_member_was_asked(tmp_path: Path) -> None:
    """
    One member swallows a grant, the next one refuses it: the lease may be there.
    """
    full = ["--quota-backend-bytes", str(2**21)]
    version = etcd_server.newest_version()
    with etcd_server.start(version, tmp_path, members=3, arguments=full) as cluster:
        first = cluster.members[0]
        store = store_on(cluster, first=first)
        with pytest.raises(UnavailableError, match=r"etcd is full"):
            await etcd_server.fill(store)
        with pytest.raises(UnavailableError, match=r"etcd is full"):
            await store.grant_lease(7, 60_000)
        first.freeze()
        await asyncio.to_thread(cluster.wait_until_healthy, cluster.members[1:])

        with pytest.raises(OutcomeUnknownError, match=r"no answer in time.*etcd is full"):
            await store.grant_lease(7, 60_000)
        await store.close()


async def test_a_watch_leaves_a_frozen_member_with_the_calls_beside_it(
    cluster: EtcdCluster,
) -> None:
    """
    It does not wait for gRPC's own keep-alive, which takes up to 13 seconds.
    """
    first = cluster.members[0]
    store = store_on(cluster, first=first)
    await store.txn([], [Put("/w/1", b"")])
    watch = store.watch("/w/", 1)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.1)
    first.freeze()
    await asyncio.to_thread(cluster.wait_until_healthy, cluster.members[1:])

    started = time.monotonic()
    await store.get("/w/1")
    revision = (await store.txn([], [Put("/w/2", b"")])).revision
    events = await waiting
    waited = time.monotonic() - started
    first.thaw()
    await watch.aclose()
    await store.close()

    assert [PutEvent(KeyValue("/w/2", b"", revision, revision))] == events
    assert waited < 8


async def test_a_watch_alone_leaves_a_frozen_member_in_the_end(cluster: EtcdCluster) -> None:
    """
    With no call beside it, gRPC's keep-alive finds out: a ping after 10 s, unanswered for 3 s.
    """
    first = cluster.members[0]
    store, other = store_on(cluster, first=first), store_on(cluster, first=cluster.members[1])
    revision = (await store.txn([], [Put("/w/1", b"")])).revision
    watch = store.watch("/w/", revision)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0.1)
    first.freeze()
    await asyncio.to_thread(cluster.wait_until_healthy, cluster.members[1:])
    await other.txn([], [Put("/w/2", b"")])

    started = time.monotonic()
    await waiting
    waited = time.monotonic() - started
    first.thaw()
    await watch.aclose()
    await store.close()
    await other.close()

    assert waited < 20


async def test_a_member_without_a_leader_says_so_and_loses_its_watches(
    cluster: EtcdCluster,
) -> None:
    """
    Nothing happened there, for certain; a watch on it goes on at the members that have one.
    """
    first = cluster.members[0]
    store = EtcdMetadataStore(EtcdSettings(endpoints=(first.url,)))
    revision = (await store.txn([], [Put("/w/1", b"")])).revision
    watch = store.watch("/w/", revision + 1)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.to_thread(wait_for_watches, first, 1)
    for member in cluster.members[1:]:
        member.freeze()
    await asyncio.to_thread(wait_for_watches, first, 0)

    with pytest.raises(UnavailableError, match=r"no leader \(its cluster has lost its quorum"):
        await store.txn([], [Put("/w/lost", b"")])
    assert not waiting.done()
    for member in cluster.members[1:]:
        member.thaw()
    await asyncio.to_thread(cluster.wait_until_healthy)
    revision = (await store.txn([], [Put("/w/2", b"")])).revision

    assert [PutEvent(KeyValue("/w/2", b"", revision, revision))] == await waiting
    await watch.aclose()
    await store.close()


def wait_for_watches(member: EtcdMember, count: int) -> None:
    """Return when the member serves so many."""
    deadline = time.monotonic() + 60
    while (served := watches_on(member)) != count:
        assert time.monotonic() < deadline, f"the member serves {served} watches, not {count}"
        time.sleep(0.05)


def watches_on(member: EtcdMember) -> int:
    """How many watches the member serves."""
    for line in member.metrics().splitlines():
        name, _, value = line.partition(" ")
        if name == "etcd_debugging_mvcc_watcher_total":
            return int(float(value))
    raise AssertionError("etcd does not tell its watches")
