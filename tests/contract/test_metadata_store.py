"""The metadata port's promises hold, sentence by sentence, on every store behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
from _pytest.mark.structures import ParameterSet

from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    CompactedError,
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
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
    StoreWentBackError,
    ValueIs,
    Watch,
    WatchEvent,
)
from tests.support import etcd_server
from tests.support.memory_store import MemoryMetadataStore

TTL_MS = 4_000


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass(slots=True)
class Subject:
    """A store under test, and what a test does to it from outside.

    ``wait_ms`` lets time pass for its leases (virtual here, real for etcd);
    ``forget_history`` makes it forget every event up to its present revision.
    """

    store: MetadataStore
    wait_ms: Callable[[int], Awaitable[None]]
    forget_history: Callable[[], Awaitable[None]]


Opener = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def open_memory(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """The simulator's store."""
    clock = Clock()
    store = MemoryMetadataStore(clock)

    async def wait_ms(duration_ms: int) -> None:
        clock.now_ms += duration_ms
        store.expire()

    async def forget_history() -> None:
        store.compact(store.revision)

    yield Subject(store, wait_ms, forget_history)
    await store.close()


@asynccontextmanager
async def open_sqlite(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """The embedded store, with a history so short that a few writes push all of it out."""
    clock = Clock()
    history_events = 256
    path = request.getfixturevalue("tmp_path") / "metadata.db"
    store = await SqliteMetadataStore.open(path, clock, history_events=history_events)

    async def wait_ms(duration_ms: int) -> None:
        clock.now_ms += duration_ms
        await store.expire()

    async def forget_history() -> None:
        await asyncio.gather(*(put(store, "/elsewhere") for _ in range(history_events + 1)))

    yield Subject(store, wait_ms, forget_history)
    await store.close()


def patient(cluster: etcd_server.EtcdCluster) -> EtcdSettings:
    """A deadline that a busy machine keeps; only keep-alives find out soon that nobody answers."""
    return EtcdSettings(
        endpoints=cluster.endpoints, try_timeout_ms=10_000, keep_alive_timeout_ms=500
    )


def open_etcd(version: str) -> Opener:
    """A new etcd of one member."""

    @asynccontextmanager
    async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
        with etcd_server.start(version, request.getfixturevalue("tmp_path")) as cluster:
            store = EtcdMetadataStore(patient(cluster))
            yield etcd_subject(store, cluster)
            await store.close()

    return opened


MemberAction = Callable[[etcd_server.EtcdMember], None]


def open_three(fault: MemberAction, repair: MemberAction) -> Opener:
    """Three members, one of which is away since the store connected to it."""

    @asynccontextmanager
    async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
        cluster: etcd_server.EtcdCluster = request.getfixturevalue("three_members")
        first = cluster.members[0]
        store = EtcdMetadataStore(patient(cluster))
        await store.get("/connected")
        fault(first)
        cluster.wait_until_healthy(cluster.members[1:])
        # The call that finds out, soonest of all; the test's calls go elsewhere.
        with pytest.raises(LeaseNotFoundError):
            await store.keep_alive(1)
        yield etcd_subject(store, cluster)
        await store.txn([], [DeletePrefix("/")])
        for lease_id in (7, 8):
            await store.revoke_lease(lease_id)
        await store.close()
        repair(first)
        cluster.wait_until_healthy()

    return opened


def etcd_subject(store: EtcdMetadataStore, cluster: etcd_server.EtcdCluster) -> Subject:
    """Time is real, but for the last millisecond of a lease.

    It is two seconds, for a busy machine, and one more until etcd has noticed.  Still, to have
    waited for almost all of a lease twice is to have waited for its end.
    """
    seconds = {TTL_MS - 1: TTL_MS / 1000 - 2, 1: 2 + 1.5, TTL_MS: TTL_MS / 1000 + 1.5}

    async def wait_ms(duration_ms: int) -> None:
        await asyncio.sleep(seconds[duration_ms])

    async def forget_history() -> None:
        revision, _ = await store.get_prefix("/")
        await asyncio.to_thread(cluster.compact, revision)

    return Subject(store, wait_ms, forget_history)


@pytest.fixture(scope="module")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_server.EtcdCluster]:
    """One cluster for all tests of a worker: it takes two seconds to start.

    Not longer: three idle members take a fifth of a core from what comes next."""
    directory = tmp_path_factory.mktemp("etcd")
    with etcd_server.start(etcd_server.newest_version(), directory, members=3) as cluster:
        yield cluster


