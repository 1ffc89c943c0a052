"""Protects the HTTP port: few connections, none idle for long, and no web page.

    connection ──▶ 64 are open? ──▶ an idle one makes room, else it is closed
                   no request within 10 s, or between two for 75 s ──▶ closed
    request    ──▶ another site's page sent it, or its Host is foreign ──▶ 403
                   it changes something, and has no ``X-Driftlog`` ──▶ 403
                   its body is compressed ──▶ 415: 1 MB of gzip has room for 1 GiB

                   half of the connections work for others ──▶ 503, except for `OPEN_PATHS`

A connection whose request waits for its body is idle (`makes_room`): others that send theirs slowly
keep no supervisor from `/healthz`, and neither do seals that wait for an unavailable bucket.

A browser sends what any page requests, also to 127.0.0.1: such requests have an ``Origin`` of
another host, or (DNS rebinding) that page's own name as ``Host``.  A page of another server on the
same machine has the same host and another port, and some browsers send no ``Origin`` with a form.
So requests that change something need a header that no form can send; a script can send it only
after a CORS preflight, which this port never allows.  Paths that only show the agent's state
(`OPEN_PATHS`) answer under every name: monitors use names that an agent does not know.

Shell.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.network.acceptor import HTTP, Accepted, Acceptor
from driftlog_agents.network.limits.connection_limits import ConnectionLimits

OPEN_PATHS: Final = frozenset({"/metrics", "/healthz", "/readyz"})

CHANGE_HEADER: Final = "X-Driftlog"
"""Header of requests that change something, with any value."""

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_LOOK_S: Final = 1.0

_FULL: Final = "the agent works on as many HTTP requests as it can: try again"
_STOPS: Final = "the agent stops"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPatience:
    """How long a connection may be silent."""

    first_s: float = 10.0
    """From the connection to the end of the first request's header."""

    idle_s: float = 75.0
    """Between two requests: longer than monitors wait."""


def is_foreign(host: str, origin: str | None, ours: Iterable[str]) -> str | None:
    """Why a request with these headers may be another site's; None: it is not.

    Args:
        ours: names of this machine, beside addresses, ``localhost`` and names without a dot (which
            no page of the internet can have).
    """
    name = _hostname(host)
    if origin is not None and _hostname(origin.rpartition("://")[2]) != name:
        return f"its Origin is {origin!r:.200}, which is another site's"
    if _is_address(name) or "." not in name.rstrip(".") or name.rstrip(".") in ours:
        return None
    return f"its Host is {host!r:.200}, which is no address and no name of this agent"


def lacks_header(headers: Mapping[str, str]) -> str | None:
    """Why a web form may have sent a request that changes something; None: none has."""
    if headers.get(CHANGE_HEADER):
        return None
    return (
        f"a request that changes something needs the header {CHANGE_HEADER}, which no web page can "
        f"send: curl -H '{CHANGE_HEADER}: 1' -X POST ..."
    )


