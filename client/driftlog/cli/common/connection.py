"""A Kafka cluster, as commands reach it: where it is, and what its errors mean to a person.

Shell.
"""

import argparse
import os
import signal
import socket
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from driftlog.cli.common.errors import CommandError, UsageError
from driftlog.cli.common.parsers import Parser, key_value

BOOTSTRAP_VARIABLE: Final = "DRIFTLOG_BOOTSTRAP"
_BOOTSTRAP: Final = "127.0.0.1:9092"
_CONNECT_TIMEOUT_S: Final = 5
TIMEOUT_S: Final = 30.0
WHICH_ADDRESS: Final = (
    "Give --bootstrap-server the bootstrap address that the agent prints when it is ready"
)

_T = TypeVar("_T")


def add_connection_options(parser: Parser, *, timeout_help: str = "") -> None:
    """What every command takes that speaks to a cluster.

    *timeout_help*: of a command that tells whether --timeout is given: None where it is not.
    """
    group = parser.add_argument_group("connection")
    add_bootstrap_option(group)
    group.add_argument(
        "-X",
        dest="properties",
        action="append",
        type=key_value,
        metavar="NAME=VALUE",
        help="a property of librdkafka, such as security.protocol=SSL; may be repeated",
    )
    group.add_argument(
        "-F",
        "--command-config",
        type=Path,
        metavar="FILE",
        help="a file of such properties, one NAME=VALUE a line",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        default=None if timeout_help else TIMEOUT_S,
        help=timeout_help or "how long an answer may take (default: %(default)g)",
    )


def add_bootstrap_option(parser: Any) -> None:
    """Where the cluster is; on the whole command, too."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        default=argparse.SUPPRESS,
        metavar="HOST:PORT[,…]",
        help=f"any agents or brokers of the cluster (default: the variable {BOOTSTRAP_VARIABLE}, "
        f"or {_BOOTSTRAP})",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def bootstrap(options: argparse.Namespace) -> str:
    """Where the cluster is, by option, variable or default."""
    given = getattr(options, "bootstrap_server", None)
    return str(given or os.environ.get(BOOTSTRAP_VARIABLE) or _BOOTSTRAP)


def properties(options: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """librdkafka's, where `_` in *defaults* stands for a dot; what the user sets wins.

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


def connect(bootstrap: str) -> None:
    """Find out whether anybody is there: Kafka's clients wait, for it may come yet.

    Raises:
        CommandError: nobody is.
    """
    errors: list[str] = []
    for address in bootstrap.split(","):
        host, port = split_address(address)
        if not port.isdecimal() or not host:
            errors.append(f"{address!r} is not HOST:PORT, for example 127.0.0.1:9092.")
            continue
        try:
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:  # the last: of IDNA
            reason = getattr(error, "strerror", None) or error
            errors.append(
                f"nobody answers at {address}: {reason}.  Does the agent run?  "
                f"`driftlog dev --dir DIR` starts one."
            )
        else:
            return
    raise CommandError(f"{'; '.join(errors)}  {WHICH_ADDRESS}")


def split_address(address: str) -> tuple[str, str]:
    """Host and port of ``[NAME://]HOST[:PORT]``; the port is Kafka's where there is none."""
    host, colon, port = address.rpartition("://")[2].strip().rpartition(":")
    return host.strip("[]") if colon else "", port


def join_address(host: str, port: int) -> str:
    """HOST:PORT, as others take it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(node: Any) -> str:
    """A broker's, as metadata has it."""
    return join_address(node.host, node.port)


def result_of(future: "Future[_T]", what: str = "") -> _T:
    """The future's result.

    Raises:
        CommandError: it failed; *what* says what of.
    """
    try:
        return future.result()
    except KafkaException as error:
        raise CommandError(f"{what}: {reason(error)}" if what else reason(error)) from error


def reason(error: KafkaException | KafkaError) -> str:
    """What Kafka says, in its words."""
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