def etcd_stores() -> list[ParameterSet]:
    """Each version alone, and the newest with three members of which one fails.

    `make test` has the newest alone, `make verify` the others.
    """
    if not etcd_server.VERSIONS:
        return [pytest.param(None, id="etcd", marks=pytest.mark.skip(reason=etcd_server.NO_ETCD))]
    member = etcd_server.EtcdMember
    three = [pytest.mark.verify, pytest.mark.real_processes, pytest.mark.xdist_group("etcd-three")]
    return [
        *(
            pytest.param(open_etcd(str(each.values[0])), id=each.id, marks=each.marks)
            for each in etcd_server.EACH_VERSION
        ),
        pytest.param(
            open_three(member.kill, member.start), id="etcd-three-one-killed", marks=three
        ),
        pytest.param(
            open_three(member.freeze, member.thaw), id="etcd-three-one-frozen", marks=three
        ),
    ]


STORES = [
    pytest.param(open_memory, id="memory"),
    pytest.param(open_sqlite, id="sqlite"),
    *etcd_stores(),
]


@pytest.fixture(params=STORES)
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """An empty store."""
    async with request.param(request) as opened:
        yield opened


@pytest.fixture
def store(subject: Subject) -> MetadataStore:
    """An empty store, for tests that need nothing else."""
    return subject.store


async def put(store: MetadataStore, key: str, value: bytes = b"", lease_id: int = 0) -> int:
    """Put unconditionally; return the revision."""
    return (await store.txn([], [Put(key, value, lease_id)])).revision


async def keys_under(store: MetadataStore, prefix: str) -> list[str]:
    """The keys alone."""
    return [kv.key for kv in (await store.get_prefix(prefix))[1]]


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    """The next *count* events, flattened."""
    events: list[WatchEvent] = []
    while len(events) < count:
        events += await anext(watch)
    return events


# ── Revisions ──


async def test_every_change_takes_the_next_revision(store: MetadataStore) -> None:
    """
    One revision counts all changes of the store, whichever key they touch.
    """
    first = await put(store, "/a")
    second = await put(store, "/b")
    deleted = await store.txn([], [Delete("/a")])

    assert [first + 1, first + 2] == [second, deleted.revision]


async def test_changes_of_one_transaction_share_its_revision(store: MetadataStore) -> None:
    """
    Two puts of one transaction are created and modified at the revision it returned.
    """
    result = await store.txn([], [Put("/a", b"1"), Put("/b", b"2")])

    revision = result.revision
    expected = [KeyValue("/a", b"1", revision, revision), KeyValue("/b", b"2", revision, revision)]
    assert (revision, expected) == await store.get_prefix("/")


@pytest.mark.parametrize(
    "operations", [[], [Get("/a")], [GetPrefix("/")], [Delete("/b")], [DeletePrefix("/b")]]
)
async def test_a_transaction_that_changes_nothing_takes_no_revision(
    store: MetadataStore, operations: list[Operation]
) -> None:
    """
    Reads, and deletes of what is not there, leave the store's revision as it was.
    """
    revision = await put(store, "/a")

    result = await store.txn([], operations)

    assert (True, revision) == (result.succeeded, result.revision)


async def test_an_overwrite_keeps_the_create_revision(store: MetadataStore) -> None:
    """
    The same value again is a change too: its modification revision moves.
    """
    created = await put(store, "/a", b"1")
    modified = await put(store, "/a", b"1")

    assert KeyValue("/a", b"1", created, modified) == await store.get("/a")
    assert created < modified


async def test_a_key_created_again_is_another_one(store: MetadataStore) -> None:
    """
    After a delete the create revision is a new one: fences rely on it.
    """
    await put(store, "/a", b"1")
    await store.txn([], [Delete("/a")])
    assert await store.get("/a") is None

    again = await put(store, "/a", b"2")

    assert KeyValue("/a", b"2", again, again) == await store.get("/a")


# ── Compares ──


async def test_compares_see_the_key_as_it_is(store: MetadataStore) -> None:
    """
    Each compare holds exactly when its sentence does; revision 0 means that the key is not there.
    """
    created = await put(store, "/a", b"1")
    modified = await put(store, "/a", b"2")
    cases: list[tuple[Compare, bool]] = [
        (CreateRevisionIs("/a", created), True),
        (CreateRevisionIs("/a", modified), False),
        (CreateRevisionIs("/a", 0), False),
        (CreateRevisionIs("/none", 0), True),
        (CreateRevisionIs("/none", created), False),
        (ModRevisionIs("/a", modified), True),
        (ModRevisionIs("/a", created), False),
        (ModRevisionIs("/a", 0), False),
        (ModRevisionIs("/none", 0), True),
        (ValueIs("/a", b"2"), True),
        (ValueIs("/a", b"1"), False),
        (ValueIs("/none", b""), False),
        (NotWrittenSince("/a", modified), True),
        (NotWrittenSince("/a", created), False),
        (NotWrittenSince("/", created), False),
        (NotWrittenSince("/none", 0), True),
    ]

    verdicts = [(compare, (await store.txn([compare], [])).succeeded) for compare, _ in cases]

    assert cases == verdicts


