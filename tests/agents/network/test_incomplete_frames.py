"""Hundreds of connections in the middle of a frame: bounded memory, and others are served."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
import structlog
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.protocol.messages import api_versions, produce
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest
from tests.agents.network.serving import Client, MiB, Serving, eventually, producing, records

KiB = 1024
LIMIT = 8 * MiB
LARGEST = 100 * MiB
CROWD = 300

PART = struct.pack(">ihhi", LARGEST, 0, 9, 1) + bytes(256 * KiB)
"""The beginning of a frame that nobody ends."""


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent with room for 8 MiB of incomplete frames, and much patience."""
    async with Serving(tmp_path) as serving:
        serving.server.frame_budget.limit_bytes = LIMIT
        serving.server.stalled_ms = 60_000.0
        yield serving


@pytest.fixture
async def crowd(agent: Serving) -> AsyncIterator[list[Client]]:
    """Three hundred connections, each with the first 256 KiB of a frame of 100 MiB."""
    async with AsyncExitStack() as stack:
        yield [await begin(stack, agent) for _ in range(CROWD)]


async def begin(stack: AsyncExitStack, agent: Serving) -> Client:
    """One such connection."""
    client = await stack.enter_async_context(agent.client())
    client.writer.write(PART)
    return client


def held(agent: Serving) -> int:
    """Memory of incomplete frames, counted where it is."""
    server = agent.server
    return sum(connection.frames.buffered_bytes for connection in server.connections)


async def settled(agent: Serving, connections: int) -> None:
    """All are there, and nothing more is read from them."""
    await eventually(lambda: len(agent.server.connections) >= connections)
    before = -1
    while (now := held(agent)) != before:  # nobody tells
        before = now
        await asyncio.sleep(0.3)


def batch(size: int, seed: int = 0) -> bytearray:
    """One record of so many random bytes."""
    return encode_batch([Random(seed).randbytes(size)], timestamp_ms=1).data


async def ask(client: Client) -> None:
    """The connection works."""
    assert (await client.call(api_versions.API, 0, ApiVersionsRequest())).error_code == 0


# ── Memory ──


async def test_what_a_crowd_begins_and_does_not_end_is_bounded(
    agent: Serving, crowd: list[Client]
) -> None:
    """
    75 MiB came or wait in the sockets; held is half of the budget, one frame's next step, and
    4 KiB for each that waits.  Nobody is closed as long as it may still bring the rest.
    """
    await settled(agent, CROWD)
    server = agent.server

    assert held(agent) <= LIMIT // 2 + MiB + CROWD * 8 * KiB
    assert held(agent) == server.frame_budget.held_bytes
    assert CROWD == len(server.connections)


async def test_small_requests_are_served_beside_a_crowd(
    agent: Serving, crowd: list[Client]
) -> None:
    """
    They need no memory that anybody waits for: of new connections and of old ones, up to 32 KiB.
    """
    await settled(agent, CROWD)
    async with asyncio.timeout(10), agent.client() as client:
        await ask(client)
        await client.create("t")
        answers = [await client.produce("t", {0: batch(30_000, n)}) for n in range(20)]
        read = await client.fetch("t", {0: 19})

    assert list(range(20)) == [answer[0].base_offset for answer in answers]
    assert Random(19).randbytes(30_000) in records(read[0])


async def test_a_good_client_is_as_fast_beside_a_crowd(agent: Serving) -> None:
    """
    Who has brought large requests before does not wait for those who never did: its requests of
    1 MB take about as long as they did when it was alone.
    """

    async def produce_many(client: Client) -> float:
        began = time.monotonic()
        asked = [client.send_produce("t", {0: batch(MiB - 200, n)}, acks=1) for n in range(8)]
        for number in asked:
            assert (await client.receive())[0] == number
        return time.monotonic() - began

    async with AsyncExitStack() as stack, agent.client() as client:
        await client.create("t")
        await produce_many(client)
        alone_s = min([await produce_many(client) for _ in range(3)])
        for _ in range(CROWD):
            await begin(stack, agent)
        await settled(agent, CROWD)
        # Who is made to wait is slow every time; who only shares the machine, at times.
        until = time.monotonic() + 30
        while (beside_s := await produce_many(client)) >= 3 * alone_s + 0.2:
            assert time.monotonic() < until, f"{beside_s:.3f} s, alone {alone_s:.3f} s"
        pressed = agent.server.frame_budget.pressed

    assert pressed


# ── Nobody waits for ever ──


async def test_who_stands_still_is_closed_and_who_waited_is_served(agent: Serving) -> None:
    """
    The crowd says nothing more: all of it is closed, many at a time, each with a line that says
    why, and a newcomer whose request had to wait behind it is answered.
    """
    server = agent.server
    with capture_logs() as lines:
        server.log = structlog.get_logger()
        async with AsyncExitStack() as stack, agent.client() as newcomer:
            await newcomer.create("t")
            crowd = [await begin(stack, agent) for _ in range(CROWD)]
            await eventually(lambda: len(server.connections) == CROWD + 1)
            server.stalled_ms = 200.0  # not before: the first would be gone when the last comes
            answer = await newcomer.produce("t", {0: batch(MiB - 200)})
            closed = [await client.closed() for client in crowd]
            await ask(newcomer)
    stalled = [line for line in lines if line["event"] in ("frame_stalled", "frame_given_up")]

    assert 0 == answer[0].error_code
    assert {True} == set(closed)
    assert CROWD == len(stalled)
    assert all("memory" in line["reason"] for line in stalled)
    assert (0, 0) == (held(agent), server.frame_budget.held_bytes)


