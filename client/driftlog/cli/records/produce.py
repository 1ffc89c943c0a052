"""`driftlog produce`: lines, files or JSON become records, and each is accounted for.

    read ──▶ cut at -D ──▶ cut at -K ──▶ librdkafka ──▶ acknowledged
                                              └───────▶ failed: said with its line, exit code 1

Shell.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.cluster_client import Cluster
from driftlog.cli.common.connection import (
    TIMEOUT_S,
    add_connection_options,
    close_on_sigterm,
    new_client,
    properties,
    reason,
)
from driftlog.cli.common.errors import FAILED, INTERRUPTED, OK, CommandError, UsageError, similar
from driftlog.cli.common.output import Progress, complain, plural, size
from driftlog.cli.common.parsers import Commands, add_command, key_value, positive
from driftlog.cli.records.console_properties import LineReading, console_reading
from driftlog.cli.records.formats import NewRecord, from_json, unescape
from driftlog.cli.records.lines import MAX_RECORD_BYTES, TooLongError, split
from driftlog.errors import outcome_unknown

_SAID_FAILURES: Final = 10
"""Failures that are told one by one; the others are counted."""

_DELIVERY_S: Final = 120.0
"""Kafka's own (`delivery.timeout.ms`): an outage of a minute costs nothing."""

_LEAST_DELIVERY_S: Final = 1.0
"""Where the first answers took all of --timeout."""

_POLL_RECORDS: Final = 100
"""Deliveries are counted after so many, and while there is nothing to read."""

_QUEUE_KBYTES: Final = 256 << 10
_BATCH_BYTES: Final = 1_000_000
_BROKER_DECIDES_BYTES: Final = 100_000_000


def add_commands(commands: Commands) -> None:
    """The command of this file."""
    parser = add_command(
        commands,
        "produce",
        _produce,
        help="write records from standard input or files",
        description="Write records: each line of standard input is one, or each FILE as a whole "
        "(its lines with -l).  Ends when all are acknowledged; fails when one is not, and says "
        "which.  Empty lines are left out, as kcat does.",
        examples="  echo hello | driftlog produce greetings\n"
        "  driftlog produce flights -l flights.ndjson -z zstd\n"
        "  printf 'k1:v1\\nk2:\\n' | driftlog produce flights -K: -Z -H source=shell\n"
        '  echo \'{"key": "k", "value": {"n": 1}}\' | driftlog produce flights --json\n',
    )
    parser.add_argument(
        "words", nargs="*", metavar="TOPIC [FILE]", help="where to, and what; default: stdin"
    )
    parser.add_argument("-t", "--topic", metavar="TOPIC", help="the same as TOPIC without it")
    record = parser.add_argument_group("records")
    record.add_argument(
        "-D", "--delimiter", type=_delimiter, default=b"\n", metavar="DELIM", help="default: \\n"
    )
    record.add_argument(
        "-K",
        "--key-delimiter",
        type=_delimiter,
        metavar="DELIM",
        help="what stands in front of the first one is the key",
    )
    record.add_argument("-k", "--key", metavar="KEY", help="of all records that have none")
    record.add_argument(
        "-H",
        "--header",
        action="append",
        type=_header,
        metavar="NAME=VALUE",
        help="a header of all records; NAME alone: a null one; may be repeated",
    )
    record.add_argument("-p", "--partition", type=int, default=-1, help="default: by the key")
    record.add_argument(
        "-Z", "--null", action="store_true", help="empty values and keys are null (with -K)"
    )
    record.add_argument(
        "-l", "--lines", action="store_true", help="records are the lines of FILE, as of stdin"
    )
    record.add_argument(
        "--json",
        action="store_true",
        help='each line is {"key": …, "value": …, "headers": {…}, "partition": N, '
        '"timestamp": MS}, or what `consume -J` prints',
    )
    record.add_argument(
        "--property",
        "--reader-property",
        dest="reader_properties",
        action="append",
        type=key_value,
        metavar="NAME=VALUE",
        help="as Kafka's console producer has it: parse.key=true, key.separator=:, null.marker=…",
    )
    record.add_argument("-c", "--count", type=positive, metavar="N", help="stop after so many")
    how = parser.add_argument_group("how")
    how.add_argument(
        "-z",
        "--compression",
        choices=["none", "gzip", "snappy", "lz4", "zstd"],
        default="none",
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd",
    )
    how.add_argument(
        "-a",
        "--acks",
        choices=["all", "-1", "1", "0"],
        default="all",
        help="who must have it before it counts (default: all, without duplicates)",
    )
    how.add_argument("-T", "--tee", action="store_true", help="print what is sent")
    how.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    add_connection_options(
        parser,
        timeout_help="how long records may wait until they are acknowledged (default: "
        f"{_DELIVERY_S:g}), and any other answer (default: {TIMEOUT_S:g})",
    )


