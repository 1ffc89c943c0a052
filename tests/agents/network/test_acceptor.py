"""Connections over the rate wait for one timer, and are counted once each."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.network.acceptor import Accepted, Acceptor, Serve
from driftlog_agents.network.limits.connection_limits import ConnectionLimits
from tests.agents.network.serving import eventually


class World:
    """An acceptor of five connections at once and one a second, whose clock stands."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.refusals = Refusals()
        self.served = 0
        limits: ConnectionLimits[Accepted] = ConnectionLimits(
            most=100, per_address=100, overrides={}, rate=1
        )
        self.limits = limits
        self.acceptor = Acceptor(limits, lambda: self.now_ms, self.refusals)
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.bound.setblocking(False)
        self.clients: list[socket.socket] = []

    def start(self, serve: Serve | None = None) -> None:
        """Accept."""
        self.acceptor.start(self.bound, serve or self.serve)

    async def connect(self) -> None:
        """One more, and it is accepted before this returns."""
        before = self.limits.total
        self.begin_to_connect()
        await eventually(lambda: self.limits.total > before)

    def begin_to_connect(self) -> socket.socket:
        """One more."""
        client = socket.create_connection(self.bound.getsockname())
        client.setblocking(False)
        self.clients.append(client)
        return client

    @property
    def timers(self) -> int:
        """Those of the acceptor that the loop has."""
        # asyncio lists its timers nowhere else.
        handles = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # noqa: SLF001
        step = self.acceptor.serve_next
        return sum(h._callback == step and not h.cancelled() for h in handles)  # noqa: SLF001

    def serve(self, _: str) -> asyncio.Protocol:
        self.served += 1
        return asyncio.Protocol()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Closed after the test."""
    made = World()
    yield made
    made.acceptor.close()
    for client in made.clients:
        client.close()


async def test_connections_that_come_while_others_wait_add_no_timer(world: World) -> None:
    """
    Of twenty that come one after the other fifteen wait, and each is counted: once, also when one
    of them is served later.
    """
    world.start()
    for _ in range(20):
        await world.connect()
    await eventually(lambda: world.served == 5)
    timers = world.timers
    world.now_ms = 1_000
    world.acceptor.serve_next()
    await eventually(lambda: world.served == 6)

    assert (1, 1) == (timers, world.timers)
    assert 15 == world.refusals.counts["max.connection.creation.rate"]


async def test_a_bug_in_serving_a_connection_closes_it_and_leaves_its_place(world: World) -> None:
    """
    The log says so; the next one is served.
    """

    def serve(address: str) -> asyncio.BaseProtocol:
        if world.served:
            return world.serve(address)
        world.served = 1
        raise KeyError("a bug")

    world.start(serve)
    with capture_logs() as lines:
        client = world.begin_to_connect()
        async with asyncio.timeout(10):
            ended = await asyncio.get_running_loop().sock_recv(client, 1)
    left = world.limits.total
    world.begin_to_connect()
    await eventually(lambda: world.served == 2)

    assert (b"", 0) == (ended, left)
    assert ["connection_bug"] == [line["event"] for line in lines]
