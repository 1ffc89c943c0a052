"""Large answers are written in turn, so many of them do not hold the event loop."""

import asyncio

import pytest

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.network.listeners import ListenAt
from driftlog_agents.network.server import Server
from driftlog_agents.network.slots import Slot
from tests.agents.network.serving import MiB, eventually

CLIENTS = 20
REQUEST = b"\0\0\0\x08" + bytes(8)
WRITE_S = 0.002


@pytest.mark.parametrize(("answer_bytes", "most_at_once"), [(MiB, 4), (1_000, CLIENTS)])
async def test_an_iteration_writes_large_answers_for_its_share_of_the_loop(
    answer_bytes: int, most_at_once: int
) -> None:
    """
    Twenty large answers are ready at once, and each write takes 2 ms: an iteration writes for 5 ms.
    Small answers are all written at once, and every client receives its answer.
    """
    slots: list[Slot] = []
    server = Server(
        now_ms=lambda: 0.0,
        socket_request_max_bytes=MiB,
        max_connections=100,
        connections_max_idle_ms=60_000,
        limits=Limits(),
        refusals=Refusals(),
        listeners=[ListenAt(port=0)],
    )

    def written() -> int:
        return sum(each.source.answers for each in server.connections)

    def dispatch(connection: Connection, _: memoryview) -> None:
        slots.append(connection.turn())

    server.loop_share = LoopShare(server.loop, lambda: written() * WRITE_S)
    [listener] = await server.bind()
    server.start(dispatch)
    streams = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(CLIENTS)]
    for _, writer in streams:
        writer.write(REQUEST)
    await eventually(lambda: len(slots) == CLIENTS)

    for slot in slots:
        slot.respond([bytes(answer_bytes)])
    at_once = []
    while (before := written()) < CLIENTS:
        await asyncio.sleep(0)
        at_once.append(written() - before)
    received = [await reader.readexactly(answer_bytes) for reader, _ in streams]

    assert max(at_once) <= most_at_once
    assert [bytes(answer_bytes)] * CLIENTS == received
    for _, writer in streams:
        writer.close()
    await server.stop()
