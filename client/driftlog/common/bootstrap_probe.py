"""The first look at a cluster's addresses: an error in a second, where librdkafka goes on trying.

librdkafka takes a refused connection for a broker that may come yet.  For a client that starts, a
wrong address is as likely; so the client opens one connection itself, before librdkafka's.

    refused, or no such host, at every address, for a second   ──▶ UnreachableError
    the listener answers as HTTP or as TLS                     ──▶ UnreachableError
    everything else: an answer, silence, a time-out            ──▶ librdkafka goes on

An outage of a client that runs is not looked at here: librdkafka connects again by itself.
Shell.
"""

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

from driftlog.errors import UnreachableError

_TRY_S: Final = 1.0
"""An agent that starts at the same time as its client has this long."""
_AGAIN_S: Final = 0.1
_ANSWER_S: Final = 0.5
"""Silence for longer is left to librdkafka's own time-outs."""
_PORT: Final = 9092
_CLIENT_ID: Final = b"driftlog-probe"
_TLS_ALERT: Final = b"\x15\x03"
_API_VERSIONS: Final = struct.pack(">ihhih", 10 + len(_CLIENT_ID), 18, 0, 1, len(_CLIENT_ID))
"""ApiVersions v0 up to the client id: each Kafka broker answers it, before authentication too."""


def check_bootstrap(servers: str, config: Mapping[str, Any], timeout_s: float = _TRY_S) -> None:
    """Return where a broker may answer at one of *servers*.

    Args:
        servers: librdkafka's ``bootstrap.servers``.
        config: librdkafka's configs that the user gave; ``security.protocol`` is read.
        timeout_s: how long refused connections are tried again, where it is less than a second.

    Raises:
        UnreachableError: none can answer.  The message names each address and what to do.
    """
    protocol = str(config.get("security.protocol", "plaintext")).lower()
    addresses = [_address(server) for server in servers.split(",") if server.strip()]
    deadline = time.monotonic() + min(_TRY_S, timeout_s)
    while addresses:
        troubles = []
        for host, port in addresses:
            trouble = _trouble(host, port, protocol, deadline)
            if trouble is None:
                return
            troubles.append(trouble)
        if time.monotonic() + _AGAIN_S > deadline:
            raise UnreachableError(
                f"no Kafka broker answers: {'; '.join(troubles)}. Start an agent there "
                "(`driftlog dev --dir DIR`), or name other addresses: bootstrap_servers=…, or the "
                "environment variable DRIFTLOG_BOOTSTRAP_SERVERS.",
                code=-195,
            )
        time.sleep(_AGAIN_S)


def _trouble(host: str, port: int, protocol: str, deadline: float) -> str | None:
    """Why no broker can answer at this address; None: one may."""
    shown = f"{host}:{port}"
    try:
        left_s = max(_AGAIN_S, deadline - time.monotonic())
        with socket.create_connection((host, port), timeout=left_s) as connection:
            answer = None if "ssl" in protocol else _answer(connection)
    except ConnectionRefusedError:
        return f"{shown} refuses connections"
    except socket.gaierror:
        return f"the host name {host!r} is not known"
    except (OSError, OverflowError, UnicodeError):
        return None
    if answer is None:
        return None
    if answer.startswith(b"HTTP/"):
        return f"{shown} speaks HTTP: give the port of the Kafka listener"
    if answer.startswith(_TLS_ALERT) or (not answer and _speaks_tls(host, port)):
        return f"{shown} speaks TLS: give config={{'security.protocol': 'SSL'}}"
    return None


def _answer(connection: socket.socket) -> bytes | None:
    """The first bytes of the answer to ApiVersions; empty: it hung up; None: it is silent."""
    connection.settimeout(_ANSWER_S)
    answer = b""
    try:
        connection.sendall(_API_VERSIONS + _CLIENT_ID)
        while len(answer) < 5:
            received = connection.recv(64)
            if not received:
                break
            answer += received
    except ConnectionError:
        pass
    except TimeoutError:
        return None
    return answer


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a listener that hung up on plaintext answers a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent to it and nothing is believed of it: librdkafka checks the certificate.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=_ANSWER_S) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return True
    except (OSError, ValueError):
        return False


def _address(server: str) -> tuple[str, int]:
    """Of ``[PROTOCOL://]HOST[:PORT]``, where HOST may be an IPv6 address in brackets."""
    name = server.strip().rpartition("://")[2]
    if name.startswith("["):
        host, _, rest = name[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = name.partition(":")
    return host, int(port) if port.isdecimal() else _PORT
