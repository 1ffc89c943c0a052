"""A large answer is written to the socket itself: all of it, in order, and to no other socket."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from random import Random
from typing import Any

import pytest

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.listeners import ListenAt
from driftlog_agents.network.server import Server
from driftlog_agents.network.slots import Slot
from driftlog_agents.network.socket_writes import write_to_socket
from tests.agents.network.serving import MiB, eventually

REQUEST = b"\0\0\0\x08" + bytes(8)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection; the first does not block."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def received(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return bytes(data)


# ── One write ──


def test_more_buffers_than_a_system_call_takes_are_written_in_their_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    buffers = [number.to_bytes(4, "big") for number in range(3_000)]

    written = write_to_socket(ours.fileno(), buffers)

    assert (3_000, 0) == written
    assert b"".join(buffers) == received(theirs, 12_000)


def test_what_the_socket_does_not_take_is_named_exactly(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The first write ends inside a buffer; the next ones take nothing."""
    ours, theirs = pair
    buffers = [Random(number).randbytes(1_000_003) for number in range(4)]

    whole, sent_bytes = write_to_socket(ours.fileno(), buffers)
    again = write_to_socket(ours.fileno(), buffers[whole:])
    ours.close()
    taken = received(theirs, 5 * MiB)

    assert 0 < len(taken) < sum(map(len, buffers))
    assert b"".join(buffers)[: len(taken)] == taken
    assert sum(map(len, buffers[:whole])) + sent_bytes == len(taken)
    assert (0, 0) == again


def test_an_error_of_the_socket_is_left_to_the_transport(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.close()

    assert (0, 0) == write_to_socket(ours.fileno(), [bytes(MiB)])


# ── A connection's answers ──


class Answering:
    """A server whose requests the test answers."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.server = Server(
            now_ms=lambda: 0.0,
            socket_request_max_bytes=MiB,
            max_connections=100,
            connections_max_idle_ms=60_000,
            limits=Limits(),
            refusals=Refusals(),
            listeners=[ListenAt(port=0)],
        )

    async def connect(self, requests: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client whose requests wait for their answers."""
        [listener] = await self.server.bind()
        self.server.start(self._dispatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
        writer.write(REQUEST * requests)
        await eventually(lambda: len(self.slots) == requests)
        return reader, writer

    def _dispatch(self, connection: Connection, _: memoryview) -> None:
        self.slots.append(connection.turn())

    @property
    def connection(self) -> Connection:
        """The only one."""
        [connection] = self.server.connections
        return connection


@pytest.fixture
async def answering() -> AsyncIterator[Answering]:
    serving = Answering()
    yield serving
    await serving.server.stop()


async def test_answers_larger_than_the_socket_come_whole_and_in_order(answering: Answering) -> None:
    """
    The socket takes a part of the first large answer, and the transport has the rest of it.  The
    answers that follow, small and large, come after that, though the socket has room again.
    """
    answers = [
        [Random(n).randbytes(size) for size in sizes]
        for n, sizes in enumerate(([300_000] * 30, [100], [70_000, 20, 9 * MiB], [MiB]))
    ]
    reader, writer = await answering.connect(len(answers))

    answering.slots[0].respond(answers[0])
    await eventually(lambda: answering.connection.writer.paused)
    for slot, answer in zip(answering.slots[1:], answers[1:], strict=True):
        slot.respond(answer)
    expected = b"".join(b"".join(answer) for answer in answers)
    data = await reader.readexactly(len(expected))

    assert expected == data
    writer.close()


class Closing(asyncio.Transport):
    """A transport that has closed its socket, and has not said so yet."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return True

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.taken = [bytes(each) for each in list_of_data]


async def test_an_answer_of_a_closing_connection_goes_to_no_other_socket(
    answering: Answering, pair: tuple[socket.socket, socket.socket]
) -> None:
    """
    The transport is closing, and its file descriptor is that of a new connection by now: what is
    written to it, the new connection's client would receive.
    """
    new, client_of_new = pair
    _, writer = await answering.connect(1)
    connection = answering.connection
    transport = Closing()
    connection.writer.connected(transport, new.fileno())

    answering.slots[0].respond([bytes(MiB)])
    connection.writer.flush()
    client_of_new.setblocking(False)

    with pytest.raises(BlockingIOError):
        client_of_new.recv(1)
    assert sum(map(len, transport.taken)) >= MiB, "a later answer would come without this one"
    writer.close()
