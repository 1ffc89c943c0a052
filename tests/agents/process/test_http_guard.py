"""The HTTP port has a bounded number of connections, for a bounded time, and no web page can use
it.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.network.listeners import take
from driftlog_agents.process.http_api import HttpApi
from driftlog_agents.process.http_guard import OPEN_PATHS, HttpPatience, is_foreign
from tests.agents.network.serving import Serving, eventually

MOST = 4


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent of which four connections to the HTTP port may be open."""
    limits = Limits(driftlog_http_max_connections=MOST)
    async with Serving(tmp_path, broker=BrokerSettings(limits=limits)) as serving:
        yield serving


@pytest.fixture
def patience() -> HttpPatience:
    """With connections."""
    return HttpPatience()


@pytest.fixture
def http(agent: Serving, patience: HttpPatience) -> HttpApi:
    """Its HTTP port, which `port` starts."""
    return HttpApi(agent.observed, patience=patience)


@pytest.fixture
async def port(http: HttpApi) -> AsyncIterator[int]:
    """Where its HTTP port is."""
    sockets = await take("127.0.0.1", 0, "--http-listener")
    await http.start(sockets)
    yield sockets[0].getsockname()[1]
    await http.stop()


async def status(port: int, *headers: str, path: str = "/healthz", method: str = "GET") -> int:
    """What a request with these headers is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(60):
        line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("host", "origin", "foreign"),
    [
        ("127.0.0.1:9644", None, False),
        ("[::1]:9644", None, False),
        ("localhost:9644", "http://localhost:3000", False),
        ("driftlog-1:9644", None, False),
        ("agent.example.com", None, False),
        ("AGENT.example.com.:9644", None, False),
        ("evil.example.net:9644", None, True),
        ("127.0.0.1:9644", "https://evil.example.net", True),
        ("127.0.0.1:9644", "null", True),
        ("", None, False),
    ],
)
def test_another_sites_page_is_known_by_its_headers(
    host: str, origin: str | None, foreign: bool
) -> None:
    """
    By an Origin that is another host, or a Host with a dot that is not ours.
    """
    assert foreign == (is_foreign(host, origin, ["agent.example.com"]) is not None)


async def test_a_page_seals_nothing_and_monitors_may_use_any_name(
    agent: Serving, port: int
) -> None:
    """
    A cross-site POST and a rebound name are refused; curl, and a monitor by a name, are not.
    """
    async with agent.client() as client:
        await client.create("t")
    seal, ours = {"path": "/topics/t/seal", "method": "POST"}, "X-Driftlog: 1"
    origin = "Origin: http://evil.example.net"

    assert 403 == await status(port, "Host: 127.0.0.1", origin, ours, **seal)
    assert 403 == await status(port, "Host: evil.example.net", ours, **seal)
    assert 403 == await status(port, "Host: evil.example.net", path="/partitions/offline")
    assert 403 == await status(port, "Host: 127.0.0.1", "Origin: http://evil.example.net")
    assert 200 == await status(port, f"Host: 127.0.0.1:{port}", ours, **seal)
    assert 200 == await status(port, "Host: agent.monitoring.svc.cluster.local", path="/metrics")


@pytest.mark.parametrize("path", ["/topics/t/seal", "/topics/t/0/loss"])
async def test_a_form_of_the_same_machine_changes_nothing(
    agent: Serving, port: int, path: str
) -> None:
    """
    A page of another server on this machine has the same host and another port, and a form may be
    sent without an Origin: what changes something needs a header that no form has.
    """
    async with agent.client() as client:
        await client.create("t")
    page, host = f"Origin: http://127.0.0.1:{port + 1}", f"Host: 127.0.0.1:{port}"
    form = "Content-Type: application/x-www-form-urlencoded"

    answers = [
        await status(port, host, page, path=path, method="POST"),
        await status(port, host, form, path=path, method="POST"),
        await status(port, host, page, "X-Driftlog:", path=path, method="POST"),
    ]
    preflight = await status(
        port, host, page, "Access-Control-Request-Method: POST", path=path, method="OPTIONS"
    )

    assert [403] * 3 == answers
    assert preflight == 405


async def test_idle_connections_make_room_for_requests(agent: Serving, port: int) -> None:
    """
    Forty that say nothing, four at most at once: each request is answered, and they are counted.
    """
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    answered = [await status(port, "Host: 127.0.0.1") for _ in range(10)]
    async with asyncio.timeout(60):
        gone = [await reader.read() for reader, _ in idle[:-MOST]]
    for _, writer in idle:
        writer.close()

    assert [200] * 10 == answered
    assert [b""] * len(gone) == gone
    assert agent.process.refusals.counts["driftlog.http.max.connections"] >= 36


@pytest.mark.parametrize("path", ["/imports", "/topics/t/0/loss", "/segments"])
async def test_slow_bodies_make_room_for_a_supervisor(
    agent: Serving, port: int, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Twenty that send a byte of their body, four at most at once: a supervisor that got no answer
    from `/healthz` restarted a healthy agent.
    """
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Driftlog: 1\r\n"
    slow = []
    answered = []
    for _ in range(20):
        slow.append(await asyncio.open_connection("127.0.0.1", port))
        slow[-1][1].write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        answered.append(await status(port, "Host: 127.0.0.1"))
    async with asyncio.timeout(60):
        for reader, _ in slow[:-MOST]:
            with contextlib.suppress(ConnectionError):
                assert b"" == await reader.read()
    for _, writer in slow:
        writer.close()

    assert [200] * 20 == answered
    assert agent.process.refusals.counts["driftlog.http.max.connections"] >= 16
    assert [] == [record for record in caplog.records if record.exc_info]


