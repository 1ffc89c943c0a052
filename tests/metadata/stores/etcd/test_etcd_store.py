"""The etcd store resumes watches, pages reads, keeps etcd's limits, and explains a full etcd."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.store import (
    CompactedError,
    Delete,
    DeleteEvent,
    DeletePrefix,
    KeyValue,
    Put,
    PutEvent,
    Watch,
    WatchEvent,
)
from tests.support import etcd_server
from tests.support.etcd_server import EtcdCluster, EtcdMember
from tests.support.process_usage import free_port

LARGE = 400_000
MiB = 1024 * 1024


@pytest.fixture(params=etcd_server.EACH_VERSION)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdCluster]:
    """An etcd of one member, of each version."""
    with etcd_server.start(request.param, tmp_path) as started:
        yield started


@asynccontextmanager
async def opened(
    *endpoints: str, keep_alive_timeout_ms: int = 1_000, max_answer_bytes: int = 32 * MiB
) -> AsyncIterator[EtcdMetadataStore]:
    """A store on these endpoints, with a deadline that a busy machine keeps."""
    settings = EtcdSettings(
        endpoints=endpoints,
        try_timeout_ms=10_000,
        keep_alive_timeout_ms=keep_alive_timeout_ms,
        max_answer_bytes=max_answer_bytes,
    )
    store = EtcdMetadataStore(settings)
    try:
        yield store
    finally:
        await store.close()


async def put(store: EtcdMetadataStore, key: str, value: bytes = b"") -> int:
    """Put unconditionally; return the revision."""
    return (await store.txn([], [Put(key, value)])).revision


async def reach(store: EtcdMetadataStore) -> None:
    """Until etcd answers; connects where it can."""
    while True:
        with contextlib.suppress(UnavailableError):
            await store.get("/a")
            return
        await asyncio.sleep(0.1)


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    """The next *count* events, flattened."""
    events: list[WatchEvent] = []
    while len(events) < count:
        events += await anext(watch)
    return events


def keys_of(events: list[WatchEvent]) -> list[str]:
    """The keys alone."""
    return [event.kv.key if isinstance(event, PutEvent) else event.key for event in events]


# ── Watches ──


async def test_a_watch_goes_on_over_a_restart(cluster: EtcdCluster) -> None:
    """
    Before, while nobody reads, and while somebody waits: each event once, in order.
    """
    (member,) = cluster.members
    async with opened(*cluster.endpoints) as store, opened(*cluster.endpoints) as other:
        watch = store.watch("/w/", 1)
        await put(other, "/w/1")
        seen = await take(watch, 1)
        for number in (2, 4):
            waiting = asyncio.ensure_future(anext(watch)) if number == 4 else None
            member.kill()
            await asyncio.sleep(0.3)
            member.start()
            await asyncio.to_thread(cluster.wait_until_healthy)
            await put(other, f"/w/{number}")
            await put(other, f"/w/{number + 1}")
            seen += [] if waiting is None else await waiting
            seen += await take(watch, 2 if waiting is None else 1)
        await watch.aclose()

    assert [f"/w/{number}" for number in range(1, 6)] == keys_of(seen)


async def test_a_watch_that_was_cut_off_says_that_its_history_is_gone(cluster: EtcdCluster) -> None:
    """
    Compacted while it had no connection; again when asked again; read anew, nothing is missed.
    """
    (member,) = cluster.members
    async with opened(*cluster.endpoints) as store, opened(*cluster.endpoints) as other:
        await put(store, "/w/1")
        watch = store.watch("/w/", 1)
        assert ["/w/1"] == keys_of(await take(watch, 1))
        member.kill()
        member.start()
        await asyncio.to_thread(cluster.wait_until_healthy)
        await put(other, "/w/2")
        cluster.compact(await put(other, "/w/3"))

        for _ in range(2):
            with pytest.raises(CompactedError, match=r"revision 3 was asked for"):
                await anext(watch)
        await watch.aclose()

        revision, kvs = await store.get_prefix("/w/")
        again = store.watch("/w/", revision + 1)
        await put(other, "/w/4")
        assert ["/w/1", "/w/2", "/w/3"] == [kv.key for kv in kvs]
        assert ["/w/4"] == keys_of(await anext(again))


async def test_revisions_in_fragments_come_whole(cluster: EtcdCluster) -> None:
    """
    etcd cuts what a watch has to catch up with every 2 MiB, wherever that is.
    """
    async with opened(*cluster.endpoints) as store:
        start = (await store.get_prefix("/"))[0] + 1
        for number in range(10):
            puts = [Put(f"/w/{number}/{part}", bytes(LARGE)) for part in range(3)]
            await store.txn([], puts)
        watch = store.watch("/w/", start)

        lists = [await anext(watch) for _ in range(10)]

        expected = [[f"/w/{number}/{part}" for part in range(3)] for number in range(10)]
        assert expected == list(map(keys_of, lists))


async def test_one_revision_larger_than_a_message_comes_whole(cluster: EtcdCluster) -> None:
    """
    The deletes of 50,000 keys at once are one list, of one revision.
    """
    async with opened(*cluster.endpoints) as store:
        keys = [f"/w/{number:0100d}" for number in range(50_000)]
        for first in range(0, len(keys), 100):
            await store.txn([], [Put(key, b"") for key in keys[first : first + 100]])
        revision, _ = await store.get_prefix("/w/0")
        watch = store.watch("/w/", revision + 1)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.2)

        await store.txn([], [DeletePrefix("/w/")])

        assert [DeleteEvent(key, revision + 1) for key in keys] == await waiting


# ── Reads ──


@pytest.mark.parametrize(
    ("count", "value_bytes", "pages"), [(120, LARGE, range(3, 20)), (10_000, 100, range(10, 13))]
)
async def test_pages_fit_the_values(
    cluster: EtcdCluster, count: int, value_bytes: int, pages: range
) -> None:
    """
    48 MB of large values come a few at a time, 10,000 small ones by thousands; whole, in order.
    """
    (member,) = cluster.members
    async with opened(*cluster.endpoints) as store:
        per_txn = min(1_000_000 // value_bytes, 100)
        keys = [f"/k/{number:05d}" for number in range(count)]
        for first in range(0, count, per_txn):
            some = keys[first : first + per_txn]
            await store.txn([], [Put(key, key.encode().ljust(value_bytes)) for key in some])
        before = ranges_served(member)

        _, kvs = await store.get_prefix("/k/")

        assert keys == [kv.key for kv in kvs]
        assert keys == [kv.value.decode().rstrip() for kv in kvs]
        assert {value_bytes} == {len(kv.value) for kv in kvs}
        assert ranges_served(member) - before in pages


async def test_large_values_behind_many_small_ones_come_in_smaller_pages(
    cluster: EtcdCluster,
) -> None:
    """
    The size of a page is a guess from the last one.  No answer is larger than the client allows,
    and a value that is larger itself is an error.
    """
    (member,) = cluster.members
    async with opened(*cluster.endpoints, max_answer_bytes=2 * MiB) as store:
        sizes = [10] * 100 + [LARGE] * 20
        for number, size in enumerate(sizes):
            await put(store, f"/k/{number:05d}", bytes(size))
        before = ranges_served(member)

        _, kvs = await store.get_prefix("/k/")

        assert sizes == [len(kv.value) for kv in kvs]
        assert ranges_served(member) - before >= 1 + 20 * LARGE // (2 * MiB)
    async with opened(*cluster.endpoints, max_answer_bytes=LARGE) as store:
        with pytest.raises(OutcomeUnknownError, match="larger than max"):
            await store.get_prefix("/k/")


def ranges_served(member: EtcdMember) -> int:
    """How many Range requests the member has answered."""
    for line in member.metrics().splitlines():
        if line.startswith("grpc_server_handled_total{") and '"OK",grpc_method="Range"' in line:
            return int(float(line.rpartition(" ")[2]))
    return 0


async def test_pages_are_of_one_revision(cluster: EtcdCluster) -> None:
    """
    Two keys at the ends of 5,000 are always written together, and never read apart.
    """
    async with opened(*cluster.endpoints) as store, opened(*cluster.endpoints) as other:
        for first in range(0, 5_000, 100):
            await store.txn([], [Put(f"/k/{n:05d}", bytes(500)) for n in range(first, first + 100)])
        await store.txn([], [Put("/k/00000", b"0"), Put("/k/04999", b"0")])
        stop = False

        async def write() -> int:
            count = 0
            while not stop:
                count += 1
                value = b"%d" % count
                await other.txn([], [Put("/k/00000", value), Put("/k/04999", value)])
            return count

        writing = asyncio.ensure_future(write())
        ends = []
        for _ in range(10):
            revision, kvs = await store.get_prefix("/k/")
            assert 5_000 == len(kvs)
            assert max(kv.mod_revision for kv in kvs) <= revision
            ends.append((kvs[0].mod_revision, kvs[-1].mod_revision))
        stop = True

        assert await writing > 10
        assert [first for first, _ in ends] == [last for _, last in ends]


# ── Endpoints ──


async def test_a_write_that_was_refused_a_connection_goes_to_the_next_endpoint(
    cluster: EtcdCluster,
) -> None:
    """
    Nothing reached etcd, so nothing is in doubt; and the next call does not ask the dead one first.
    """
    dead = f"http://127.0.0.1:{free_port()}"
    async with opened(dead, *cluster.endpoints) as store:
        revision = await put(store, "/a")

        assert KeyValue("/a", b"", revision, revision) == await store.get("/a")
        assert cluster.endpoints[0] == (await store.status()).endpoint


async def test_an_etcd_that_is_not_there_is_named(tmp_path: Path) -> None:
    """
    Every endpoint, and why; nothing happened, of writes neither.
    """
    dead = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with opened(*dead) as store:
        calls: list[Callable[[], object]] = [
            lambda: put(store, "/a"),
            lambda: store.get("/a"),
            lambda: store.grant_lease(7, 2_000),
            lambda: store.keep_alive(7),
            lambda: store.revoke_lease(7),
        ]
        for call in calls:
            with pytest.raises(UnavailableError) as raised:
                await call()  # type: ignore[misc]
            assert all(endpoint in str(raised.value) for endpoint in dead)
            assert "Connection refused" in str(raised.value)


async def test_members_of_two_clusters_are_not_mixed(tmp_path: Path) -> None:
    """
    The second cluster is not written to when the first is away: its keys are another truth.  Nor
    when it is asked again, by then connected.
    """
    version = etcd_server.newest_version()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        etcd_server.start(version, tmp_path / "a") as first,
        etcd_server.start(version, tmp_path / "b") as second,
    ):
        async with opened(*first.endpoints, *second.endpoints) as store:
            await put(store, "/a")
            first.stop()
            with contextlib.suppress(OutcomeUnknownError, UnavailableError):  # it may not know yet
                await store.get("/a")
            for _ in range(3):
                with pytest.raises(UnavailableError, match=r"correct the list of endpoints"):
                    await put(store, "/a")
        async with opened(*second.endpoints) as other:
            assert await other.get("/a") is None


async def test_a_write_that_was_lost_with_its_connection_is_in_doubt(cluster: EtcdCluster) -> None:
    """
    etcd took it and was killed: it may have happened, and the error names the endpoint.
    """
    (member,) = cluster.members
    async with opened(*cluster.endpoints) as store:
        await put(store, "/a")
        member.freeze()
        writing = asyncio.ensure_future(put(store, "/a"))
        await asyncio.sleep(1)  # nobody tells when it is sent
        member.kill()

        with pytest.raises(OutcomeUnknownError, match=member.url):
            await writing


async def test_keep_alives_are_given_longer_by_an_etcd_that_needs_longer(
    cluster: EtcdCluster,
) -> None:
    """
    One that took more than its time is followed by one that is given twice as long; then as before.
    """
    (member,) = cluster.members
    loop = asyncio.get_running_loop()
    async with opened(*cluster.endpoints, keep_alive_timeout_ms=1_400) as store:
        await store.grant_lease(7, 60_000)
        took_s: list[float | None] = []
        for stands_still_s in (1.8, 1.8, 0.0, 1.8):
            if stands_still_s:
                member.freeze()
                loop.call_later(stands_still_s, member.thaw)
            began_s = loop.time()
            try:
                await store.keep_alive(7)
                took_s.append(loop.time() - began_s)
            except (UnavailableError, OutcomeUnknownError):
                took_s.append(None)
            async with asyncio.timeout(30):
                await reach(store)

    lost, late, quick, lost_again = took_s
    assert lost is lost_again is None
    assert late is not None
    assert quick is not None
    assert late > 1.4


async def test_a_closed_store_says_so(cluster: EtcdCluster) -> None:
    """
    Calls that wait are told that they are in doubt, later ones that it is closed.
    """
    (member,) = cluster.members
    async with opened(*cluster.endpoints) as store:
        await put(store, "/a")
        member.freeze()
        writing = asyncio.ensure_future(put(store, "/a"))
        await asyncio.sleep(0.2)
        await store.close()

        with pytest.raises(OutcomeUnknownError):
            await writing
        with pytest.raises(UnavailableError, match=r"closed"):
            await put(store, "/a")


async def test_a_store_that_is_closed_while_it_connects_did_nothing(cluster: EtcdCluster) -> None:
    """
    Certain, for a write too; and its caller is not cancelled, who is somebody else.
    """
    cluster.members[0].freeze()
    async with opened(*cluster.endpoints) as store:
        writing = asyncio.ensure_future(put(store, "/a"))
        await asyncio.sleep(0.2)
        await store.close()

        with pytest.raises(UnavailableError, match=r"closed here"):
            await writing


async def test_a_store_in_a_thread_goes_on_while_another_loop_is_blocked(
    cluster: EtcdCluster,
) -> None:
    """
    Each event loop has a store of its own; keep-alives of one do not wait for the other.
    """
    kept = 0

    async def keep_alive() -> None:
        nonlocal kept
        async with opened(*cluster.endpoints) as mine:
            await mine.grant_lease(7, 60_000)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                await mine.keep_alive(7)
                kept += 1

    async with opened(*cluster.endpoints) as store:
        await put(store, "/a")
        keeper = threading.Thread(target=asyncio.run, args=(keep_alive(),))
        keeper.start()
        keeper.join()  # blocks this loop, with a connection of its own open

        assert kept > 20
        await put(store, "/a")


# ── What etcd refuses ──


async def test_smaller_limits_of_the_server_are_named(tmp_path: Path) -> None:
    """
    ValueError, as for our own limits, with the setting of etcd's that is too small.
    """
    arguments = ["--max-txn-ops", "8", "--max-request-bytes", "100000"]
    version = etcd_server.newest_version()
    with etcd_server.start(version, tmp_path, arguments=arguments) as cluster:
        async with opened(*cluster.endpoints) as store:
            with pytest.raises(ValueError, match=r"--max-txn-ops"):
                await store.txn([], [Put(f"/{n}", b"") for n in range(9)])
            with pytest.raises(ValueError, match=r"--max-request-bytes"):
                await put(store, "/large", bytes(200_000))

            assert await store.get("/large") is None


@pytest.mark.parametrize("version", etcd_server.EACH_VERSION)
async def test_a_full_etcd_says_what_to_do_and_that_works(version: str, tmp_path: Path) -> None:
    """
    Puts and leases are refused and nothing happened; deletes go on; after compaction,
    defragmentation and disarming it takes writes again.
    """
    arguments = ["--quota-backend-bytes", str(2**21)]
    with etcd_server.start(version, tmp_path, arguments=arguments) as cluster:
        async with opened(*cluster.endpoints) as store:
            with pytest.raises(UnavailableError, match=r"defragment every member .*then disarm"):
                await etcd_server.fill(store)
            with pytest.raises(UnavailableError, match=r"etcd is full"):
                await store.grant_lease(7, 2_000)
            assert "NOSPACE" in "".join((await store.status()).errors)
            revision = (await store.txn([], [Delete("/k")])).revision

            await asyncio.to_thread(cluster.make_room, revision)

            await put(store, "/k", bytes(100_000))
            status = await store.status()
            assert ((), True) == (status.errors, status.db_size_bytes < 2**20)


@pytest.mark.parametrize("version", etcd_server.EACH_VERSION)
async def test_each_member_tells_its_quota_whatever_its_version(
    version: str, tmp_path: Path
) -> None:
    """
    And its size and its revision; one that is frozen is left out, and keeps nobody waiting.
    """
    quota = 2**22
    arguments = ["--quota-backend-bytes", str(quota)]
    with etcd_server.start(version, tmp_path, members=3, arguments=arguments) as cluster:
        async with opened(*cluster.endpoints) as store:
            revision = await put(store, "/k")
            all_of_them = await store.each_status()
            cluster.members[1].freeze()
            without = await store.each_status()
            cluster.members[1].thaw()

    assert list(cluster.endpoints) == [status.endpoint for status in all_of_them]
    assert {quota} == {status.quota_bytes for status in all_of_them}
    assert revision == max(status.revision for status in all_of_them)
    assert all(0 < status.db_size_bytes < quota for status in all_of_them)
    assert [cluster.endpoints[0], cluster.endpoints[2]] == [s.endpoint for s in without]
