"""Accepts connections, and closes or delays those that are over a limit.

The event loop's own servers accept whatever comes until the process has no files left, which the
log, the stores and the disk need too.

Shell.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from driftlog_agents.limits import Refusals
from driftlog_agents.network.connection_limits import ConnectionLimits
from driftlog_agents.network.unread import ended

_BACKLOG: Final = 1024
_AT_ONCE: Final = 100
"""Accepted in one turn of the loop."""

_NO_FILES_S: Final = 1.0
"""Until the next attempt when the system has no files or memory for a connection."""

_TELL_S: Final = 1.0
"""Between two lines about what is refused."""

_ADVICE: Final = {
    "max.connections": "raise the limit of open files (ulimit -n), or start more agents",
    "max.connections.per.ip": "does this client close what it opens?  --config "
    "max.connections.per.ip or max.connections.per.ip.overrides allows more",
    "driftlog.http.max.connections": "who opens so many?  --config driftlog.http.max.connections "
    "allows more",
}

Serve = Callable[[str], asyncio.BaseProtocol]
"""The protocol of a connection from an address; its owner tells `Acceptor.left` when it is gone."""

Accepted = tuple[socket.socket, str, Serve]


class Acceptor:
    """Accepts at any number of sockets, under one set of limits.

    Args:
        refused_as: the config that is counted and told of instead of ``max.connections``.
    """

    def __init__(
        self,
        limits: ConnectionLimits[Accepted],
        now_ms: Callable[[], float],
        refusals: Refusals,
        refused_as: str = "max.connections",
    ) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._refusals = refusals
        self._refused_as = refused_as
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._new: set[socket.socket] = set()
        """Accepted in this turn of the loop: not counted yet if they wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger()
        self._tell_at_s = 0.0
        self._untold = 0
        self.closed = False

    def start(self, bound: socket.socket, serve: Serve) -> None:
        """Accept at *bound*; harmless when that is done already.

        Raises:
            OSError: somebody else, who was bound as well, was faster.
        """
        if bound not in self._listening and not self.closed:
            bound.listen(_BACKLOG)
            self._listening.append(bound)
            self._listen(bound, serve)

    def close(self) -> None:
        """Accept no more."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for bound in self._listening:
            self._loop.remove_reader(bound.fileno())
            bound.close()
        self._listening.clear()
        for accepted, address, _ in self._limits.drain():
            self._limits.left(address)
            accepted.close()

    def left(self, address: str) -> None:
        """A connection of *address* is gone."""
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
                continue  # it has gone already
            except OSError as error:
                self._loop.remove_reader(bound.fileno())
                self._loop.call_later(_NO_FILES_S, self._listen, bound, serve)
                self._tell(_ADVICE["max.connections"], str(error), "?")
                break
            self._arrived(accepted, str(peer[0]), serve)
        self._serve_next()

    def _arrived(self, accepted: socket.socket, address: str, serve: Serve) -> None:
        limit = self._limits.refused_by(address)
        if limit is None:
            accepted.setblocking(False)
            self._new.add(accepted)
            self._limits.wait(address, (accepted, address, serve))
            return
        accepted.close()
        if limit == "max.connections":
            limit = self._refused_as
        self._refusals.count(limit)
        self._tell(_ADVICE[limit], f"{limit}: so many connections are open", address)

    def _tell(self, advice: str, reason: str, address: str) -> None:
        """One line a second at most."""
        self._untold += 1
        now_s = self._loop.time()
        if now_s >= self._tell_at_s:
            self._tell_at_s = now_s + _TELL_S
            count, self._untold = self._untold, 0
            self._log.warning(
                "connection_refused", client=address, reason=reason, count=count, advice=advice
            )

    def _serve_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()  # a connection came before it was time
            self._timer = None
        now_ms = self._now_ms()
        while (waiting := self._limits.next(now_ms, _is_gone)) is not None:
            accepted, address, serve = waiting
            self._new.discard(accepted)
            # Its parent is this object: the loop has no other way to take a socket over.
            task = self._loop.create_task(self._open(accepted, address, serve))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        for accepted in self._new:
            if accepted.fileno() >= 0:  # else it has gone already
                self._refusals.count("max.connection.creation.rate")
        self._new.clear()
        ready_at_ms = self._limits.ready_at_ms(now_ms)
        if ready_at_ms is not None:
            self._timer = self._loop.call_later(
                max(0.001, (ready_at_ms - now_ms) / 1000), self._serve_next
            )

    async def _open(self, accepted: socket.socket, address: str, serve: Serve) -> None:
        try:
            # Both as SocketServer#configureAcceptedSocketChannel.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await self._loop.connect_accepted_socket(partial(serve, address), accepted)
        except OSError:  # it has gone before it was served
            self._not_served(accepted, address)
        except Exception:  # noqa: BLE001  # a bug costs one connection, and leaves its place
            self._log.exception("connection_bug", client=address)
            self._not_served(accepted, address)

    def _not_served(self, accepted: socket.socket, address: str) -> None:
        accepted.close()
        self._limits.left(address)


def _is_gone(waiting: Accepted) -> bool:
    """Whether the client has closed it while it waited; then it is closed here, too."""
    accepted = waiting[0]
    gone = bool(ended([accepted.fileno()]))
    if gone:
        accepted.close()
    return gone
