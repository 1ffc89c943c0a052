"""The HTTP port closes with the agent, and logs little of clients that speak no HTTP/1."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from benchmarks.batches import encode_batch
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.network.listeners import take
from driftlog_agents.process.http_api import HttpApi
from driftlog_metadata.schema.model import ALL_ROLES, Role, TopicPartition
from tests.agents.network.serving import ENGINE, Serving, eventually


async def test_a_seal_that_waits_for_the_bucket_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """
    It is given up after a moment, and whoever asked for it sees the connection close.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, ClientSession() as session:
        await client.create("t")
        await client.produce("t", {0: encode_batch([b"x"], timestamp_ms=1).data})
        agent.objects.writes_of = ".parquet"
        agent.objects.writes.close()
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        port = sockets[0].getsockname()[1]
        asked = asyncio.create_task(
            session.post(f"http://127.0.0.1:{port}/topics/t/seal", headers={"X-Driftlog": "test"})
        )
        await eventually(lambda: agent.objects.writes.waiting == 1)

        async with asyncio.timeout(10):
            await http.stop()
        assert 0 == agent.objects.writes.waiting
        await asyncio.gather(asked, return_exceptions=True)
        agent.objects.writes.open()
        assert 1 == await agent.engine.sealer.seal(agent.log("t"))


async def test_a_seal_whose_threads_are_gone_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A seal that goes on behind the end of the port asks a pool of threads that is closed.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, ClientSession() as session:
        await client.create("t")
        await client.produce("t", {0: encode_batch([b"x"], timestamp_ms=1).data})
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        port = sockets[0].getsockname()[1]
        waits, pool = asyncio.Event(), ThreadPoolExecutor(1)
        pool.shutdown()

        async def seal(log: PartitionLog, end: int | None = None) -> int:
            waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                pool.submit(print)
            return 0

        agent.engine.sealer.seal = seal  # type: ignore[method-assign]
        asked = asyncio.create_task(
            session.post(f"http://127.0.0.1:{port}/topics/t/seal", headers={"X-Driftlog": "test"})
        )
        await waits.wait()
        await http.stop()
        await asyncio.gather(asked, return_exceptions=True)

    assert [] == [record for record in caplog.records if record.exc_info]


async def test_who_speaks_something_else_is_not_told_of_with_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    An agent that takes the port for etcd's (HTTP/2) asks again and again; others are answered.
    """
    async with Serving(tmp_path) as agent, ClientSession() as session:
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        port = sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        async with asyncio.timeout(10):
            answer = await reader.read(100)
        writer.close()
        async with session.get(f"http://127.0.0.1:{port}/healthz") as healthy:
            status = healthy.status
        await http.stop()

    assert answer.startswith(b"HTTP/1.")
    assert 200 == status
    assert [] == [record for record in caplog.records if record.exc_info]


@asynccontextmanager
async def http_of(agent: Serving) -> AsyncIterator[str]:
    """The address of *agent*'s HTTP port."""
    http = HttpApi(agent.observed)
    sockets = await take("127.0.0.1", 0, "--http-listener")
    await http.start(sockets)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        await http.stop()


async def readiness(http: str) -> tuple[int, list[str]]:
    """The status of `/readyz`, and the codes of its reasons."""
    async with ClientSession() as session, session.get(f"{http}/readyz?json") as answer:
        said: dict[str, Any] = await answer.json()
        assert said["ready"] == (answer.status == 200) == (said["reasons"] == [])
        return answer.status, [reason["code"] for reason in said["reasons"]]


async def becomes(http: str, wanted: list[str]) -> None:
    """Wait until `/readyz` has these reasons."""
    async with asyncio.timeout(20):
        while (await readiness(http))[1] != wanted:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("roles", "hung"), [({Role.SEAL}, (503, ["sealing_hangs"])), (ALL_ROLES, (200, []))]
)
async def test_an_agent_that_only_seals_is_not_ready_while_its_threads_hang(
    tmp_path: Path,
    roles: set[Role],
    hung: tuple[int, list[str]],
) -> None:
    """
    It does nothing else; one that serves goes on.  Neither takes segments of others meanwhile.
    """
    engine = replace(ENGINE, seal=replace(ENGINE.seal, hung_ms=100.0))
    disk = threading.Event()
    async with (
        Serving(tmp_path, roles=frozenset(roles), engine=engine) as agent,
        http_of(agent) as http,
        ClientSession(headers={"X-Driftlog": "test"}) as session,
    ):
        assert (200, []) == await readiness(http)
        waiting = asyncio.create_task(agent.process.sealing(disk.wait))
        try:
            await eventually(lambda: agent.process.sealing.hangs)
            assert hung == await readiness(http)
            async with session.post(f"{http}/segments") as answer:
                assert (503, True) == (answer.status, "disk" in await answer.text())
        finally:
            disk.set()
        await waiting
        assert (200, []) == await readiness(http)