async def test_requests_that_take_long_leave_room_for_a_supervisor(
    agent: Serving, port: int
) -> None:
    """
    Seals wait for an unavailable bucket for ten minutes: half of the connections may, and are
    others' afterwards.
    """
    async with agent.client() as client:
        for topic in "tu":
            await client.create(topic)
            await client.produce(topic, {0: encode_batch([b"x"], timestamp_ms=1).data})
    seal, other = ({"path": f"/topics/{topic}/seal", "method": "POST"} for topic in "tu")
    ours = ("Host: 127.0.0.1", "X-Driftlog: 1")
    agent.objects.writes_of = ".parquet"
    agent.objects.writes.close()
    waiting = [asyncio.create_task(status(port, *ours, **each)) for each in (seal, other)]
    await eventually(lambda: agent.objects.writes.waiting == MOST // 2)
    refused = [await status(port, *ours, **seal) for _ in range(MOST)]
    healthy = [await status(port, "Host: 127.0.0.1", path=path) for path in sorted(OPEN_PATHS)]
    agent.objects.writes.open()

    assert [503] * MOST == refused
    assert [200] * 3 == healthy
    assert [200] * 3 == [*await asyncio.gather(*waiting), await status(port, *ours, **seal)]


@pytest.mark.parametrize("patience", [HttpPatience(first_s=1.0, idle_s=0.2)])
async def test_a_request_that_does_not_come_is_not_waited_for(agent: Serving, port: int) -> None:
    """
    Neither the first of a connection, begun or not, nor the next.
    """
    kept, once = await asyncio.open_connection("127.0.0.1", port)
    once.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = await kept.readline()
    silent, _ = await asyncio.open_connection("127.0.0.1", port)
    slow, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: ")
    async with asyncio.timeout(60):
        ends = [await reader.read() for reader in (silent, slow, kept)]

    assert (b"", b"") == (ends[0], ends[1])
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("patience", [HttpPatience(first_s=1.0)])
async def test_connections_that_come_at_once_are_guarded_as_others_are(
    agent: Serving, port: int
) -> None:
    """
    Five are accepted in one turn of the loop, before any of them can be closed: one makes room, a
    request is answered, and all that say nothing are closed when it is time.
    """
    loop = asyncio.get_running_loop()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST + 1)]
    counts = agent.process.refusals.counts
    await eventually(lambda: counts["driftlog.http.max.connections"] == 1)
    answered = await status(port, "Host: 127.0.0.1")
    for client in silent:
        client.setblocking(False)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert b"" == await loop.sock_recv(client, 1)
        client.close()

    assert 200 == answered


@pytest.mark.parametrize("patience", [HttpPatience(idle_s=0.2)])
async def test_who_takes_no_answer_is_closed_when_it_is_time(agent: Serving, port: int) -> None:
    """
    Of what it was sent much waits in the agent, and is not waited for.
    """
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        ask = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 5_000

        async def ask_on() -> None:
            while True:
                await asyncio.get_running_loop().sock_sendall(client, ask)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_on(), 60)


async def test_a_topic_is_not_sealed_more_often_than_the_limit_says(
    agent: Serving, port: int
) -> None:
    """
    Each seal makes an object: the 21st in a minute is told when it may be, and another topic is
    sealed.
    """
    async with agent.client() as client:
        await client.create("t")
        await client.create("u")
    at = f"http://127.0.0.1:{port}/topics"
    async with ClientSession(headers={"X-Driftlog": "test"}) as session:
        answered = []
        for _ in range(20):
            async with session.post(f"{at}/t/seal") as answer:
                answered.append(answer.status)
        async with session.post(f"{at}/t/seal") as refused:
            text = (await refused.json())["error"]
        async with session.post(f"{at}/u/seal") as other:
            status_of_other = other.status

    assert [200] * 20 == answered
    assert (429, 200) == (refused.status, status_of_other)
    wait_s = refused.headers["Retry-After"]
    assert 50 <= int(wait_s) <= 60
    assert f"(driftlog.max.topic.seals.per.minute): try again in {wait_s} s" in text
    assert 1 == agent.process.refusals.counts["driftlog.max.topic.seals.per.minute"]


async def test_connections_over_the_ports_rate_wait_and_are_not_counted_as_kafkas(
    tmp_path: Path,
) -> None:
    """
    Of eight requests five are answered at once; ``max.connection.creation.rate`` is of Kafka's
    listeners.
    """
    limits = Limits(driftlog_http_max_connection_creation_rate=1)
    async with Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent:
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        port = sockets[0].getsockname()[1]
        answered = [await status(port, "Host: 127.0.0.1") for _ in range(8)]
        await http.stop()

    counts = agent.process.refusals.counts
    assert [200] * 8 == answered
    assert counts["driftlog.http.max.connection.creation.rate"] >= 1
    assert 0 == counts["max.connection.creation.rate"]
