"""The HTTP port closes with the agent, and logs little of clients that speak no HTTP/1."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientSession

from benchmarks.batches import encode_batch
from driftlog_agents.network.listeners import take
from driftlog_agents.process.http_api import HttpApi
from tests.agents.network.serving import Serving, eventually


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