async def test_a_prefix_counts_as_written_by_any_key_under_it(store: MetadataStore) -> None:
    """
    By a new key and by one that was there, not by a neighbour of the prefix nor by a deletion.
    """
    await put(store, "/p/a", b"")
    await put(store, "/p/b", b"")
    read = (await store.txn([], [GetPrefix("/p/")])).revision
    unchanged = [NotWrittenSince("/p/", read)]

    await store.txn([], [Delete("/p/a"), Put("/p", b""), Put("/p0", b"")])
    still = await store.txn(unchanged, [])
    await put(store, "/p/b", b"")
    written = await store.txn(unchanged, [])
    await store.txn([], [Delete("/p/b")])
    gone = await store.txn(unchanged, [])
    await put(store, "/p/c", b"")
    created = await store.txn(unchanged, [])

    assert [True, False, True, False] == [
        result.succeeded for result in (still, written, gone, created)
    ]


async def test_then_runs_only_if_every_compare_holds(store: MetadataStore) -> None:
    """
    One that fails sends the transaction to its other branch, which reads and writes as well.
    """
    await put(store, "/a", b"1")

    result = await store.txn(
        [ValueIs("/a", b"1"), ValueIs("/a", b"2")],
        [Put("/then", b"")],
        [Put("/otherwise", b""), Get("/a")],
    )

    assert ["/a", "/otherwise"] == await keys_under(store, "/")
    assert (False, [(), (b"1",)]) == (
        result.succeeded,
        [tuple(kv.value for kv in read) for read in result.reads],
    )


async def test_without_compares_then_runs(store: MetadataStore) -> None:
    """
    All of none hold.
    """
    result = await store.txn([], [Put("/then", b"")], [Put("/otherwise", b"")])

    assert result.succeeded
    assert ["/then"] == await keys_under(store, "/")


async def test_a_failed_compare_without_a_branch_changes_nothing(store: MetadataStore) -> None:
    """
    The late copy of a write does nothing and says so.
    """
    revision = await put(store, "/a", b"1")

    result = await store.txn([CreateRevisionIs("/a", 0)], [Put("/a", b"2")])

    assert (False, revision, ()) == (result.succeeded, result.revision, result.reads)
    assert KeyValue("/a", b"1", revision, revision) == await store.get("/a")


# ── Operations ──


async def test_operations_are_applied_in_order(store: MetadataStore) -> None:
    """
    A read sees what stands before it in the transaction, and nothing that stands behind it.
    """
    await put(store, "/a/1")

    result = await store.txn(
        [],
        [
            Get("/a/2"),
            Put("/a/2", b"new"),
            GetPrefix("/a/"),
            Delete("/a/1"),
            GetPrefix("/a/"),
            Get("/a/1"),
        ],
    )

    keys = [[kv.key for kv in read] for read in result.reads]
    assert [[], [], ["/a/1", "/a/2"], [], ["/a/2"], []] == keys
    assert (result.revision, result.revision) == (
        result.reads[2][1].create_revision,
        result.reads[2][1].mod_revision,
    )


async def test_delete_prefix_removes_what_starts_with_it(store: MetadataStore) -> None:
    """
    The prefix is of the key's bytes, and needs no slash.
    """
    for key in ("/a", "/a/", "/a/x", "/ab", "/b", "/"):
        await put(store, key)

    await store.txn([], [DeletePrefix("/a/")])
    assert ["/", "/a", "/ab", "/b"] == await keys_under(store, "/")

    await store.txn([], [DeletePrefix("/a")])
    assert ["/", "/b"] == await keys_under(store, "/")


async def test_prefixes_are_read_in_the_order_of_the_bytes(store: MetadataStore) -> None:
    """
    Ascending by UTF-8 byte, whatever the order of writing; keys may hold any character.
    """
    keys = [
        "/k/\x00",
        "/k/\x7f",
        "/k/é",
        "/k/Z",
        "/k/a",
        "/k/\uffff",
        "/k/\U0001f600",
        "/k/%",
        "/k/",
    ]
    for key in keys:
        await put(store, key, key.encode())

    _, kvs = await store.get_prefix("/k/")

    ordered = sorted(keys, key=str.encode)
    assert ordered == [kv.key for kv in kvs]
    assert [key.encode() for key in ordered] == [kv.value for kv in kvs]


