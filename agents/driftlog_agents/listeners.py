"""Addresses to listen on: read, taken before anything is written, and refused with advice.

Shell.
"""

import asyncio
import errno
import socket
from contextlib import ExitStack
from typing import Final

_ANY: Final = ("0.0.0.0", "::")  # to be recognised, not to be bound

_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """An address that cannot be listened on, or given to clients; the message says what to do."""


class AddressTakenError(ListenError):
    """Somebody else listens there."""


def parse_address(text: str, option: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``NAME://HOST:PORT``; brackets around IPv6.

    Raises:
        ListenError: not such an address.
    """
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        raise ListenError(f"{option} {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
    if int(port) > 65_535:
        raise ListenError(
            f"{option} {text!r} is not HOST:PORT: the largest port is 65535; 0 is any free one"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def check_advertised(host: str, option: str) -> None:
    """Clients must be able to connect to it (Kafka refuses these as well: KafkaConfig).

    Raises:
        ListenError: it means any address.
    """
    if host in _ANY:
        raise ListenError(
            f"{option}: clients cannot connect to {host}; say with --advertised-listener "
            f"HOST:PORT by which name or address they reach this machine"
        )


async def take(host: str, port: int, option: str) -> list[socket.socket]:
    """Bind to every address of *host*; port 0: a free one.  Nobody is accepted yet.

    Raises:
        AddressTakenError: somebody listens there.
        ListenError: it cannot be for another reason.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise refused(error, host, port, option) from error
    except UnicodeError as error:  # a label that is empty, or too long for IDNA
        raise ListenError(
            f"{option} {host}:{port}: {host} is no name of a machine: is the name right?"
        ) from error
    failed: OSError | None = None
    with ExitStack() as stack:
        taken: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            where = (address[0], port, *address[2:])
            try:
                taken.append(_bound(stack, family, kind, protocol, where))
            except OSError as error:
                # A system without IPv6 may know ::1 by name: one address is enough.
                failed = error
                if error.errno not in _ABSENT:
                    raise refused(error, host, port, option) from error
            else:
                port = taken[0].getsockname()[1]
        if not taken:
            assert failed is not None
            raise refused(failed, host, port, option) from failed
        stack.pop_all()
    return taken


def _bound(
    stack: ExitStack, family: int, kind: int, protocol: int, address: tuple[object, ...]
) -> socket.socket:
    bound = stack.enter_context(socket.socket(family, kind, protocol))
    bound.setblocking(False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    bound.bind(address)
    return bound


def refused(error: OSError, host: str, port: int, option: str) -> ListenError:
    """What to say, and advise, when *error* came of listening on an address."""
    name = f"[{host}]" if ":" in host else host
    address = f"{option} {name}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            return AddressTakenError(
                f"{address} is taken: is another agent or broker there?  Stop it, or choose "
                f"another port with {option} (0 is any free one)"
            )
        case number if number in _ABSENT:
            return ListenError(
                f"{address} is no address of this machine: listen on one that it has, or on "
                f"0.0.0.0 for all, and say with --advertised-listener what clients connect to"
            )
        case errno.EACCES | errno.EPERM:
            return ListenError(
                f"{address} may not be listened on: ports below 1024 are root's; choose a higher "
                f"one"
            )
        case _ if isinstance(error, socket.gaierror):
            return ListenError(
                f"{address}: {host} is not known ({error.strerror}): is the name right?"
            )
        case _:
            return ListenError(
                f"{address}: {error.strerror or error}.  Choose another with {option}"
            )
