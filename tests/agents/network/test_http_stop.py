"""The HTTP port closes when the agent leaves, whatever it is asked at the moment."""

import asyncio
from pathlib import Path

from aiohttp import ClientSession

from benchmarks.batches import encode_batch
from driftlog_agents.http_api import HttpApi
from driftlog_agents.listeners import take
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
        http = HttpApi(agent.process)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        port = sockets[0].getsockname()[1]
        asked = asyncio.create_task(session.post(f"http://127.0.0.1:{port}/topics/t/seal"))
        await eventually(lambda: agent.objects.writes.waiting == 1)

        async with asyncio.timeout(10):
            await http.stop()
        assert 0 == agent.objects.writes.waiting
        await asyncio.gather(asked, return_exceptions=True)
        agent.objects.writes.open()
        assert 1 == await agent.engine.sealer.seal(agent.log("t"))