async def test_an_agent_is_not_ready_before_it_serves_and_while_it_drains(tmp_path: Path) -> None:
    """
    It is alive all the time; a supervisor that restarts by /healthz leaves it alone.
    """
    agent = Serving(tmp_path)
    await agent.begin()
    async with http_of(agent) as http, ClientSession() as session:
        alive = [await _status(session, f"{http}/healthz")]
        before = await readiness(http)
        await agent.process.ready.wait()
        async with agent.client() as client:
            await client.create("t")
            ready = await readiness(http)
            agent.objects.writes.close()
            client.send_produce("t", {0: encode_batch([b"x"], timestamp_ms=1).data})
            await eventually(lambda: agent.objects.writes.waiting > 0)
            agent.process.stop()
            draining = await readiness(http)
            alive.append(await _status(session, f"{http}/healthz"))
            agent.objects.writes.open()
        await agent.close()

    assert (503, ["starting"]) == before
    assert (200, []) == ready
    assert (503, "draining") == (draining[0], draining[1][0])
    assert [200, 200] == alive


async def test_an_agent_without_a_session_or_with_partitions_to_load_is_not_ready(
    tmp_path: Path,
) -> None:
    """
    And is ready again by itself.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, http_of(agent) as http:
        await client.create("t", 2)
        agent.log("t").state = State.LOADING
        loading = await readiness(http)
        agent.log("t").state = State.ONLINE
        await becomes(http, [])  # partitions are counted once a second
        agent.engine.session.end("a test took the session away")
        over = await readiness(http)
        await agent.lose_session()
        await becomes(http, [])

    assert (503, ["partitions_loading"]) == loading
    assert (503, ["no_session"]) == over


async def test_readiness_is_counted_once_a_second_and_turns_at_once(tmp_path: Path) -> None:
    """
    Thirty connections that ask again and again had every partition counted for each request, and
    the agent stood still for seconds.  That it drains is said at once all the same.
    """
    async with Serving(tmp_path) as agent, agent.client() as client, http_of(agent) as http:
        await client.create("t")
        counted, offline = 0, agent.engine.offline

        def count() -> dict[TopicPartition, str]:
            nonlocal counted
            counted += 1
            return offline()

        agent.engine.offline = count
        began = time.monotonic()
        answers = await asyncio.gather(*(readiness(http) for _ in range(40)))
        times, most = counted, 1 + time.monotonic() - began
        agent.process.stop()
        drains = await readiness(http)

    assert [(200, [])] * 40 == answers
    assert 1 <= times <= most
    assert (503, "draining") == (drains[0], drains[1][0])


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/imports", b"[" * 20_000, "nested too deeply"),
        ("/imports", b'{"topic":' + b"9" * 5_000 + b"}", "not JSON"),
        ("/topics/t/" + "9" * 5_000 + "/loss", b"{}", "below 2147483648"),
    ],
    ids=("nested lists", "long number", "long partition"),
)
async def test_what_cannot_be_read_is_refused_without_a_traceback(
    tmp_path: Path, path: str, body: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Python's own limits of nested lists and long numbers are no fault of the agent.
    """
    async with (
        Serving(tmp_path) as agent,
        http_of(agent) as http,
        ClientSession(headers={"X-Driftlog": "test"}) as session,
        session.post(f"{http}{path}", data=body) as answer,
    ):
        assert (400, True) == (answer.status, said in await answer.text())
    assert [] == [record for record in caplog.records if record.exc_info]


async def test_a_blocked_event_loop_does_not_say_that_it_is_alive(tmp_path: Path) -> None:
    """
    No answer comes while it is blocked; then the stall is told.
    """
    async with Serving(tmp_path) as agent, http_of(agent) as http:
        said: list[str] = []
        blocked, asked = threading.Event(), threading.Event()

        def ask() -> None:
            blocked.wait(20)
            try:
                with urllib.request.urlopen(f"{http}/healthz", timeout=0.3) as answer:
                    said.append(answer.read().decode())
            except (TimeoutError, urllib.error.URLError):
                said.append("no answer")
            asked.set()

        def block() -> None:
            blocked.set()
            asked.wait(20)

        thread = threading.Thread(target=ask)
        thread.start()
        asyncio.get_running_loop().call_soon(block)
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # the watch runs first
        async with ClientSession() as session, session.get(f"{http}/healthz?json") as answer:
            health = await answer.json()

    assert ["no answer"] == said
    assert health["alive"]
    assert health["longest_stall_seconds"] >= 0.2


async def _status(session: ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        return answer.status