async def test_a_prefix_may_end_inside_nothing_or_in_any_character(store: MetadataStore) -> None:
    """
    Prefixes whose last byte is the largest of its kind cover their keys and no others.
    """
    for key in ("/k\x7f", "/k\x7fa", "/k\u07ff", "/k\u07ffa", "/k\u0800", "/k\U0010ffffa"):
        await put(store, key)

    assert ["/k\x7f", "/k\x7fa"] == await keys_under(store, "/k\x7f")
    assert ["/k\u07ff", "/k\u07ffa"] == await keys_under(store, "/k\u07ff")
    assert ["/k\U0010ffffa"] == await keys_under(store, "/k\U0010ffff")
    assert [] == await keys_under(store, "/l")


async def test_values_are_any_bytes(store: MetadataStore) -> None:
    """
    Empty, zero bytes, and what is not UTF-8 come back as they were.
    """
    values = [b"", b"\x00", bytes(range(256)), b"x" * 1_000_000]
    for value in values:
        await put(store, "/v", value)
        kv = await store.get("/v")

        assert kv is not None
        assert (value, bytes) == (kv.value, type(kv.value))


async def test_get_prefix_of_keys_only_has_empty_values(store: MetadataStore) -> None:
    """
    A listing of what there is does not read what it says.
    """
    at = [await put(store, "/k/1", b"one"), await put(store, "/k/2", b"two")]

    _, kvs = await store.get_prefix("/k/", keys_only=True)

    keys = zip(("/k/1", "/k/2"), at, strict=True)
    assert [KeyValue(key, b"", revision, revision) for key, revision in keys] == kvs


async def test_get_prefix_tells_the_revision_it_read_at(store: MetadataStore) -> None:
    """
    A watch from the next revision misses nothing and repeats nothing; also of an empty prefix.
    """
    await put(store, "/a/1")
    revision = await put(store, "/b")

    assert (revision, []) == await store.get_prefix("/c")

    read_at, kvs = await store.get_prefix("/a/")
    watch = store.watch("/a/", read_at + 1)
    await put(store, "/a/2")

    assert (["/a/1"], revision) == ([kv.key for kv in kvs], read_at)
    assert [[PutEvent(KeyValue("/a/2", b"", revision + 1, revision + 1))]] == [await anext(watch)]
    await watch.aclose()


async def test_a_prefix_of_ten_thousand_keys_is_read_whole(store: MetadataStore) -> None:
    """
    However many keys there are, at one revision.
    """
    for start in range(0, 10_000, MAX_TXN_OPS):
        numbers = range(start, min(start + MAX_TXN_OPS, 10_000))
        await store.txn([], [Put(f"/k/{n:05d}", b"v" * 100) for n in numbers])

    assert [f"/k/{n:05d}" for n in range(10_000)] == await keys_under(store, "/k/")


# ── Limits ──


async def test_128_of_each_are_allowed(store: MetadataStore) -> None:
    """
    Compares and each branch are counted apart.
    """
    result = await store.txn(
        [CreateRevisionIs(f"/{n}", 0) for n in range(MAX_TXN_OPS)],
        [Put(f"/{n}", b"") for n in range(MAX_TXN_OPS)],
        [Get(f"/{n}") for n in range(MAX_TXN_OPS)],
    )

    assert (True, MAX_TXN_OPS) == (result.succeeded, len(await keys_under(store, "/")))


def puts(count: int) -> list[Operation]:
    """So many puts of different keys."""
    return [Put(f"/{n}", b"") for n in range(count)]


