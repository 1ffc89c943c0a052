"""Listeners: addresses are parsed, bound before the agent writes, and refused with advice.

    --listener INTERNAL://0.0.0.0:9092            --listener EXTERNAL://0.0.0.0:19092
    --advertised-listener INTERNAL://a.lan:9092   --advertised-listener EXTERNAL://a.example.com:443

A client receives, for every agent, the address of the listener that it connected to.  Agents find
that listener by its name: agents of one cluster use the same names (Kafka's ``listeners`` and
``advertised.listeners``).  There is no TLS and no SASL yet: every listener is plaintext, and names
that mean TLS or SASL in Kafka are refused.

Shell.
"""

import asyncio
import errno
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from driftlog_metadata.schema.model import Listener

PLAINTEXT: Final = "PLAINTEXT"
"""The name of a listener that is given without one."""

_SECURE: Final = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
"""Names that are a protocol in Kafka, unless ``listener.security.protocol.map`` changes that."""

_NAME: Final = re.compile(r"[A-Z0-9_.-]{1,100}")

OPTION: Final = "--listener"
_ADVERTISED: Final = "--advertised-listener"

_ANY: Final = ("0.0.0.0", "::")  # compared, not bound

_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """The agent cannot listen on an address, or clients cannot use it; the message has advice."""


