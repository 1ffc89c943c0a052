"""How commands reach a Kafka cluster: its address, librdkafka's properties, and errors in words.

Shell.
"""

import argparse
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from driftlog.cli.common.errors import FAILED, UNKNOWN, CommandError, UsageError
from driftlog.cli.common.parsers import Parser, key_value
from driftlog.common import connection
from driftlog.common.bootstrap_probe import DEFAULT_PORT, split_address
from driftlog.common.listener_probe import ForeignProtocol, foreign_protocol
from driftlog.errors import outcome_unknown

_CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_S: Final = 30.0
"""How long each answer may take without --timeout."""
_LEAST_S: Final = 0.1
_FIRST_ANSWER_S: Final = 2.0
"""After a silence of this long librdkafka takes over: the broker may be busy."""

WHICH_ADDRESS: Final = (
    "Give --bootstrap-server the bootstrap address that the agent prints when it is ready"
)
_NO_TLS: Final = (
    "speaks no TLS: leave -X security.protocol=SSL out, or give the address of a TLS listener"
)

_T = TypeVar("_T")


class Timeout:
    """Limit of a command's waits for answers: --timeout in all, or a default for each answer."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds

    def left(self, each_s: float = ANSWER_S) -> float:
        """Seconds for the next answer; *each_s* without --timeout."""
        if self._until is None:
            return each_s
        return max(_LEAST_S, self._until - time.monotonic())


def add_connection_options(
    parser: Parser,
    *,
    timeout_help: str = f"time limit of the command for all answers (default: {ANSWER_S:g} for "
    "each answer)",
) -> None:
    """Add the options of every command that connects to a cluster."""
    group = parser.add_argument_group("connection")
    add_bootstrap_option(group)
    group.add_argument(
        "-X",
        dest="properties",
        action="append",
        type=key_value,
        metavar="NAME=VALUE",
        help="set a property of librdkafka, such as security.protocol=SSL; may be repeated",
    )
    group.add_argument(
        "-F",
        "--command-config",
        type=Path,
        metavar="FILE",
        help="read such properties from FILE, one NAME=VALUE a line",
    )
    group.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", default=Timeout(), help=timeout_help
    )


def add_bootstrap_option(parser: Any) -> None:
    """Add the option for the cluster's address; the whole command has it, too."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        default=argparse.SUPPRESS,
        metavar="HOST[:PORT][,…]",
        help="address of any agents or brokers of the cluster, by default with port "
        f"{DEFAULT_PORT} (default: the variable {connection.VARIABLE} or "
        f"{connection.SHORT_VARIABLE}, or {connection.DEFAULT_BOOTSTRAP})",
    )


def _seconds(text: str) -> Timeout:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return Timeout(seconds)


def bootstrap(options: argparse.Namespace) -> str:
    """The address of the cluster, by option, variable or default."""
    return connection.bootstrap(getattr(options, "bootstrap_server", None) or None)


def properties(options: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """librdkafka's properties; `_` in *defaults* stands for a dot, and the user's values win.

    Raises:
        UsageError: the file of properties cannot be read.
    """
    found: dict[str, Any] = {
        "bootstrap.servers": bootstrap(options),
        "client.id": "driftlog",
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in defaults.items()},
    }
    if options.command_config is not None:
        found |= _read_properties(options.command_config)
    for name, value in options.properties or []:
        found[name.removeprefix("topic.")] = value  # kcat's name for a topic's property
    return found


def _read_properties(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                name, value = key_value(text)
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"{file}, line {number}: {error}") from error
            found[name.removeprefix("topic.")] = value.strip()
    return found


def connect(options: argparse.Namespace) -> None:
    """Check that one of the addresses has a Kafka listener: librdkafka would retry for long.

    Raises:
        CommandError: no address has one; the message says what each has.
        UsageError: the file of properties cannot be read.
    """
    found = properties(options)
    tls = "ssl" in str(found.get("security.protocol", "")).lower()
    errors: list[str] = []
    for address in str(found["bootstrap.servers"]).split(","):
        try:
            host, port = split_address(address)
        except ValueError as error:
            errors.append(f"{error}.  {WHICH_ADDRESS}")
            continue
        try:
            timeout_s = min(_CONNECT_TIMEOUT_S, options.timeout.left())
            foreign = foreign_protocol(
                host, port, tls=tls, connect_s=timeout_s, answer_s=_FIRST_ANSWER_S
            )
        except (OSError, OverflowError, UnicodeError) as error:  # the last: of IDNA
            reason = getattr(error, "strerror", None) or error
            errors.append(
                f"nothing listens at {join_address(host, port)}: {reason}.  "
                f"`driftlog dev --dir DIR` starts an agent.  {WHICH_ADDRESS}"
            )
        else:
            if foreign is None:
                return
            errors.append(f"{address} {_advice(foreign, tls=tls)}")
    raise CommandError("  ".join(dict.fromkeys(errors)))


def _advice(foreign: ForeignProtocol, *, tls: bool) -> str:
    """The listener's protocol and advice, as the end of a sentence."""
    match foreign:
        case ForeignProtocol.HTTP:
            return f"speaks HTTP and not Kafka: it may be the agent's HTTP port.  {WHICH_ADDRESS}"
        case ForeignProtocol.TLS:
            return "speaks TLS: give -X security.protocol=SSL, or SASL_SSL"
        case ForeignProtocol.NO_TLS:
            return _NO_TLS
        case ForeignProtocol.CLOSED if tls:
            return _NO_TLS
        case ForeignProtocol.CLOSED:
            return (
                "closes the connection at a Kafka request: it is no Kafka listener.  "
                f"{WHICH_ADDRESS}"
            )


def join_address(host: str, port: int) -> str:
    """``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(node: Any) -> str:
    """The address of a broker in metadata."""
    return join_address(node.host, node.port)


def result_of(future: "Future[_T]", what: str = "") -> _T:
    """The future's result.

    Raises:
        CommandError: it failed; *what* names the request.
    """
    try:
        return future.result()
    except KafkaException as error:
        raise CommandError(f"{what}: {reason(error)}" if what else reason(error)) from error


def write_failure(error: KafkaException | KafkaError, done: str) -> tuple[str, int]:
    """The message for a write that failed, and the exit status.

    If the answer was lost, the message says that it may have been *done*, such as ``created``.
    """
    inner = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(inner, KafkaError) and outcome_unknown(inner.code()):
        return f"unknown: may have been {done}: {reason(error)}", UNKNOWN
    return f"not {done}: {reason(error)}", FAILED


def reason(error: KafkaException | KafkaError) -> str:
    """Kafka's error message."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(inner, KafkaError):
        return str(inner)
    text = inner.str()
    return text if text.startswith(inner.name()) else f"{text} ({inner.name()})"


def new_client(kind: Any, settings: dict[str, Any]) -> Any:
    """A client of confluent-kafka.

    Raises:
        UsageError: a property is unknown or wrong.
    """
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        text = reason(error) if isinstance(error, KafkaException) else str(error)
        raise UsageError(f"-X: {text}") from error


def close_on_sigterm() -> None:
    """SIGTERM unwinds as Ctrl-C does, so that a producer flushes and a member leaves its group."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
