"""A client that has left is noticed, and one that waits for answers is not taken for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.foundation.fair_queue import NOBODY
from driftlog_agents.network.limits.departed_clients import DepartedClients, ended
from driftlog_agents.protocol.messages import fetch, produce
from tests.agents.network.serving import Client, Serving, eventually, fetching, producing

FOR_EVER_MS = 2**31 - 1


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """With one topic."""
    async with Serving(tmp_path) as serving:
        async with serving.client() as client:
            await client.create("t")
        yield serving


def pipeline(client: Client, fetches: int, max_wait_ms: int = FOR_EVER_MS) -> list[int]:
    """More Fetches of what is not there than a connection may have."""
    wanted = fetching("t", {0: 0}, max_wait_ms=max_wait_ms)
    return [client.send(fetch.API, 11, wanted) for _ in range(fetches)]


async def one_is_not_read(agent: Serving) -> None:
    """Return when it is so."""
    await eventually(lambda: any(c.unread_file for c in agent.server.connections))


async def test_who_stays_while_it_is_not_read_is_kept(agent: Serving) -> None:
    """
    However often it is looked for.
    """
    async with agent.client() as client, agent.client() as other:
        asked = pipeline(client, 20)
        await one_is_not_read(agent)
        watch = DepartedClients()
        for _ in range(5):
            watch.look(agent.server.connections)
        await other.produce("t", {0: encode_batch([b"x"], timestamp_ms=1).data})
        answers = [(await client.receive())[0] for _ in asked]

    assert asked == answers


async def test_who_has_ended_its_requests_and_gets_answers_is_kept(agent: Serving) -> None:
    """
    A client that sends no more looks as if it had left: it is closed when it got nothing between
    two looks, as Kafka answers what came before the end.
    """
    watch, server = DepartedClients(), agent.server
    async with agent.client() as client:
        asked = pipeline(client, 5, max_wait_ms=50)
        pipeline(client, 20)
        client.writer.write_eof()
        await one_is_not_read(agent)
        (connection,) = server.connections
        for number in asked:
            watch.look(server.connections)
            assert number == (await client.receive())[0]
        kept = not connection.closed
        watch.look(server.connections)
        watch.look(server.connections)
        await asyncio.sleep(0)

    assert (True, True) == (kept, connection.closed)


async def test_what_a_producer_left_while_the_log_could_take_no_more_is_read(
    agent: Serving,
) -> None:
    """
    It has sent with acks=0, and closed: Kafka takes what came before the end, too.
    """
    server = agent.server
    async with agent.client() as client:
        await client.produce("t", {0: encode_batch([b"x"], timestamp_ms=1).data})
        server.hold_producers(True)
        client.send_produce("t", {0: encode_batch([b"y"], timestamp_ms=1).data}, acks=0)
        client.writer.close()
        await client.writer.wait_closed()
    watch = DepartedClients()
    for _ in range(3):
        watch.look(server.connections)
    server.hold_producers(False)
    await eventually(lambda: not server.connections)
    await eventually(lambda: agent.log("t").high_watermark == 2)

    assert 2 == agent.log("t").high_watermark


class Hoarder:
    """Has all the memory of frames, and more."""

    trusted, client = True, NOBODY

    def go_on(self) -> None:
        """It does not wait."""


@pytest.mark.parametrize("cut_bytes", [0, 1])
async def test_a_request_that_waits_for_memory_is_read_if_its_client_sent_all_of_it(
    agent: Serving, cut_bytes: int
) -> None:
    """
    And left.  What can never be complete waits for nothing, and ends at the second look.
    """
    server, watch, hoarder = agent.server, DepartedClients(), Hoarder()
    budget = server.frame_budget
    batch = encode_batch([bytes(40_000)], timestamp_ms=1).data
    wanted = producing("t", {0: batch}, acks=0)
    size = budget.limit_bytes + 1
    assert budget.take(hoarder, size)
    async with agent.client() as client:
        _, frame = client.encode(produce.API, 9, wanted)
        client.writer.write(frame[: len(frame) - cut_bytes])
        await client.writer.drain()
        await eventually(lambda: any(c.missing_bytes for c in server.connections))
        (connection,) = server.connections
        for _ in range(3):
            watch.look(server.connections)
        stayed = not connection.closed
        client.writer.close()
        await client.writer.wait_closed()
    file = connection.unread_file
    assert file is not None
    await eventually(lambda: ended([file]) == [file])
    for _ in range(3):
        watch.look(server.connections)
    closed = connection.closed
    budget.release(hoarder, size)
    await eventually(lambda: not server.connections)

    assert (True, bool(cut_bytes)) == (stayed, closed)
    await eventually(lambda: agent.log("t").high_watermark == 1 - cut_bytes)