def _hostname(host: str) -> str:
    host = host.lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class HttpGuard:
    """The guard of one port.

    Args:
        names: of this machine; requests may have them as ``Host``.
    """

    def __init__(
        self,
        limits: Limits,
        names: Iterable[str],
        refusals: Refusals,
        patience: HttpPatience,
    ) -> None:
        self._names = frozenset({*(name.lower() for name in names), socket.gethostname().lower()})
        self._refusals = refusals
        self._patience = patience
        self._most = most = limits.driftlog_http_max_connections
        self._loop = asyncio.get_running_loop()
        self._seen: dict[Any, tuple[str, float, float]] = {}
        """Open connections: address, when it began or its last request ended, and how long it may
        be silent."""
        self._busy: set[Any] = set()
        self._server: web.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        accepted: ConnectionLimits[Accepted] = ConnectionLimits(
            # Twice what is allowed: so many may come in one iteration, before `came` closes others.
            most=2 * most,
            per_address=2 * most,
            overrides={},
            rate=limits.driftlog_http_max_connection_creation_rate,
        )
        self._acceptor = Acceptor(accepted, lambda: self._loop.time() * 1000, refusals, HTTP)

    def start(self, server: web.Server, sockets: Iterable[socket.socket]) -> None:
        """Accept connections at *sockets*, for *server*."""
        self._server = server
        for bound in sockets:
            self._acceptor.start(bound, self._serve)
        self._look()

    def stop(self) -> None:
        """Accept no more connections."""
        self._stopped = True
        self._acceptor.close()
        if self._timer is not None:
            self._timer.cancel()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that may be another site's; note which connections are busy."""
        foreign = None
        if request.path not in OPEN_PATHS or "Origin" in request.headers:
            foreign = is_foreign(request.host, request.headers.get("Origin"), self._names)
        if foreign is None and request.method not in _SAFE_METHODS:
            foreign = lacks_header(request.headers)
        if foreign is not None:
            return _refused(403, foreign)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return _refused(415, "its body is compressed: send it as it is")
        connection = request.protocol
        try:
            if request.path in OPEN_PATHS:
                self._busy.add(connection)
            else:
                self._work(connection)
            return await handler(request)
        except RuntimeError:
            if not self._stopped:
                raise
            return _refused(503, _STOPS)  # the threads that its handler needs are gone
        finally:
            self._idle(connection)

    @contextmanager
    def makes_room(self, connection: Any) -> Iterator[None]:
        """Meanwhile *connection*, which is busy, counts as idle."""
        self._idle(connection)
        try:
            yield
        finally:
            self._work(connection)

    def _work(self, connection: Any) -> None:
        if len(self._busy) >= (self._most + 1) // 2:
            raise web.HTTPServiceUnavailable(
                text=json.dumps({"error": f"refused: {_FULL}"}), content_type="application/json"
            )
        self._busy.add(connection)

    def _idle(self, connection: Any) -> None:
        self._busy.discard(connection)
        if connection in self._seen:
            address = self._seen[connection][0]
            self._seen[connection] = address, self._loop.time(), self._patience.idle_s

    def _serve(self, address: str) -> asyncio.BaseProtocol:
        assert self._server is not None
        return _Guarded(self, self._server(), address)

    def came(self, connection: Any, address: str) -> None:
        """*connection* has a transport, and can be closed from now on."""
        self._seen[connection] = address, self._loop.time(), self._patience.first_s
        if len(self._seen) > self._most:
            self._refusals.count("driftlog.http.max.connections")
            idle = [c for c in self._seen if c not in self._busy]
            self._close(min(idle, key=lambda c: self._seen[c][1]))  # at worst *connection*

    def went(self, connection: Any) -> None:
        """*connection* is closed; a repeated call does nothing."""
        if connection in self._seen:
            address, _, _ = self._seen.pop(connection)
            self._acceptor.left(address)

    def _look(self) -> None:
        now_s = self._loop.time()
        for connection, (_, since_s, silent_s) in list(self._seen.items()):
            if connection not in self._busy and now_s - since_s > silent_s:
                self._close(connection)
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _close(self, connection: Any) -> None:
        transport = connection.transport
        self.went(connection)
        connection.force_close()
        if transport is not None:
            transport.abort()  # without waiting for its client


GUARD: Final = web.AppKey("guard", HttpGuard)
"""Of the application whose port it guards."""


@contextmanager
def makes_room(request: web.Request) -> Iterator[None]:
    """While *request* waits for its body its connection makes room for others, as an idle one."""
    with request.app[GUARD].makes_room(request.protocol):
        yield


def _refused(status: int, why: str) -> web.Response:
    return web.json_response({"error": f"refused: {why}"}, status=status)


class _Guarded(asyncio.Protocol):
    """A connection that tells its guard when it begins and when it ends."""

    def __init__(self, guard: HttpGuard, connection: Any, address: str) -> None:
        self._guard = guard
        self._connection = connection
        self._address = address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(transport)
        self._guard.came(self._connection, self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.went(self._connection)
        self._connection.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._connection.data_received(data)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
