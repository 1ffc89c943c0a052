"""The store works on an etcd that wants certificates, or a user and a password."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.store import Put, PutEvent
from tests.support import etcd_server
from tests.support.certificates import make_certificates
from tests.support.etcd_server import EtcdCluster

PREFIX = "/driftlog/v1/"
TOKEN_SECONDS = 1


@asynccontextmanager
async def opened(settings: EtcdSettings) -> AsyncIterator[EtcdMetadataStore]:
    """A store with these settings."""
    store = EtcdMetadataStore(settings)
    try:
        yield store
    finally:
        await store.close()


async def put_when_reached(store: EtcdMetadataStore, key: str) -> int:
    """Put; while gRPC waits before it connects again, calls are refused, and nothing happened."""
    while True:
        try:
            return (await store.txn([], [Put(key, b"")])).revision
        except UnavailableError:
            await asyncio.sleep(0.05)


# ── Users ──


@pytest.fixture(params=etcd_server.EACH_VERSION)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdCluster]:
    """An etcd whose tokens are over after a second or two; `enable_auth` makes it ask for them."""
    arguments = ["--auth-token-ttl", str(TOKEN_SECONDS)]
    with etcd_server.start(request.param, tmp_path, arguments=arguments) as started:
        yield started


def agent(cluster: EtcdCluster, password: str = "secret") -> EtcdSettings:
    """Settings of a user who may do everything below `PREFIX`."""
    return EtcdSettings(endpoints=cluster.endpoints, user="agent", password=password)


async def test_a_user_does_what_its_role_allows(cluster: EtcdCluster) -> None:
    """
    Transactions, reads, leases and watches below the prefix; elsewhere it is told what to grant.
    """
    cluster.enable_auth("agent", "secret", PREFIX)
    async with opened(agent(cluster)) as store:
        await store.grant_lease(7, 60_000)
        revision = (await store.txn([], [Put(f"{PREFIX}a", b"1", 7)])).revision
        await store.keep_alive(7)
        watch = store.watch(PREFIX, revision)
        assert 1 == len(await anext(watch))
        assert [f"{PREFIX}a"] == [kv.key for kv in (await store.get_prefix(PREFIX))[1]]
        await store.revoke_lease(7)
        assert await store.get(f"{PREFIX}a") is None

        with pytest.raises(UnavailableError, match=r"grant the user a role"):
            await store.txn([], [Put("/elsewhere", b"")])
        with pytest.raises(UnavailableError, match=r"grant the user a role"):
            await anext(store.watch("/elsewhere", 1))


async def test_tokens_are_renewed(cluster: EtcdCluster) -> None:
    """
    When they are over, for calls of every kind and for watches, and when etcd lost them.
    """
    (member,) = cluster.members
    cluster.enable_auth("agent", "secret", PREFIX)
    async with opened(agent(cluster)) as store:
        await store.grant_lease(7, 60_000)
        revision = (await store.txn([], [Put(f"{PREFIX}a", b"1")])).revision
        watch = store.watch(PREFIX, revision)
        await anext(watch)

        await asyncio.sleep(TOKEN_SECONDS + 1.2)
        writes = (store.txn([], [Put(f"{PREFIX}{n}", b"")]) for n in range(20))
        assert all(result.succeeded for result in await asyncio.gather(*writes))
        assert 20 == len([await anext(watch) for _ in range(20)])
        await asyncio.sleep(TOKEN_SECONDS + 1.2)
        late = store.watch(PREFIX, revision)
        assert 1 == len(await anext(late))
        await store.keep_alive(7)

        waiting = asyncio.ensure_future(anext(watch))
        member.kill()
        member.start()
        await asyncio.to_thread(cluster.wait_until_healthy)
        last = await put_when_reached(store, f"{PREFIX}last")
        (event,) = await waiting
        assert isinstance(event, PutEvent)
        assert last == event.kv.mod_revision


async def test_users_may_be_asked_for_later(cluster: EtcdCluster) -> None:
    """
    A store with a user works with an etcd that wants none, and goes on when it does.
    """
    async with opened(agent(cluster)) as store:
        await store.txn([], [Put(f"{PREFIX}a", b"1")])
        cluster.enable_auth("agent", "secret", PREFIX)

        assert (await store.txn([], [Put(f"{PREFIX}a", b"2")])).succeeded


@pytest.mark.parametrize(
    ("user", "password", "advice"),
    [
        ("agent", "wrong", "user 'agent'.*check the user and the password"),
        ("nobody", "secret", "user 'nobody'.*check the user and the password"),
        (None, "", "wants a user and a password, and none are set"),
    ],
)
async def test_who_is_not_let_in_is_told_why(
    cluster: EtcdCluster, user: str | None, password: str, advice: str
) -> None:
    """
    Nothing happened; neither the password nor a traceback of gRPC's is in the message.
    """
    cluster.enable_auth("agent", "secret", PREFIX)
    settings = EtcdSettings(endpoints=cluster.endpoints, user=user, password=password)
    async with opened(settings) as store:
        with pytest.raises(UnavailableError, match=advice) as raised:
            await store.txn([], [Put(f"{PREFIX}a", b"")])
        with pytest.raises(UnavailableError, match=advice):
            await anext(store.watch(PREFIX, 1))

    assert "wrong" not in f"{raised.value} {settings!r}"


# ── Certificates ──


@pytest.mark.parametrize("version", etcd_server.EACH_VERSION)
async def test_both_sides_show_certificates(version: str, tmp_path: Path) -> None:
    """
    Who shows a good one is served; who shows none, or trusts another authority, is told that it
    was not reached, and nothing happened.
    """
    good, strange = (make_certificates(tmp_path, name) for name in ("good", "strange"))
    with etcd_server.start(version, tmp_path, tls=good) as cluster:
        mutual = EtcdSettings(
            endpoints=cluster.endpoints,
            ca_file=good.ca_file,
            certificate_file=good.certificate_file,
            key_file=good.key_file,
        )
        async with opened(mutual) as store:
            revision = (await store.txn([], [Put("/a", b"1")])).revision
            assert 1 == len(await anext(store.watch("/", revision)))

        refused = [
            EtcdSettings(endpoints=cluster.endpoints, ca_file=good.ca_file),
            EtcdSettings(
                endpoints=cluster.endpoints,
                ca_file=strange.ca_file,
                certificate_file=good.certificate_file,
                key_file=good.key_file,
            ),
            EtcdSettings(
                endpoints=cluster.endpoints,
                ca_file=good.ca_file,
                certificate_file=strange.certificate_file,
                key_file=strange.key_file,
            ),
            EtcdSettings(endpoints=tuple(e.replace("https", "http") for e in cluster.endpoints)),
        ]
        for settings in refused:
            async with opened(settings) as store:
                with pytest.raises(UnavailableError, match=r"127\.0\.0\.1.*not reached"):
                    await store.txn([], [Put("/a", b"2")])
        async with opened(mutual) as store:
            kv = await store.get("/a")
            assert kv is not None
            assert b"1" == kv.value


def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """
    Before anything is connected to, with what to write instead.
    """
    here = tmp_path / "ca.pem"
    here.write_bytes(b"")
    cases: list[tuple[dict[str, object], str]] = [
        ({"endpoints": ()}, "at least one"),
        ({"endpoints": ("localhost:2379",)}, r"write http\(s\)://HOST:PORT"),
        ({"endpoints": ("http://localhost",)}, r"write http\(s\)://HOST:PORT"),
        ({"endpoints": ("http://a:1", "https://b:1")}, "all or none"),
        ({"endpoints": ("http://a:1",), "ca_file": here}, "use https"),
        ({"endpoints": ("https://a:1",), "key_file": here}, "needs its key"),
        ({"endpoints": ("https://a:1",), "ca_file": tmp_path / "gone"}, "cannot read .*gone"),
    ]
    for arguments, said in cases:
        with contextlib.ExitStack() as stack:
            stack.enter_context(pytest.raises(ValueError, match=said))
            EtcdMetadataStore(EtcdSettings(**arguments))  # type: ignore[arg-type]
