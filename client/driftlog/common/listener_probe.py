"""Recognises a listener with another protocol than the client's, by its first bytes.

    plaintext client   ApiVersions ──▶ a TLS alert, HTTP, or an end
    TLS client         ClientHello ──▶ no TLS record, or an end

librdkafka treats all of these as a broker that is away for a moment, and repeats until a time-out.
Shell.
"""

import socket
import ssl
import struct
from enum import Enum, auto
from typing import Final

_CLIENT: Final = b"driftlog"
_API_VERSIONS: Final = struct.pack(
    f">ihhih{len(_CLIENT)}s", 10 + len(_CLIENT), 18, 0, 1, len(_CLIENT), _CLIENT
)
"""ApiVersions v0, which every broker answers before anything else."""

_TLS_ALERT: Final = b"\x15\x03"
"""An alert record, and the major version of every TLS (RFC 8446, 5.1)."""

_HTTP: Final = b"HTTP/"


class ForeignProtocol(Enum):
    """The protocol that the listener's answer shows."""

    HTTP = auto()
    TLS = auto()
    """TLS, and the client uses plaintext."""
    NO_TLS = auto()
    """No TLS, and the client uses it."""
    CLOSED = auto()
    """No answer: the listener closes the connection at the first request."""


def foreign_protocol(
    host: str, port: int, *, tls: bool, connect_s: float, answer_s: float
) -> ForeignProtocol | None:
    """The listener's protocol, if it is not the client's; None: no sign of another one.

    Args:
        tls: the client uses TLS.
        answer_s: after a silence of this long the result is None: the broker may be busy.

    Raises:
        OSError: the connection failed.
    """
    with socket.create_connection((host, port), connect_s) as connection:
        connection.settimeout(answer_s)
        try:
            if tls:
                return _answer_to_tls(connection)
            connection.sendall(_API_VERSIONS)
            first = connection.recv(len(_HTTP))
        except TimeoutError:
            return None
        except OSError:
            first = b""
    if first == _HTTP:
        return ForeignProtocol.HTTP
    if first[:2] == _TLS_ALERT:
        return ForeignProtocol.TLS
    if first:
        return None
    # A TLS listener with OpenSSL closes without an alert.
    with socket.create_connection((host, port), connect_s) as connection:
        connection.settimeout(answer_s)
        try:
            speaks_tls = _answer_to_tls(connection) is None
        except TimeoutError:
            speaks_tls = False
    return ForeignProtocol.TLS if speaks_tls else ForeignProtocol.CLOSED


def _answer_to_tls(connection: socket.socket) -> ForeignProtocol | None:
    """None: a handshake begins; librdkafka verifies certificates.

    Raises:
        TimeoutError: the listener is silent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(connection).close()
    except TimeoutError:  # it is an OSError
        raise
    except ssl.SSLEOFError:
        return ForeignProtocol.CLOSED
    except ssl.SSLError as error:
        # Any other alert (a client certificate is required, …) is TLS.
        is_foreign = error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
        return ForeignProtocol.NO_TLS if is_foreign else None
    except OSError:
        return ForeignProtocol.CLOSED
    return None