def _delimiter(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("it must not be empty")
    return unescape(text)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value.encode(errors="surrogateescape") if equals else None


def _produce(options: argparse.Namespace) -> int:
    words = list(options.words)
    topic = options.topic or (words.pop(0) if words else None)
    if topic is None:
        raise UsageError("which topic?  `driftlog produce TOPIC`")
    files = [Path(word) for word in words]
    if options.json and (options.key_delimiter or options.null):
        raise UsageError("--json has keys and nulls of its own: leave -K and -Z out")
    _console_reading(options)
    for file in files:
        if not os.access(file, os.R_OK):
            raise CommandError(
                f"{file}: {'it may not be read' if file.exists() else 'no such file'}"
            )
    began, wait_s = time.monotonic(), options.timeout
    options.timeout = wait_s or TIMEOUT_S
    cluster = Cluster(options)
    batch_bytes = _batch_bytes(cluster, topic)
    if wait_s is not None:  # all in all, not for each answer
        wait_s = max(_LEAST_DELIVERY_S, wait_s - (time.monotonic() - began))
    writer = _Writer(options, topic, batch_bytes, wait_s or _DELIVERY_S)
    close_on_sigterm()
    status = OK
    try:
        for where, record in _records(options, files, writer.poll):
            writer.write(where, record)
            if writer.taken == options.count:
                break
    except KeyboardInterrupt:
        status = INTERRUPTED
    except TooLongError:
        complain(f"no delimiter in {size(MAX_RECORD_BYTES)}: is -D right?")
        status = FAILED
    except _UnreadableError as error:
        complain(str(error))
        status = FAILED
    finally:
        interrupted = not writer.finish()
    if writer.unknown_topic:
        near = similar(topic, cluster.metadata().topics)
        complain(
            f"there is no topic {topic!r}{near or f': driftlog topics create {topic} makes it'}"
        )
    if not options.quiet:
        _summarize(writer, topic, files, options)
    if interrupted:
        return INTERRUPTED
    return status or (FAILED if writer.failed or writer.unknown else OK)


def _batch_bytes(cluster: Cluster, topic: str) -> int:
    """No batch is larger than the topic takes: a record that is, is refused alone."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked = cluster.admin.describe_configs([resource], request_timeout=cluster.timeout)
    try:
        config = asked[resource].result()["max.message.bytes"]
    except (KafkaException, KeyError):  # it is made when the first record comes, or is hidden
        return _BATCH_BYTES
    return min(_BATCH_BYTES, max(1, int(config.value)))


def _summarize(
    writer: "_Writer", topic: str, files: list[Path], options: argparse.Namespace
) -> None:
    how = "sent" if options.acks == "0" else "written"
    text = f"{plural(writer.written, 'record')} {how} to {topic} ({size(writer.written_bytes)})"
    if writer.failed:
        text += f", {writer.failed:,} failed"
    if writer.unknown:
        text += f", of {writer.unknown:,} it is not known: look before they are sent again"
    if files and not options.lines and not options.json:
        text += "; a file is a record, unless -l says that its lines are"
    complain(text)


# ── Reading ──


class _UnreadableError(Exception):
    """Input that is no record."""


def _records(
    options: argparse.Namespace, files: list[Path], idle: Callable[[], None]
) -> Iterator[tuple[str, NewRecord]]:
    """Each record, and where it is from.

    Raises:
        TooLongError: a record has no end.
        _UnreadableError: it cannot be read; says which.
    """
    key = None if options.key is None else options.key.encode(errors="surrogateescape")
    if files and not (options.lines or options.json):
        for file in files:
            body = file.read_bytes()
            if body:
                yield str(file), NewRecord(key, body)
        return
    if not files:
        yield from _lines(options, sys.stdin.fileno(), "", key, idle)
    for file in files:
        with file.open("rb") as opened:
            yield from _lines(options, opened.fileno(), f"{file}, ", key, idle)


def _lines(
    options: argparse.Namespace, fd: int, of: str, key: bytes | None, idle: Callable[[], None]
) -> Iterator[tuple[str, NewRecord]]:
    console = _console_reading(options)
    for number, line in enumerate(split(fd, options.delimiter, idle), 1):
        where = f"{of}line {number}"
        if console is not None:
            yield where, _parse_as_console(where, line, console)
        elif line:
            yield where, _parse(options, where, line, key)


def _console_reading(options: argparse.Namespace) -> LineReading | None:
    """What --property asks for.

    Raises:
        UsageError: what there is not, or beside what says otherwise.
    """
    if not options.reader_properties:
        return None
    if options.json or options.key_delimiter or options.null:
        raise UsageError("--property with --json, -K or -Z: which?")
    try:
        return console_reading(dict(options.reader_properties))
    except ValueError as error:
        raise UsageError(f"--property: {error}") from error


def _parse_as_console(where: str, line: bytes, reading: LineReading) -> NewRecord:
    key: bytes | None = None
    value = line
    if reading.key_separator is not None:
        key, found, value = line.partition(reading.key_separator)
        if not found:
            raise _UnreadableError(f"{where}: there is no {reading.key_separator!r} behind a key")
    return NewRecord(None if key == reading.null else key, None if value == reading.null else value)


def _parse(
    options: argparse.Namespace, where: str, line: bytes, fixed_key: bytes | None
) -> NewRecord:
    if options.json:
        try:
            return from_json(line)
        except ValueError as error:
            raise _UnreadableError(f"{where}: {error}") from error
    if options.key_delimiter is None:
        return NewRecord(fixed_key, line)
    key, found, value = line.partition(options.key_delimiter)
    if not found:
        return NewRecord(fixed_key, line)
    if options.null:
        return NewRecord(key or fixed_key, value or None)
    return NewRecord(key, value)


# ── Writing ──


class _Writer:
    """A producer that counts what became of each record."""

    def __init__(
        self, options: argparse.Namespace, topic: str, batch_bytes: int, delivery_s: float
    ) -> None:
        self.taken = 0
        self.written = 0
        self.written_bytes = 0
        self.failed = 0
        self.unknown = 0
        self.unknown_topic = False
        self._complaints = 0
        self._options = options
        self._topic = topic
        self._headers = options.header or []
        self._progress = Progress(quiet=options.quiet)
        settings = properties(
            options,
            acks=options.acks,
            enable_idempotence=options.acks in ("all", "-1"),
            compression_type=options.compression,
            linger_ms=20,
            # One request of a partition is in flight: small records fill a batch as well.
            batch_num_messages=100_000,
            batch_size=batch_bytes,
            queue_buffering_max_kbytes=_QUEUE_KBYTES,
            queue_buffering_max_messages=1_000_000,
            # The broker says what is too large: its topics differ.
            message_max_bytes=_BROKER_DECIDES_BYTES,
            message_timeout_ms=round(delivery_s * 1000),
            # A topic is told of when all agents know it.  librdkafka would wait for 30 s.
            topic_metadata_propagation_max_ms=5_000,
        )
        self._producer = new_client(Producer, settings)

    def poll(self) -> None:
        """Let deliveries be counted."""
        self._producer.poll(0)
        self._show()

    def write(self, where: str, record: NewRecord) -> None:
        """Hand it to the producer, when there is room."""
        self.taken += 1
        headers = [*self._headers, *record.headers]
        partition = self._options.partition if record.partition is None else record.partition
        more: dict[str, Any] = {"headers": headers} if headers else {}
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        delivered = partial(self._delivered, where)
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=delivered,
                    **more,
                )
            except BufferError:
                self._producer.poll(0.1)
                self._show()
            except (KafkaException, ValueError, TypeError, OverflowError) as error:
                self._fail(
                    where, reason(error) if isinstance(error, KafkaException) else str(error)
                )
                break
            else:
                break
        if self._options.tee:
            sys.stdout.buffer.write((record.value or b"") + self._options.delimiter)
        if self.taken % _POLL_RECORDS == 0:
            self.poll()

    def finish(self) -> bool:
        """Wait until all are acknowledged or failed; a second Ctrl-C ends that."""
        try:
            while self._producer.flush(0.2):
                self._show()
        except KeyboardInterrupt:
            self.unknown += len(self._producer)
            return False
        else:
            return True
        finally:
            self._progress.clear()
            if self._complaints > _SAID_FAILURES:
                complain(f"and {self._complaints - _SAID_FAILURES:,} more")

    def _delivered(self, where: str, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.written += 1
            self.written_bytes += len(message.value() or b"") + len(message.key() or b"")
            return
        if error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
            self.unknown_topic = True
        if outcome_unknown(error.code()):
            self.unknown += 1
            self._complain(where, f"not acknowledged, and may be written: {reason(error)}")
        elif error.code() == KafkaError._UNKNOWN_PARTITION:
            self._fail(where, f"{self._topic} has no partition {message.partition()}")
        else:
            self._fail(where, reason(error))

    def _fail(self, where: str, why: str) -> None:
        self.failed += 1
        self._complain(where, f"not written: {why}")

    def _complain(self, where: str, what: str) -> None:
        self._complaints += 1
        if self._complaints <= _SAID_FAILURES:
            self._progress.clear()
            complain(f"{where}: {what}")

    def _show(self) -> None:
        if self._progress.due():
            rate = self.written_bytes / self._progress.seconds
            self._progress.show(
                f"{plural(self.written, 'record')} written, {len(self._producer):,} on the way, "
                f"{size(self.written_bytes)}, {size(rate)}/s"
            )