class AddressTakenError(ListenError):
    """Another process listens there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAt:
    """A listener of an agent: where it listens, and the address that clients receive."""

    name: str = PLAINTEXT
    host: str = "127.0.0.1"
    port: int = 9092
    """0: any free port."""
    advertised_host: str = ""
    """Empty: *host*."""
    advertised_port: int = 0
    """0: the port that is bound."""

    def advertised(self, port: int) -> Listener:
        """The address that clients receive; *port* is bound."""
        return Listener(self.name, self.advertised_host or self.host, self.advertised_port or port)


def read_listeners(listening: Sequence[str], advertised: Sequence[str]) -> tuple[ListenAt, ...]:
    """The listeners of ``--listener`` and ``--advertised-listener``, each given any number of
    times as ``[NAME://]HOST:PORT``; a listener without the second advertises its own address.

    Raises:
        ListenError: an address is invalid; a name is missing, repeated or only advertised; or
            clients cannot connect to an address.
    """
    found: dict[str, ListenAt] = {}
    for text in listening:
        name, host, port = _parse_named(text, OPTION, PLAINTEXT)
        if name in found:
            raise ListenError(
                f"{OPTION} {text!r}: listener {name} exists already: give each listener a "
                f"name of its own, for example {OPTION} EXTERNAL://{host}:{port}"
            )
        if port and any(port == other.port for other in found.values()):
            raise ListenError(
                f"{OPTION} {text!r}: another listener has port {port}: give each listener "
                "a port of its own"
            )
        found[name] = ListenAt(name=name, host=host, port=port)
    told: dict[str, tuple[str, int]] = {}
    unnamed = next(iter(found)) if len(found) == 1 else PLAINTEXT
    for text in advertised:
        name, host, port = _parse_named(text, _ADVERTISED, unnamed)
        if name not in found:
            raise ListenError(
                f"{_ADVERTISED} {text!r}: listener {name} does not exist: add {OPTION} "
                f"{name}://HOST:PORT, or name an existing one ({', '.join(found)})"
            )
        if name in told:
            raise ListenError(
                f"{_ADVERTISED} {text!r}: {name} is advertised twice: give each name once"
            )
        told[name] = host, port
        check_advertised(host, _ADVERTISED)
    for name, at in found.items():
        if name not in told:
            check_advertised(at.host, OPTION, "" if len(found) == 1 else f"{name}://")
    return tuple(
        ListenAt(
            name=name,
            host=at.host,
            port=at.port,
            advertised_host=told.get(name, ("", 0))[0],
            advertised_port=told.get(name, ("", 0))[1],
        )
        for name, at in found.items()
    )


def _parse_named(text: str, option: str, unnamed: str) -> tuple[str, str, int]:
    name, named, rest = text.rpartition("://")
    if "," in text:
        raise ListenError(f"{option} {text!r} is several: give {option} once for each")
    host, port = parse_address(text, option)
    if not named:
        return unnamed, host, port
    name = name.upper()  # as Kafka does (ListenerName#normalised)
    if not _NAME.fullmatch(name):
        raise ListenError(
            f"{option} {text!r}: {name!r} is not a valid listener name: letters, digits, '_', '-' "
            f"and '.', for example EXTERNAL://{rest}"
        )
    if name in _SECURE:
        raise ListenError(
            f"{option} {text!r}: there is no TLS and no SASL yet, every listener is plaintext: "
            f"give it another name, for example EXTERNAL://{rest}"
        )
    return name, host, port


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``NAME://HOST:PORT``; brackets around IPv6.

    Raises:
        ListenError: *text* is no such address.
    """
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        raise ListenError(f"{option} {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
    if int(port) > 65_535:
        raise ListenError(
            f"{option} {text!r} is not HOST:PORT: the largest port is 65535; 0 is any free one"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def check_advertised(host: str, option: str, name: str = "") -> None:
    """Check that clients can connect to *host* (Kafka refuses the same: KafkaConfig).

    Raises:
        ListenError: *host* means any address.
    """
    if host in _ANY:
        raise ListenError(
            f"{option}: clients cannot connect to {host}; say with {_ADVERTISED} {name}"
            f"HOST:PORT by which name or address they reach this machine"
        )


def http_address(host: str, port: int, listeners: Sequence[ListenAt]) -> str:
    """The ``HOST:PORT`` by which clients reach an HTTP port that is bound to *host*: where that
    means any address, the host that clients of the first of *listeners* receive."""
    reached = listeners[0].advertised(0).host if host in _ANY else host
    return f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"


async def take(host: str, port: int, option: str) -> list[socket.socket]:
    """Bind to every address of *host*; port 0: a free one.  No connection is accepted yet.

    Raises:
        AddressTakenError: another process listens there.
        ListenError: binding fails for another reason.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise refused(error, host, port, option) from error
    except UnicodeError as error:  # an empty label, or one that is too long for IDNA
        raise ListenError(
            f"{option} {host}:{port}: {host} is not a valid host name: check the name"
        ) from error
    failed: OSError | None = None
    with ExitStack() as stack:
        taken: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            where = (address[0], port, *address[2:])
            try:
                taken.append(_bound(stack, family, kind, protocol, where))
            except OSError as error:
                # A system without IPv6 may resolve a name to ::1: one bound address is enough.
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


async def take_all(listeners: Iterable[ListenAt]) -> list[list[socket.socket]]:
    """Bind every listener, or none; returns the sockets of each.

    Raises:
        AddressTakenError, ListenError: as `take`.
    """
    with ExitStack() as stack:
        taken = []
        for at in listeners:
            taken.append(await take(at.host, at.port, OPTION))
            for bound in taken[-1]:
                stack.callback(bound.close)
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
    """The error, with advice, when listening on an address fails with *error*."""
    name = f"[{host}]" if ":" in host else host
    address = f"{option} {name}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            return AddressTakenError(
                f"{address} is in use: stop the agent or broker that uses it, or choose "
                f"another port with {option} (0 is any free one)"
            )
        case number if number in _ABSENT:
            return ListenError(
                f"{address} is no address of this machine: listen on one that it has, or on "
                f"0.0.0.0 for all, and say with --advertised-listener what clients connect to"
            )
        case errno.EACCES | errno.EPERM:
            return ListenError(
                f"the agent may not listen on {address}: ports below 1024 need root; "
                "choose a higher one"
            )
        case _ if isinstance(error, socket.gaierror):
            return ListenError(f"{address}: {host} is not known ({error.strerror}): check the name")
        case _:
            return ListenError(
                f"{address}: {error.strerror or error}.  Choose another with {option}"
            )
