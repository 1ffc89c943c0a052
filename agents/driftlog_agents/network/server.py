"""Listens, and owns every connection and the memory budgets that they share.

    Acceptor ──▶ Connection ──▶ dispatch      budgets: incomplete frames, requests, answers
                                              StalledConnections: closes holders without progress

Shell.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from driftlog_agents.configs.limits import CONNECTIONS_MAX_IDLE, Limits, Refusals
from driftlog_agents.network.acceptor import Accepted, Acceptor
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.limits.connection_limits import ConnectionLimits
from driftlog_agents.network.limits.departed_clients import DepartedClients
from driftlog_agents.network.limits.foreign_protocols import ADVICE, ForeignClients
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.network.limits.memory_budget import MemoryBudget, SharedMemory
from driftlog_agents.network.limits.stalled_connections import StalledConnections
from driftlog_agents.network.listeners import OPTION, ListenAt, refused, take_all
from driftlog_agents.network.queued_requests import RequestQueue
from driftlog_agents.protocol.requests.one_batch import PrefixMemory
from driftlog_metadata.schema.model import Listener
from driftlog_tiering.stores.buffer_pool import BufferPool

_SHARED_BYTES: Final = 256 * 1024

_POOL_BYTES: Final = 128 * 1024 * 1024
"""The log keeps 96 MiB of frames in memory (`MemorySettings`); others are still arriving."""

_INCOMPLETE_BYTES: Final = 256 * 1024 * 1024
"""Memory for Produce frames that are not admitted: 256 producers in the middle of a request of
1 MiB."""

_LOOK_S: Final = 0.5
"""Time between two checks for stalled connections, while others wait for memory."""

_LEFT_S: Final = 1.0
"""Time between two checks for clients that left while their connection was not read."""

_IDLE_S: Final = 30.0
"""Longest time between two checks for idle connections."""

_FINISH_S: Final = 1.0
"""How long `stop` waits for clients to take their last answers."""

Dispatch = Callable[[Connection, memoryview], None]


def _nobody(_: Connection, __: memoryview) -> None:
    raise AssertionError("a server that was started before it had a dispatcher")


class Server:
    """Listens, and owns every connection."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], float],
        socket_request_max_bytes: int,
        max_connections: int,
        connections_max_idle_ms: float,
        limits: Limits,
        refusals: Refusals,
        listeners: Sequence[ListenAt],
        bound: Sequence[Sequence[socket.socket]] = (),
    ) -> None:
        self.dispatch: Dispatch = _nobody
        self.now_ms = now_ms
        self.socket_request_max_bytes = socket_request_max_bytes
        self.shared = memoryview(bytearray(_SHARED_BYTES))
        self.pool = BufferPool(_POOL_BYTES)
        self.frame_budget = MemoryBudget(_INCOMPLETE_BYTES, self._pressed)
        self.requests = RequestQueue(
            limits.queued_max_requests,
            limits.driftlog_max_unanswered_requests,
            MemoryBudget(limits.queued_max_request_bytes, self._pressed),
        )
        self.answers = MemoryBudget(limits.driftlog_max_response_queue_bytes, self._pressed)
        SharedMemory(
            limits.driftlog_max_network_bytes,
            (self.frame_budget, self.request_budget, self.answers),
        )
        self.prefixes = PrefixMemory()
        self.max_queued = limits.driftlog_connection_max_queued_requests
        """Queued requests of one connection."""
        self.refusals = refusals
        self._foreign = ForeignClients()
        self._stalls = StalledConnections(self)
        self._looking = False
        self.stalled_ms = 5_000.0
        """How long a connection may hold memory without progress while others wait for it."""
        self.log = structlog.get_logger()
        self.loop = asyncio.get_running_loop()
        self.loop_share = LoopShare(self.loop)
        self.overloaded = False
        """Whether producers are not read."""
        self.connections: set[Connection] = set()
        self._idle_ms = connections_max_idle_ms
        self._limits: ConnectionLimits[Accepted] = ConnectionLimits(
            most=max_connections,
            per_address=limits.max_connections_per_ip,
            overrides=limits.connections_by_address,
            rate=limits.max_connection_creation_rate,
        )
        self._acceptor = Acceptor(self._limits, now_ms, refusals)
        self._listeners = listeners
        self.bound = bound
        """The sockets of each listener."""

    async def bind(self) -> tuple[Listener, ...]:
        """Bind the addresses, and accept no connection yet; returns what clients receive.

        Raises:
            ListenError: an address cannot be used.
        """
        self.bound = self.bound or await take_all(self._listeners)
        return tuple(
            at.advertised(sockets[0].getsockname()[1])
            for at, sockets in zip(self._listeners, self.bound, strict=True)
        )

    def start(self, dispatch: Dispatch) -> None:
        """Accept connections, and give each request to *dispatch*; harmless when repeated.

        Raises:
            ListenError: another process, bound to the same address, listens there.
        """
        self.dispatch = dispatch
        for at, sockets in zip(self._listeners, self.bound, strict=True):
            try:
                for bound in sockets:
                    self._acceptor.start(bound, partial(Connection, self, at.name))
            except OSError as error:
                port = sockets[0].getsockname()[1]
                raise refused(error, at.host, port, OPTION) from error

    @property
    def request_budget(self) -> MemoryBudget:
        """The budget of requests other than Produce."""
        return self.requests.budget

    def left(self, connection: Connection) -> None:
        """*connection* is closed: forget it."""
        self.connections.discard(connection)
        self._acceptor.left(connection.address)

    def refuse_foreign(self, connection: Connection, protocol: str) -> None:
        """Close the connection of a client that speaks *protocol*."""
        count = self._foreign.count(connection.address, protocol, self.now_ms())
        if count:
            self.log.warning(
                "foreign_protocol_refused",
                client=connection.client_host,
                listener=connection.listener,
                protocol=protocol,
                count=count,
                reason=f"a client that speaks {protocol} connected to a listener for Kafka clients",
                advice=ADVICE[protocol],
            )
        connection.close()

    def limit_connections(self, most: int, limits: Limits) -> None:
        """Take other limits of connections: *most* in all."""
        self._limits.change(
            most=most,
            per_address=limits.max_connections_per_ip,
            overrides=limits.connections_by_address,
            rate=limits.max_connection_creation_rate,
        )

    def hold_producers(self, held: bool) -> None:
        """Stop reading from producers while *held*; consumers are served."""
        self.overloaded = held
        for connection in list(self.connections):
            connection.reconsider()

    def _pressed(self) -> None:
        """Connections wait for memory: check for holders without progress until none waits."""
        if not self._looking:
            self._looking = True
            self.loop.call_later(_LOOK_S, self._look_for_stalled)

    def _look_for_stalled(self) -> None:
        self._looking = False
        if self._stalls.look(self.now_ms()):
            self._pressed()
        self.requests.look()

    async def run(self) -> None:
        """Close idle connections, and those whose clients have left, until cancelled."""
        unread, idle_s = DepartedClients(), min(_IDLE_S, self._idle_ms / 4000)
        idle_at_s = self.loop.time() + idle_s
        while True:
            await asyncio.sleep(min(_LEFT_S, idle_s))
            unread.look(self.connections)
            if self.loop.time() < idle_at_s:
                continue  # the next check takes longer: 8 ms for 19,000 connections
            idle_at_s = self.loop.time() + idle_s
            for connection in list(self.connections):
                if connection.idle_ms > self._idle_ms:
                    self.refusals.count(CONNECTIONS_MAX_IDLE)
                    connection.close()

    async def stop(self) -> None:
        """Accept no more, send the answers that are ready, and close every connection."""
        self._acceptor.close()
        for sockets in self.bound:
            for bound in sockets:
                bound.close()
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.finish()
        deadline = self.loop.time() + _FINISH_S
        while self.connections and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # only at the end of the process, for a second
        for connection in list(self.connections):
            connection.close()
