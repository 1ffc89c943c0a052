"""A Kafka cluster, as commands reach it: where it is, and what its errors mean to a person.

Shell.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ClusterMetadata,
    OffsetSpec,
    TopicMetadata,
)

from driftlog.cli.errors import CommandError, UsageError, similar
from driftlog.cli.parsers import Parser, key_value

BOOTSTRAP_VARIABLE: Final = "DRIFTLOG_BOOTSTRAP"
_BOOTSTRAP: Final = "127.0.0.1:9092"
_CONNECT_TIMEOUT_S: Final = 5
TIMEOUT_S: Final = 30.0
WHICH_ADDRESS: Final = (
    "Give --bootstrap-server the bootstrap address that the agent prints when it is ready"
)

EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

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


@dataclass(frozen=True, slots=True)
class Offset:
    """An answer of ListOffsets; -1: there is no such record."""

    offset: int
    timestamp_ms: int


class Cluster:
    """The cluster that the options of a command name.

    Raises:
        CommandError: nobody answers there.
        UsageError: a property is wrong.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.timeout: float = options.timeout
        self.bootstrap = str(properties(options)["bootstrap.servers"])
        connect(self.bootstrap)
        self.admin: Any = new_client(AdminClient, properties(options))

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        """Brokers and topics.

        Raises:
            CommandError: no broker answers.
        """
        asked = () if topic is None else (topic,)
        try:
            metadata: ClusterMetadata = self.admin.list_topics(*asked, timeout=self.timeout)
        except KafkaException as error:
            raise CommandError(
                f"{self.bootstrap} does not answer as a Kafka broker does ({reason(error)}).  "
                f"{WHICH_ADDRESS}"
            ) from error
        return metadata

    def topics(
        self, names: Sequence[str], metadata: ClusterMetadata | None = None
    ) -> dict[str, TopicMetadata]:
        """These topics, or all where none is named.

        Raises:
            CommandError: one is not there; with those that are called like it.
        """
        there = (metadata or self.metadata()).topics
        if not names:
            return {name: there[name] for name in sorted(there)}
        for name in names:
            if name not in there:
                raise unknown_topic(name, there)
        return {name: there[name] for name in names}

    def offsets(
        self, wanted: Mapping[tuple[str, int], Any], isolation: Any = None
    ) -> dict[tuple[str, int], Offset | CommandError]:
        """Where in their logs the specs are."""
        if not wanted:
            return {}
        more = {} if isolation is None else {"isolation_level": isolation}
        asked = self.admin.list_offsets(
            {TopicPartition(*at): spec for at, spec in wanted.items()},
            request_timeout=self.timeout,
            **more,
        )
        found: dict[tuple[str, int], Offset | CommandError] = {}
        for tp, future in asked.items():
            at = (tp.topic, tp.partition)
            try:
                answer = result_of(future, f"{tp.topic}-{tp.partition}")
                found[at] = Offset(answer.offset, answer.timestamp)
            except CommandError as error:
                found[at] = error
        return found

    def partitions(self, named: Iterable[tuple[str, list[int] | None]]) -> list[tuple[str, int]]:
        """Topics, and partitions of each (None: all), as pairs; each once.

        Raises:
            CommandError: one is not there.
        """
        wanted = list(named)
        topics = self.topics(list(dict.fromkeys(name for name, _ in wanted))) if wanted else {}
        found: dict[tuple[str, int], None] = {}
        for name, which in wanted:
            there = sorted(topics[name].partitions)
            for partition in there if which is None else which:
                if partition not in there:
                    raise CommandError(
                        f"{name} has no partition {partition}: it has 0 to {len(there) - 1}"
                    )
                found[name, partition] = None
        return list(found)

    def known_offsets(
        self, wanted: Mapping[tuple[str, int], Any], isolation: Any = None
    ) -> dict[tuple[str, int], int]:
        """As `offsets`, of all or none.

        Raises:
            CommandError: one cannot be told.
        """
        found = {}
        for at, answer in self.offsets(wanted, isolation).items():
            if isinstance(answer, CommandError):
                raise answer
            found[at] = answer.offset
        return found


def any_broker(cluster: Cluster) -> str:
    """The address of one that is there."""
    brokers = cluster.metadata().brokers
    return address_of(brokers[min(brokers)])


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


def unknown_topic(name: str, there: Iterable[str]) -> CommandError:
    """There is no such topic."""
    near = similar(name, there)
    return CommandError(
        f"there is no topic {name!r}{near or ': driftlog topics list shows what is'}"
    )


def close_on_sigterm() -> None:
    """SIGTERM unwinds as Ctrl-C does, so that a producer flushes and a member leaves its group."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