async def test_frames_that_come_in_halves_all_arrive(agent: Serving) -> None:
    """
    A hundred clients each send half of a request, and the other half when all have: more than the
    budget holds, and every request is answered, in whatever order memory comes.
    """
    clients = 100
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(agent.client()) for _ in range(clients)]
        await peers[0].create("t", 4)
        halves = []
        for n, peer in enumerate(peers):
            request = producing("t", {n % 4: batch(600_000, n)})
            _, frame = peer.encode(produce.API, 9, request)
            peer.writer.write(frame[:300_000])
            halves.append(frame[300_000:])
        await settled(agent, clients)
        waited = agent.server.frame_budget.waiting
        for peer, half in zip(peers, halves, strict=True):
            peer.writer.write(half)
        answers = [(await peer.receive())[1] for peer in peers]

    codes = {a.responses[0].partition_responses[0].error_code for a in answers}
    assert waited > 10
    assert {0} == codes
    assert 0 == agent.server.frame_budget.held_bytes


async def test_requests_larger_than_the_budget_come_one_after_the_other(agent: Serving) -> None:
    """
    Four of 12 MiB at once, and 8 MiB for all: each is taken whole, and none is given up.
    """
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(agent.client()) for _ in range(4)]
        await peers[0].create("t", 12)
        for peer in peers:
            peer.send_produce("t", {n: batch(MiB - 200, n) for n in range(12)})
        answers = [(await peer.receive())[1] for peer in peers]

    codes = [p.error_code for a in answers for p in a.responses[0].partition_responses]
    assert [0] * 48 == codes


async def test_a_client_that_keeps_bringing_is_not_closed_however_long_it_takes(
    agent: Serving,
) -> None:
    """
    Slow, and each time a little more than nothing: it is in the middle of its frame for longer
    than one may stand still.
    """
    agent.server.stalled_ms = 4_000.0
    async with AsyncExitStack() as stack, agent.client() as client:
        await client.create("t", 8)
        await client.produce("t", {0: batch(MiB // 2)})  # not in one read: it is no stranger
        for _ in range(CROWD):
            await begin(stack, agent)
        request = producing("t", {n: batch(MiB // 2, n) for n in range(7)})
        _, frame = client.encode(produce.API, 9, request)
        began = time.monotonic()
        for at in range(0, len(frame), 256 * KiB):
            client.writer.write(frame[at : at + 256 * KiB])
            await asyncio.sleep(0.6)
        took_s = time.monotonic() - began
        _, answer = await client.receive()

    assert took_s > 2 * 4
    assert [0] * 7 == [p.error_code for p in answer.responses[0].partition_responses]


async def test_where_memory_is_nobody_is_hurried(agent: Serving) -> None:
    """
    Without others that wait, half a request may stay half a request.
    """
    agent.server.stalled_ms = 100.0
    async with agent.client() as client:
        await client.create("t")
        _, frame = client.encode(produce.API, 9, producing("t", {0: batch(100_000)}))
        client.writer.write(frame[:50_000])
        await asyncio.sleep(1.2)
        client.writer.write(frame[50_000:])
        _, answer = await client.receive()

    assert 0 == answer.responses[0].partition_responses[0].error_code


async def test_the_time_between_two_crowds_does_not_count(agent: Serving) -> None:
    """
    Who was seen to stand still while others waited, and stood still while nobody did, has all the
    time again when others wait again.
    """
    server = agent.server
    server.stalled_ms = 2_500.0
    async with agent.client() as client:
        await client.create("t")
        _, frame = client.encode(produce.API, 9, producing("t", {0: batch(100_000)}))
        client.writer.write(frame[:50_000])
        async with AsyncExitStack() as stack:
            for _ in range(CROWD // 3):
                await begin(stack, agent)
            await eventually(lambda: server.frame_budget.pressed)
        await eventually(lambda: not server.frame_budget.pressed)
        await asyncio.sleep(3.0)
        async with AsyncExitStack() as stack:
            for _ in range(CROWD // 3):
                await begin(stack, agent)
            await eventually(lambda: server.frame_budget.pressed)
            client.writer.write(frame[50_000:])
            _, answer = await client.receive()

    assert 0 == answer.responses[0].partition_responses[0].error_code


async def test_a_crowd_that_leaves_is_forgotten(agent: Serving) -> None:
    """
    Those that held and those that waited, whether they reset or close: what is counted is what is
    there, which is nothing.
    """
    agent.server.stalled_ms = 2_000.0
    async with AsyncExitStack() as stack:
        crowd = [await begin(stack, agent) for _ in range(CROWD)]
        await settled(agent, CROWD)
        for client in crowd[::2]:
            client.writer.transport.abort()
        for client in crowd[1::2]:
            client.writer.close()
        await eventually(lambda: not agent.server.connections)
        budget = agent.server.frame_budget
        left = budget.held_bytes, budget.waiting, budget.pressed

    assert (0, 0, False) == left
