"""Recognises a listener that speaks another protocol than the client, by its first bytes.

    plaintext client   ApiVersions ──▶ a TLS alert, HTTP, or an end ──▶ an error at once
    TLS client         ClientHello ──▶ no TLS record, or an end     ──▶ an error at once

librdkafka takes all of these for a broker that will be back, and tries again until a time-out.
Shell.
"""

import socket
import ssl
import struct
from typing import Final

_ANSWER_S: Final = 2.0
"""A listener that is silent for so long is left to librdkafka: its broker may be busy."""

_CLIENT: Final = b"driftlog"
_API_VERSIONS: Final = struct.pack(
    f">ihhih{len(_CLIENT)}s", 10 + len(_CLIENT), 18, 0, 1, len(_CLIENT), _CLIENT
)
"""ApiVersions v0, which every broker answers before anything else."""

_TLS_ALERT: Final = b"\x15\x03"
"""An alert record, and the major version of every TLS (RFC 8446, 5.1)."""

_HTTP: Final = b"HTTP/"

WHICH_ADDRESS: Final = (
    "Give --bootstrap-server the bootstrap address that the agent prints when it is ready"
)
_TLS: Final = "speaks TLS: give -X security.protocol=SSL, or SASL_SSL"
_NO_TLS: Final = (
    "speaks no TLS: leave -X security.protocol=SSL out, or give the address of a TLS listener"
)


def foreign_protocol(host: str, port: int, connect_s: float, *, tls: bool) -> str | None:
    """What is wrong with the listener, as the end of a sentence; None: nothing that shows.

    Args:
        tls: the client is to speak TLS.

    Raises:
        OSError: it cannot be connected to.
    """
    with socket.create_connection((host, port), connect_s) as connection:
        connection.settimeout(_ANSWER_S)
        if tls:
            return None if _may_speak_tls(connection) else _NO_TLS
        try:
            connection.sendall(_API_VERSIONS)
            first = connection.recv(len(_HTTP))
        except TimeoutError:
            return None
        except OSError:
            first = b""
    if first == _HTTP:
        return f"speaks HTTP and not Kafka: it may be the agent's HTTP port.  {WHICH_ADDRESS}"
    if first[:2] == _TLS_ALERT:
        return _TLS
    if first:
        return None
    # OpenSSL closes without an alert.
    with socket.create_connection((host, port), connect_s) as connection:
        connection.settimeout(_ANSWER_S)
        if _may_speak_tls(connection):
            return _TLS
    return f"closes the connection at a Kafka request: it is no Kafka listener.  {WHICH_ADDRESS}"


def _may_speak_tls(connection: socket.socket) -> bool:
    """Whether a handshake begins, or nothing is said; certificates are librdkafka's to verify."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(connection).close()
    except TimeoutError:
        return True
    except ssl.SSLEOFError:
        return False
    except ssl.SSLError as error:
        # Any other alert (a client certificate is wanted, …) is TLS.
        return error.reason not in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
    except OSError:
        return False
    return True