@pytest.mark.parametrize(
    ("compares", "then", "otherwise"),
    [
        ([ValueIs("/a", b"")] * (MAX_TXN_OPS + 1), [], []),
        ([], puts(MAX_TXN_OPS + 1), []),
        ([], [], puts(MAX_TXN_OPS + 1)),
        ([], [Put("/x", b"x" * MAX_TXN_BYTES)], []),
        ([], [Put("/x", b"x" * (MAX_TXN_BYTES // 2))], [Put("/x", b"x" * (MAX_TXN_BYTES // 2))]),
        ([ValueIs("/a", b"x" * MAX_TXN_BYTES)], [], []),
        ([], [Put("/x", b"1"), Put("/x", b"2")], []),
        ([], [], [Put("/x", b"1"), Put("/x", b"2")]),
        ([], [Put("/x", b""), Delete("/x")], []),
        ([], [Delete("/x"), Put("/x", b"")], []),
        ([], [Put("/x/1", b""), DeletePrefix("/x/")], []),
        ([], [DeletePrefix("/x"), Put("/x", b"")], []),
        ([], [Put("/y", b""), Put("", b"")], []),
        ([], [DeletePrefix("")], []),
        ([], [GetPrefix("")], []),
        ([], [Get("")], []),
        ([], [Delete("")], []),
        ([CreateRevisionIs("", 0)], [], []),
        ([], [Put("/x", b"", -1)], []),
        ([], [Put("/x", b"", 2**63)], []),
        ([], [Put("/\ud800", b"")], []),
    ],
)
async def test_what_is_over_a_limit_is_refused_whole(
    store: MetadataStore,
    compares: list[Compare],
    then: list[Operation],
    otherwise: list[Operation],
) -> None:
    """
    ValueError, in whichever branch it stands, and nothing was applied.
    """
    revision = await put(store, "/before")

    with pytest.raises(ValueError, match=r"."):
        await store.txn(compares, then, otherwise)

    assert ["/before"] == await keys_under(store, "/")
    assert revision + 1 == await put(store, "/after")


async def test_what_only_looks_like_an_overlap_is_allowed(store: MetadataStore) -> None:
    """
    The same key in both branches, deletes that overlap, a put beside a deleted prefix.
    """
    await put(store, "/x/1")

    result = await store.txn(
        [],
        [DeletePrefix("/x/"), Delete("/x/1"), Delete("/x/1"), Put("/x", b""), Get("/x/1")],
        [Put("/x", b"")],
    )

    assert result.succeeded
    assert ["/x"] == await keys_under(store, "/")


async def test_calls_without_a_key_are_refused(store: MetadataStore) -> None:
    """
    Empty keys and prefixes, lease ids, times to live and revisions out of range: ValueError.
    """
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get(""),
        lambda: store.get_prefix(""),
        lambda: store.grant_lease(0, TTL_MS),
        lambda: store.grant_lease(2**63, TTL_MS),
        lambda: store.grant_lease(1, 0),
        lambda: store.keep_alive(0),
        lambda: store.revoke_lease(0),
        lambda: anext(store.watch("", 1)),
        lambda: anext(store.watch("/", 0)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"."):
            await call()


# ── Leases ──


async def test_a_leases_keys_go_when_its_time_is_over(subject: Subject) -> None:
    """
    They are there for the whole time to live, and then go at one revision; others stay.
    """
    store = subject.store
    await store.grant_lease(7, TTL_MS)
    await store.txn([], [Put("/l/b", b"", 7), Put("/l/a", b"", 7), Put("/stays", b"")])
    before = await put(store, "/last")
    kv = await store.get("/l/a")

    await subject.wait_ms(TTL_MS - 1)
    assert ["/l/a", "/l/b"] == await keys_under(store, "/l/")
    await subject.wait_ms(1)

    assert kv is not None
    assert 7 == kv.lease_id
    assert [] == await keys_under(store, "/l/")
    assert (before + 1, ["/last", "/stays"]) == (
        (await store.get_prefix("/"))[0],
        await keys_under(store, "/"),
    )


async def test_a_lease_that_is_kept_alive_lasts(subject: Subject) -> None:
    """
    Each keep-alive gives it its full time to live again.
    """
    store = subject.store
    await store.grant_lease(7, TTL_MS)
    await put(store, "/l", lease_id=7)
    for _ in range(3):
        await subject.wait_ms(TTL_MS - 1)
        await store.keep_alive(7)
    await subject.wait_ms(TTL_MS - 1)

    assert ["/l"] == await keys_under(store, "/l")


async def test_an_expired_lease_is_gone_for_good(subject: Subject) -> None:
    """
    Neither a keep-alive nor a put brings it back; a transaction that names it applies nothing.
    """
    store = subject.store
    await store.grant_lease(7, TTL_MS)
    await subject.wait_ms(TTL_MS)

    with pytest.raises(LeaseNotFoundError):
        await store.keep_alive(7)
    with pytest.raises(LeaseNotFoundError):
        await store.txn([], [Put("/a", b""), Put("/b", b"", 7)])

    assert [] == await keys_under(store, "/")


async def test_only_the_branch_that_runs_needs_its_leases(store: MetadataStore) -> None:
    """
    A fenced agent hears that its compare failed, though its lease is gone as well.
    """
    result = await store.txn([ValueIs("/none", b"")], [Put("/a", b"", 7)], [Get("/a")])

    assert not result.succeeded
    with pytest.raises(LeaseNotFoundError):
        await store.txn([ValueIs("/none", b"")], [], [Put("/a", b"", 7)])


async def test_revoking_deletes_the_keys_now(store: MetadataStore) -> None:
    """
    And is harmless when the lease is gone already, or never was.
    """
    await store.grant_lease(7, TTL_MS)
    await store.grant_lease(8, TTL_MS)
    await put(store, "/seven", lease_id=7)
    await put(store, "/eight", lease_id=8)

    await store.revoke_lease(7)
    await store.revoke_lease(7)
    await store.revoke_lease(9)

    assert ["/eight"] == await keys_under(store, "/")
    with pytest.raises(LeaseNotFoundError):
        await store.keep_alive(7)


async def test_a_repeated_grant_changes_nothing(subject: Subject) -> None:
    """
    Its answer was lost, so it is sent again: the lease keeps its keys and its deadline.
    """
    store = subject.store
    await store.grant_lease(7, TTL_MS)
    await put(store, "/l", lease_id=7)
    await subject.wait_ms(TTL_MS - 1)

    await store.grant_lease(7, TTL_MS * 100)
    assert ["/l"] == await keys_under(store, "/l")
    await subject.wait_ms(1)

    assert [] == await keys_under(store, "/l")


async def test_a_lease_may_be_granted_again_after_its_end(store: MetadataStore) -> None:
    """
    It is a new one, without the old one's keys.
    """
    await store.grant_lease(7, TTL_MS)
    await put(store, "/old", lease_id=7)
    await store.revoke_lease(7)

    await store.grant_lease(7, TTL_MS)
    await put(store, "/new", lease_id=7)

    assert ["/new"] == await keys_under(store, "/")


async def test_the_last_put_decides_a_keys_lease(store: MetadataStore) -> None:
    """
    A put without a lease takes the key off its lease, one with another moves it there.
    """
    await store.grant_lease(7, TTL_MS)
    await store.grant_lease(8, TTL_MS)
    for key in ("/taken-off", "/moved", "/deleted", "/left"):
        await put(store, key, lease_id=7)
    await put(store, "/taken-off")
    await put(store, "/moved", lease_id=8)
    await store.txn([], [Delete("/deleted")])
    await put(store, "/deleted")

    await store.revoke_lease(7)
    assert ["/deleted", "/moved", "/taken-off"] == await keys_under(store, "/")

    await store.revoke_lease(8)
    assert ["/deleted", "/taken-off"] == await keys_under(store, "/")


async def test_the_end_of_an_empty_lease_takes_no_revision(subject: Subject) -> None:
    """
    Nothing changed that anybody could watch.
    """
    store = subject.store
    revision = await put(store, "/a")
    await store.grant_lease(7, TTL_MS)
    await store.grant_lease(8, TTL_MS)
    await store.revoke_lease(7)
    await subject.wait_ms(TTL_MS)

    assert revision + 1 == await put(store, "/a")


# ── Watches ──


async def test_a_watch_tells_every_change_under_its_prefix(store: MetadataStore) -> None:
    """
    In order, none twice, nothing else; one list for each revision, in the operations' order.
    """
    start = await put(store, "/w/a", b"1")
    watch = store.watch("/w/", start)
    await put(store, "/elsewhere")
    await store.txn([], [Put("/w/c", b"3"), Put("/x", b""), Put("/w/b", b"2")])
    await store.txn([], [Delete("/w/none"), Delete("/w/a")])
    await store.txn([], [DeletePrefix("/")])

    expected: list[WatchEvent] = [
        PutEvent(KeyValue("/w/a", b"1", start, start)),
        PutEvent(KeyValue("/w/c", b"3", start + 2, start + 2)),
        PutEvent(KeyValue("/w/b", b"2", start + 2, start + 2)),
        DeleteEvent("/w/a", start + 3),
        DeleteEvent("/w/b", start + 4),
        DeleteEvent("/w/c", start + 4),
    ]
    assert expected == await take(watch, len(expected))
    await watch.aclose()


async def test_events_of_one_revision_come_in_one_list(store: MetadataStore) -> None:
    """
    Whoever applies a list is never in the middle of a transaction.
    """
    start = (await store.get_prefix("/"))[0] + 1
    watch = store.watch("/", start)
    for round_number in range(5):
        await store.txn([], [Put(f"/{round_number}/{n}", b"") for n in range(50)])

    split: list[list[WatchEvent]] = []
    while len(split) < 5:
        events = await anext(watch)
        assert 0 == len(events) % 50
        split += [events[at : at + 50] for at in range(0, len(events), 50)]

    revisions = [
        {event.kv.mod_revision for event in events if isinstance(event, PutEvent)}
        for events in split
    ]
    assert [{start + n} for n in range(5)] == revisions
    await watch.aclose()


async def test_a_waiting_watch_wakes(store: MetadataStore) -> None:
    """
    What does not concern it does not wake it; what does, does.
    """
    start = (await store.get_prefix("/"))[0] + 1
    watch = store.watch("/w/", start)
    waiting = asyncio.ensure_future(anext(watch))
    await put(store, "/elsewhere")
    assert not waiting.done()

    revision = await put(store, "/w/a")

    assert [PutEvent(KeyValue("/w/a", b"", revision, revision))] == await waiting
    await watch.aclose()


async def test_a_watch_resumes_from_any_revision(store: MetadataStore) -> None:
    """
    From each revision on it tells exactly what happened there and later.
    """
    revisions = [await put(store, f"/w/{n}") for n in range(5)]
    for at, revision in enumerate(revisions):
        watch = store.watch("/w/", revision)
        expected = [PutEvent(KeyValue(f"/w/{n}", b"", r, r)) for n, r in enumerate(revisions)][at:]

        assert expected == await take(watch, 5 - at)
        await watch.aclose()


async def test_a_watch_may_start_at_the_next_revision(store: MetadataStore) -> None:
    """
    It waits for it.
    """
    revision = await put(store, "/w/0")
    watch = store.watch("/w/", revision + 1)
    waiting = asyncio.ensure_future(anext(watch))
    await put(store, "/w/1")

    assert [PutEvent(KeyValue("/w/1", b"", revision + 1, revision + 1))] == await waiting
    await watch.aclose()


async def test_a_watch_of_a_store_that_went_back_says_so(store: MetadataStore) -> None:
    """
    Its reader has seen the revision before its first one.  A store that has not come there has lost
    it: the watch says so, at once and again, and tells no other revision in its place.
    """
    revision = await put(store, "/w/0")
    watch = store.watch("/w/", revision + 3)
    for _ in range(2):
        with pytest.raises(StoreWentBackError) as error:
            async with asyncio.timeout(60):
                await anext(watch)

        assert (revision + 2, revision) == (error.value.seen, error.value.found)
    await watch.aclose()


async def test_several_watches_do_not_disturb_each_other(store: MetadataStore) -> None:
    """
    Each goes at its own pace, over its own prefix.
    """
    start = (await store.get_prefix("/"))[0] + 1
    everything, slow, other = (store.watch(prefix, start) for prefix in ("/", "/a", "/b"))
    for key in ("/a", "/b", "/a", "/b"):
        await put(store, key)
    await take(everything, 4)
    await everything.aclose()

    first_b = KeyValue("/b", b"", start + 1, start + 1)
    assert [PutEvent(first_b)] == (await take(other, 2))[:1]
    first_a = KeyValue("/a", b"", start, start)
    assert [PutEvent(first_a), PutEvent(KeyValue("/a", b"", start, start + 2))] == (
        await take(slow, 2)
    )
    await slow.aclose()
    await other.aclose()


async def test_a_cancelled_wait_loses_no_event(store: MetadataStore) -> None:
    """
    The next `anext` tells what happened meanwhile.
    """
    start = (await store.get_prefix("/"))[0] + 1
    watch = store.watch("/w", start)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    revisions = [await put(store, "/w", b"1"), await put(store, "/w", b"2")]
    with pytest.raises(asyncio.CancelledError):
        await waiting

    events = await take(watch, 2)

    assert revisions == [e.kv.mod_revision for e in events if isinstance(e, PutEvent)]
    await watch.aclose()


async def test_a_watch_tells_the_end_of_leases(subject: Subject) -> None:
    """
    Expired or revoked: its keys' deletes come in one list, in key order.
    """
    store = subject.store
    await store.grant_lease(7, TTL_MS)
    await store.grant_lease(8, TTL_MS)
    await store.txn([], [Put("/w/b", b"", 7), Put("/w/a", b"", 7)])
    revision = await put(store, "/w/c", lease_id=8)
    watch = store.watch("/w/", revision + 1)

    await store.revoke_lease(7)
    await subject.wait_ms(TTL_MS)

    expected: list[WatchEvent] = [
        DeleteEvent("/w/a", revision + 1),
        DeleteEvent("/w/b", revision + 1),
        DeleteEvent("/w/c", revision + 2),
    ]
    assert expected == await take(watch, 3)
    await watch.aclose()


async def test_a_watch_of_forgotten_history_says_so(subject: Subject) -> None:
    """
    CompactedError from the iterator; read again and watched from there, nothing is missed.
    """
    store = subject.store
    start = await put(store, "/w/0")
    await put(store, "/w/1")
    await subject.forget_history()

    with pytest.raises(CompactedError):
        await anext(store.watch("/w/", start))

    revision, kvs = await store.get_prefix("/w/")
    watch = store.watch("/w/", revision + 1)
    next_revision = await put(store, "/w/2")

    assert ["/w/0", "/w/1"] == [kv.key for kv in kvs]
    assert [PutEvent(KeyValue("/w/2", b"", next_revision, next_revision))] == await anext(watch)
    await watch.aclose()


async def test_a_waiting_watch_survives_forgotten_history(subject: Subject) -> None:
    """
    It has been told everything, so compaction takes nothing from it.
    """
    store = subject.store
    watch = store.watch("/w/", (await store.get_prefix("/"))[0] + 1)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await put(store, "/elsewhere")
    await subject.forget_history()

    revision = await put(store, "/w/a")

    assert [PutEvent(KeyValue("/w/a", b"", revision, revision))] == await waiting
    await watch.aclose()


async def test_a_closed_watch_ends(store: MetadataStore) -> None:
    """
    For the one who waits and for every later call; closing again is harmless.
    """
    watch = store.watch("/", (await store.get_prefix("/"))[0] + 1)
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)

    await watch.aclose()
    await watch.aclose()
    await put(store, "/a")

    assert (None, None) == (await waiting, await anext(watch, None))


# ── Concurrency ──


async def increment(store: MetadataStore, key: str) -> None:
    """Add one under a compare of the revision that was read, until it goes through."""
    kv = await store.get(key)
    while True:
        revision, count = (kv.mod_revision, int(kv.value)) if kv else (0, 0)
        update = Put(key, b"%d" % (count + 1))
        result = await store.txn([ModRevisionIs(key, revision)], [update], [Get(key)])
        if result.succeeded:
            return
        (kv,) = result.reads[0]


async def test_guarded_increments_are_never_lost(store: MetadataStore) -> None:
    """
    Twenty tasks add to two counters, five times each, and every addition is there.
    """
    start = (await store.get_prefix("/"))[0]

    async def worker(number: int) -> None:
        for _ in range(5):
            await increment(store, f"/counter/{number % 2}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(worker(number))

    revision, kvs = await store.get_prefix("/counter/")
    assert ([b"50", b"50"], start + 100) == ([kv.value for kv in kvs], revision)


async def test_one_of_many_creators_wins(store: MetadataStore) -> None:
    """
    Create-only keys allocate: of thirty that try at once exactly one succeeds, and the others
    read its value.
    """

    async def create(number: int) -> tuple[bool, bytes]:
        value = b"%d" % number
        result = await store.txn([CreateRevisionIs("/k", 0)], [Put("/k", value)], [Get("/k")])
        return result.succeeded, value if result.succeeded else result.reads[0][0].value

    answers = await asyncio.gather(*(create(number) for number in range(30)))

    assert 1 == sum(succeeded for succeeded, _ in answers)
    assert 1 == len({value for _, value in answers})


async def test_a_watch_beside_writers_sees_every_revision_once(store: MetadataStore) -> None:
    """
    What a watch tells, applied in order, is what the store holds.
    """
    start = (await store.get_prefix("/"))[0] + 1
    watch = store.watch("/", start)

    async def writer(number: int) -> None:
        for n in range(10):
            await store.txn([], [Put(f"/{number}", b"%d" % n), Put(f"/{number}/{n}", b"")])
        await store.txn([], [Delete(f"/{number}/5")])

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(writer(number))
        events = await take(watch, 8 * 21)

    told: dict[str, KeyValue] = {}
    for event in events:
        match event:
            case PutEvent(kv):
                told[kv.key] = kv
            case DeleteEvent(key, _):
                del told[key]
    revision, kvs = await store.get_prefix("/")
    assert (start + 8 * 11 - 1, {kv.key: kv for kv in kvs}) == (revision, told)
    await watch.aclose()


async def test_a_cancelled_transaction_may_have_happened_but_only_whole(
    store: MetadataStore,
) -> None:
    """
    Cancelling is losing the answer: both of its keys are there, or neither; and the store goes on.
    """
    for n in range(10):
        call = asyncio.ensure_future(store.txn([], [Put(f"/{n}/a", b""), Put(f"/{n}/b", b"")]))
        await asyncio.sleep(0)
        call.cancel()
    await put(store, "/after")

    for n in range(10):
        assert await keys_under(store, f"/{n}/") in ([], [f"/{n}/a", f"/{n}/b"])
    assert ["/after"] == await keys_under(store, "/after")
