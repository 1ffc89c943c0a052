"""Recognises clients of other protocols by the first bytes that they send to a Kafka listener.

A Kafka client's first bytes are the size of a small request.  The first bytes of TLS, read as a
size, are some 352 MiB; those of HTTP are more than a gigabyte.

Pure.
"""

from typing import Final

from driftlog_agents.network.limits.refused_connections import OTHERS
from driftlog_agents.protocol.errors import CorruptFrameError

TLS: Final = "TLS"
HTTP: Final = "HTTP"

ADVICE: Final = {
    TLS: "this listener is plaintext: set security.protocol=PLAINTEXT in the client",
    HTTP: "this listener speaks Kafka's protocol only: the agent's HTTP port is --http-listener",
}

_TLS_HANDSHAKE: Final = b"\x16\x03"
"""The type of a handshake record, and the major version of SSL 3.0 and of every TLS (RFC 8446,
5.1)."""

_HTTP_METHODS: Final = frozenset(b"GET ,HEAD,POST,PUT ,DELE,CONN,OPTI,TRAC,PATC,PRI ".split(b","))
"""The first four bytes of each (RFC 9110, RFC 5789); PRI begins HTTP/2 (RFC 9113, 3.4)."""

_SAID_MS: Final = 60_000.0
"""Time between two lines about one address and protocol.  Longer: an operator who reads the log
later does not see that the client is still there."""

_MOST: Final = 256
"""Most addresses and protocols that are remembered; further ones share a line."""


class ForeignProtocolError(CorruptFrameError):
    """The first bytes of a connection belong to another protocol."""

    def __init__(self, protocol: str) -> None:
        super().__init__(f"a client that speaks {protocol}, and not Kafka's protocol")
        self.protocol = protocol


def foreign_protocol(first: bytes) -> str | None:
    """The protocol of a connection, by its first four bytes; None: it may be Kafka's."""
    if first[:2] == _TLS_HANDSHAKE:
        return TLS
    return HTTP if first[:4] in _HTTP_METHODS else None


class ForeignClients:
    """Counts the connections of other protocols by address, and decides which ones are logged."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """When the last line was written, and how many connections came since."""

    def count(self, address: str, protocol: str, now_ms: float) -> int:
        """Count one connection; returns how many the line due now reports, or 0: none is due."""
        key = address, protocol
        if key not in self._seen and len(self._seen) >= _MOST:
            self._forget_silent(now_ms)
            if len(self._seen) >= _MOST:
                key = OTHERS, protocol
        said_ms, since = self._seen.get(key, (now_ms - _SAID_MS, 0))
        if now_ms - said_ms < _SAID_MS:
            self._seen[key] = said_ms, since + 1
            return 0
        self._seen[key] = now_ms, 0
        return since + 1

    def _forget_silent(self, now_ms: float) -> None:
        for key, (said_ms, _) in list(self._seen.items()):
            if now_ms - said_ms >= _SAID_MS:
                del self._seen[key]
