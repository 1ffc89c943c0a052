"""Clients that leave before they are answered: what was counted for them is given back, once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.broker import BrokerSettings
from driftlog_agents.limits import Limits
from driftlog_agents.protocol.messages import fetch
from tests.agents.network.serving import MiB, Serving, eventually, fetching, records

LIMITS = Limits(
    queued_max_request_bytes=16 * MiB,
    driftlog_max_response_queue_bytes=16 * MiB,
)
NOTHING = {"frames": 0, "requests": 0, "answers": 0}


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with room for 16 MiB of requests and 16 MiB of answers, and 5 MiB of records."""
    async with Serving(tmp_path, broker=BrokerSettings(limits=LIMITS)) as serving:
        async with serving.client() as client:
            await client.create("full")
            for n in range(5):
                value = Random(n).randbytes(MiB - 1_000)
                await client.produce("full", {0: encode_batch([value], timestamp_ms=1).data})
        yield serving


async def gone(agent: Serving) -> None:
    """The agent has noticed that nobody is connected."""
    await eventually(lambda: not agent.process.server.connections)


# ── Answers ──


async def test_who_leaves_during_a_read_of_the_bucket_takes_no_room_along(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Six Fetches of 4 MiB end when nobody waits for them, of 16 that there is room for: nothing is
    held, and the next is answered.
    """
    reader = agent.process.broker.reader
    local, read = reader.read_local, asyncio.Event()
    held_up = done = 0

    async def late(log: object, offset: int, limit: int, **_: object) -> object:
        nonlocal held_up, done
        held_up += 1
        await read.wait()
        done += 1
        return local(log, offset, limit)  # type: ignore[arg-type]

    wanted = fetching("full", {0: 0}, partition_max_bytes=4 * MiB)
    monkeypatch.setattr(reader, "read_local", lambda *_: None)
    monkeypatch.setattr(reader, "read", late)
    for n in range(6):
        read.clear()
        async with agent.client() as client:
            client.send(fetch.API, 11, wanted)
            await eventually(lambda n=n: held_up == n + 1)  # type: ignore[misc]
        await gone(agent)
        read.set()
        await eventually(lambda n=n: done == n + 1)  # type: ignore[misc]
    held = agent.held_bytes
    async with agent.client() as good:
        answer = await good.fetch("full", {0: 0}, partition_max_bytes=4 * MiB)

    assert NOTHING == held
    assert len(records(answer[0])) >= MiB - 1_000


async def test_who_leaves_when_it_is_told_of_room_takes_none(agent: Serving) -> None:
    """
    The connection closes in the turn of the loop before its Fetch goes on.
    """
    await agent.seal("full")
    server = agent.process.server
    wanted = fetching("full", {0: 0}, partition_max_bytes=12 * MiB)
    agent.objects.reads.close()
    async with agent.client() as first, agent.client() as second:
        first.send(fetch.API, 11, wanted)
        await eventually(lambda: server.answers.held_bytes > 0)
        second.send(fetch.API, 11, wanted)
        await eventually(lambda: server.answers.waiting == 1)
        (told,) = (c for c in server.connections if c.answers._then is not None)
        soon = told.soon

        def close(step: object) -> None:
            told.close()
            soon(lambda: soon(step))  # type: ignore[arg-type]  # behind `connection_lost`

        told.answers._soon = close
        agent.objects.reads.open()
        assert len(records((await first.receive())[1].responses[0].partitions[0])) > 0
        assert await second.closed()
    await gone(agent)

    assert NOTHING == agent.held_bytes
