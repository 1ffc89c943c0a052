"""The first check of a cluster's addresses: an error in a second, where librdkafka keeps trying.

librdkafka treats a refused connection as a broker that may start yet.  For a client that starts, a
wrong address is as likely; so the client opens one connection itself, before librdkafka's.

    refused, or no such host, at every address, for a second   ──▶ UnreachableError
    the listener uses HTTP, or TLS that is not configured      ──▶ UnreachableError
    everything else: an answer, silence, a time-out            ──▶ librdkafka continues

This is not for outages later: librdkafka connects again by itself.
Shell.
"""

import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from driftlog.common.listener_probe import ForeignProtocol, foreign_protocol
from driftlog.errors import UnreachableError

_TRY_S: Final = 1.0
"""How long refused connections are repeated, for an agent that starts with its client."""
_AGAIN_S: Final = 0.1
_ANSWER_S: Final = 0.5
"""After longer silence librdkafka's own time-outs apply."""
DEFAULT_PORT: Final = 9092
"""Port of an address without one, as in librdkafka."""


def check_bootstrap(servers: str, config: Mapping[str, Any], timeout_s: float = _TRY_S) -> None:
    """Return if a broker may answer at one of *servers*.

    Args:
        servers: librdkafka's ``bootstrap.servers``.
        config: librdkafka's configs that the user gave; ``security.protocol`` is read.
        timeout_s: how long refused connections are repeated; a second at most.

    Raises:
        UnreachableError: none can answer.  The message names each address and what to do.
    """
    protocol = str(config.get("security.protocol", "plaintext")).lower()
    addresses = [server for server in servers.split(",") if server.strip()]
    deadline = time.monotonic() + min(_TRY_S, timeout_s)
    while addresses:
        troubles = []
        for address in addresses:
            trouble = _trouble(address, protocol, deadline)
            if trouble is None:
                return
            troubles.append(trouble)
        if time.monotonic() + _AGAIN_S > deadline:
            raise UnreachableError(
                f"no Kafka broker answers: {'; '.join(troubles)}. Start an agent there "
                "(`driftlog dev --dir DIR`), or name other addresses: bootstrap_servers=…, or the "
                "environment variable DRIFTLOG_BOOTSTRAP_SERVERS or DRIFTLOG_BOOTSTRAP.",
                code=-195,
            )
        time.sleep(_AGAIN_S)


def _trouble(address: str, protocol: str, deadline: float) -> str | None:
    """Why no broker can answer at this address; None: one may."""
    try:
        host, port = split_address(address)
    except ValueError as error:
        return str(error)
    shown = f"{host}:{port}"
    try:
        left_s = max(_AGAIN_S, deadline - time.monotonic())
        foreign = foreign_protocol(
            host, port, tls="ssl" in protocol, connect_s=left_s, answer_s=_ANSWER_S
        )
    except ConnectionRefusedError:
        return f"{shown} refuses connections"
    except socket.gaierror:
        return f"the host name {host!r} is not known"
    except (OSError, OverflowError, UnicodeError):
        return None
    match foreign:
        case ForeignProtocol.HTTP:
            return f"{shown} speaks HTTP: give the port of the Kafka listener"
        case ForeignProtocol.TLS:
            return f"{shown} speaks TLS: give config={{'security.protocol': 'SSL'}}"
        case ForeignProtocol.NO_TLS:
            return f"{shown} speaks no TLS: leave 'security.protocol' out of config"
        case _:  # closed: it may be a load balancer whose broker starts later
            return None


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``[NAME://]HOST[:PORT]``; HOST may be an IPv6 address in brackets.

    Raises:
        ValueError: *address* has another form.
    """
    name = address.strip().rpartition("://")[2]
    if name.startswith("["):
        host, _, rest = name[1:].partition("]")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = name.partition(":")
    is_number = colon == ":" and port.isascii() and port.isdecimal()
    if not host or (colon and not is_number):
        raise ValueError(f"{address!r} is not HOST:PORT, for example 127.0.0.1:{DEFAULT_PORT}")
    return host, int(port) if colon else DEFAULT_PORT
