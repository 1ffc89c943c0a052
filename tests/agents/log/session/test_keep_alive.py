"""Keep-alives from a thread, to a real etcd: the agent's loop is held up, a member freezes."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from driftlog_agents.log.session.keep_alive import KeepAliveThread
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.session import Session
from driftlog_agents.process.composition.agent import now_ms
from driftlog_metadata.schema.keys import session_key
from driftlog_metadata.schema.model import Agent
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from tests.support import etcd_server
from tests.support.clusters import in_cluster
from tests.support.etcd_server import EtcdCluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("keep_alive")]

TTL_S = 9.0
SETTINGS = SessionSettings(ttl_ms=int(TTL_S * 1000), request_deadline_ms=500)
"""Half of what the adapter gives each endpoint: a keep-alive must not end before the next one."""


@pytest.fixture
def etcd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    """As many members as the test says, of the newest version."""
    with etcd_server.start(
        etcd_server.newest_version(), tmp_path, members=getattr(request, "param", 1)
    ) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def keeping(etcd: EtcdCluster) -> AsyncIterator[tuple[Session, asyncio.Task[None]]]:
    """A session whose keep-alives go out from a thread, and the task that waits for its end."""
    settings = EtcdSettings(endpoints=etcd.endpoints)
    store = EtcdMetadataStore(settings)
    thread = KeepAliveThread(lambda: EtcdMetadataStore(settings))
    session = Session(
        store=await in_cluster(store),
        agent=Agent(
            node_id=1,
            session_id=os.urandom(16).hex(),
            listeners=(),
            http_address="localhost:9644",
            rack=None,
            started_at_ms=0,
        ),
        settings=SETTINGS,
        now_ms=now_ms,
        keep_alive=thread,
    )
    try:
        await session.open()
        task = asyncio.create_task(session.keep_alive())
        yield session, task
        task.cancel()
        await asyncio.wait([task])
    finally:
        await thread.close()
        await store.close()


async def is_known(etcd: EtcdCluster, session: Session) -> bool:
    """Whether the session's key is there."""
    store = EtcdMetadataStore(EtcdSettings(endpoints=etcd.endpoints[-1:]))
    try:
        return await store.get(session_key(session.session_id)) is not None
    finally:
        await store.close()


def threads() -> list[str]:
    """Of keep-alives."""
    return [thread.name for thread in threading.enumerate() if thread.name == "keep-alive"]


async def test_a_loop_that_is_held_up_keeps_its_session(etcd: EtcdCluster) -> None:
    """
    Several times in a row, and for longer than what is left of its lease by then.
    """
    async with keeping(etcd) as (session, task):
        for _ in range(3):
            while session.valid_until_ms - now_ms() > TTL_S * 1000 * 0.7:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # a third of it has passed at each keep-alive
            time.sleep(TTL_S * 0.72)  # noqa: ASYNC251  # the point
            assert session.alive
            await asyncio.sleep(0.3)
            assert not task.done()

        assert await is_known(etcd, session)
    assert [] == threads()


async def test_a_loop_that_is_held_up_for_longer_than_the_lease_loses_it(
    etcd: EtcdCluster,
) -> None:
    """
    Also when it goes on before the last keep-alive is a time to live old; and says so.
    """
    async with keeping(etcd) as (session, task):
        await asyncio.sleep(1)
        time.sleep(TTL_S * 1.5)  # noqa: ASYNC251  # the point

        assert not session.alive
        with pytest.raises(FencedError, match="event loop stood still"):
            await task
        assert not await is_known(etcd, session)
    assert [] == threads()


@pytest.mark.parametrize("etcd", [3], indirect=True)
async def test_a_member_that_freezes_does_not_cost_the_session(etcd: EtcdCluster) -> None:
    """
    The one that is asked: the next keep-alive goes on to another member, within the lease.
    """
    async with keeping(etcd) as (session, task):
        await asyncio.sleep(TTL_S / 3 * 1.5)
        etcd.members[0].freeze()
        until = time.monotonic() + 3 * TTL_S
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
            assert session.alive
            assert not task.done()

        assert await is_known(etcd, session)


async def test_sessions_that_follow_each_other_share_a_thread_which_ends(
    etcd: EtcdCluster,
) -> None:
    """
    What a session left behind in it would renew the lease of a dead one.
    """
    renewed, ended = [], []
    thread = KeepAliveThread(lambda: EtcdMetadataStore(EtcdSettings(endpoints=etcd.endpoints)))

    def renewing(number: int) -> object:
        async def renew(_: object) -> None:
            try:
                while True:
                    renewed.append(number)
                    await asyncio.sleep(0.01)
            finally:
                ended.append(number)

        return renew

    for number in range(3):
        task = asyncio.create_task(thread(renewing(number), lambda: None))  # type: ignore[arg-type]
        while number not in renewed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert ["keep-alive"] == threads()
        task.cancel()
        await asyncio.wait([task])
        while number not in ended:  # noqa: ASYNC110  # the thread is told, and not waited for
            await asyncio.sleep(0.01)
    await thread.close()
    await thread.close()

    assert [] == threads()
