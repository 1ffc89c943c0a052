"""Accepts connections; closes those over a limit, and delays those over the rate.

The event loop's own servers accept connections until the process has no files left, which the
log, the stores and the disk need too.

Shell.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.network.limits.connection_limits import ConnectionLimits
from driftlog_agents.network.limits.departed_clients import ended
from driftlog_agents.network.limits.refused_connections import Refused, RefusedConnections

_BACKLOG: Final = 1024
_AT_ONCE: Final = 100
"""Most connections that a socket accepts in one iteration of the loop."""

_NO_FILES_S: Final = 1.0
"""Pause before the next attempt when the system has no files or memory for a connection."""

_TELL_S: Final = 1.0
"""Shortest time between two log lines about one limit and one address."""

_ADVICE: Final = {
    "max.connections": "raise the limit of open files (ulimit -n), or start more agents",
    "max.connections.per.ip": "check that the client closes its connections; --config "
    "max.connections.per.ip or max.connections.per.ip.overrides allows more",
    "max.connections.per.ip.overrides": "check that the client closes its connections; --config "
    "max.connections.per.ip.overrides allows more",
    "driftlog.http.max.connections": "check that the client closes its connections; --config "
    "driftlog.http.max.connections allows more",
}

Serve = Callable[[str], asyncio.BaseProtocol]
"""Makes the protocol of a connection from an address; its end is reported to `Acceptor.left`."""

Accepted = tuple[socket.socket, str, Serve]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfigs:
    """The configs that set the limits; refusals and delays are counted by their names."""

    total: str = "max.connections"
    rate: str = "max.connection.creation.rate"


KAFKA: Final = ConnectionConfigs()
HTTP: Final = ConnectionConfigs(
    total="driftlog.http.max.connections", rate="driftlog.http.max.connection.creation.rate"
)


class Acceptor:
    """Accepts connections at any number of sockets, under one set of limits."""

    def __init__(
        self,
        limits: ConnectionLimits[Accepted],
        now_ms: Callable[[], float],
        refusals: Refusals,
        configs: ConnectionConfigs = KAFKA,
    ) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._refusals = refusals
        self._configs = configs
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._new: set[socket.socket] = set()
        """Accepted in this iteration of the loop; those that then still wait count as delayed."""
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger()
        self._refused = RefusedConnections()
        self._tell_timer: asyncio.TimerHandle | None = None
        """Runs from a refusal until a second passes without one."""
        self.closed = False

    def start(self, bound: socket.socket, serve: Serve) -> None:
        """Accept connections at *bound*; a repeated call, and one after `close`, does nothing.

        Raises:
            OSError: another process, bound to the same address, listens there.
        """
        if bound not in self._listening and not self.closed:
            bound.listen(_BACKLOG)
            self._listening.append(bound)
            self._listen(bound, serve)

    def close(self) -> None:
        """Accept no more connections; close the sockets, and the connections that wait."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tell_timer is not None:
            self._tell_timer.cancel()
            self._tell_rest()
        for bound in self._listening:
            self._loop.remove_reader(bound.fileno())
            bound.close()
        self._listening.clear()
        for accepted, address, _ in self._limits.drain():
            self._limits.left(address)
            accepted.close()

    def left(self, address: str) -> None:
        """Uncount a connection of *address*, which is closed."""
        self._limits.left(address)

    def _listen(self, bound: socket.socket, serve: Serve) -> None:
        if not self.closed:
            self._loop.add_reader(bound.fileno(), self._accept, bound, serve)

    def _accept(self, bound: socket.socket, serve: Serve) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = bound.accept()
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionError:
                continue  # the client has closed it already
            except OSError as error:
                self._loop.remove_reader(bound.fileno())
                self._loop.call_later(_NO_FILES_S, self._listen, bound, serve)
                self._log.warning(
                    "connections_not_accepted", reason=str(error), advice=_ADVICE["max.connections"]
                )
                break
            self._arrived(accepted, str(peer[0]), serve)
        self.serve_next()

    def _arrived(self, accepted: socket.socket, address: str, serve: Serve) -> None:
        limit = self._limits.refused_by(address)
        if limit is None:
            accepted.setblocking(False)
            self._new.add(accepted)
            self._limits.wait(address, (accepted, address, serve))
            return
        accepted.close()
        if limit == "max.connections":
            limit = self._configs.total
        self._refusals.count(limit)
        refused = Refused(address, limit)
        if self._refused.count(refused):
            self._tell(refused, 1)
        if self._tell_timer is None:
            self._tell_timer = self._loop.call_later(_TELL_S, self._tell_due)

    def _tell_due(self) -> None:
        """Log the refusals since the last lines; repeat until a second has none."""
        self._tell_timer = None
        if self._tell_rest():
            self._tell_timer = self._loop.call_later(_TELL_S, self._tell_due)

    def _tell_rest(self) -> bool:
        """Log the refusals that no line covers yet; False: no refusal for a second."""
        due = self._refused.due()
        for refused, count in due or ():
            self._tell(refused, count)
        return due is not None

    def _tell(self, refused: Refused, count: int) -> None:
        self._log.warning(
            "connection_refused",
            client=refused.address,
            limit=refused.limit,
            reason=f"{refused.limit}: so many connections are open",
            count=count,
            advice=_ADVICE[refused.limit],
        )

    def serve_next(self) -> None:
        """Serve the connections that the rate allows now; a timer calls this for the next one."""
        if self._timer is not None:
            self._timer.cancel()  # a new connection called this before the timer did
            self._timer = None
        now_ms = self._now_ms()
        while (waiting := self._limits.next(now_ms, _is_gone)) is not None:
            accepted, address, serve = waiting
            self._new.discard(accepted)
            # This object owns the task: `connect_accepted_socket` is a coroutine.
            task = self._loop.create_task(self._open(accepted, address, serve))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        for accepted in self._new:
            if accepted.fileno() >= 0:  # else `_is_gone` has closed it
                self._refusals.count(self._configs.rate)
        self._new.clear()
        ready_at_ms = self._limits.ready_at_ms(now_ms)
        if ready_at_ms is not None:
            self._timer = self._loop.call_later(
                max(0.001, (ready_at_ms - now_ms) / 1000), self.serve_next
            )

    async def _open(self, accepted: socket.socket, address: str, serve: Serve) -> None:
        try:
            # Both options as in SocketServer#configureAcceptedSocketChannel.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await self._loop.connect_accepted_socket(partial(serve, address), accepted)
        except OSError:  # the client closed it before it was served
            self._not_served(accepted, address)
        except Exception:  # noqa: BLE001  # a bug closes one connection, and frees its place
            self._log.exception("connection_bug", client=address)
            self._not_served(accepted, address)

    def _not_served(self, accepted: socket.socket, address: str) -> None:
        accepted.close()
        self._limits.left(address)


def _is_gone(waiting: Accepted) -> bool:
    """Whether the client closed the connection while it waited; then it is closed here, too."""
    accepted = waiting[0]
    gone = bool(ended([accepted.fileno()]))
    if gone:
        accepted.close()
    return gone
