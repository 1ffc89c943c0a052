"""`driftlog produce`: produces lines, files or JSON as records, and reports each that fails.

Shell.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.errors import FAILED, INTERRUPTED, OK, UNKNOWN, CommandError, UsageError
from driftlog.cli.common.output import complain, plural, size
from driftlog.cli.common.parsers import Commands, add_command, key_value, positive
from driftlog.cli.common.topic_names import topic_name_problem
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import ANSWER_S, add_connection_options, close_on_sigterm
from driftlog.cli.records.formats import unescape
from driftlog.cli.records.lines import MAX_RECORD_BYTES, TooLongError
from driftlog.cli.records.record_input import BadLineError, RecordInput, console_lines
from driftlog.cli.records.record_writer import RecordWriter
from driftlog.common.similar_names import similar

_DELIVERY_S: Final = 120.0
"""Kafka's default (`delivery.timeout.ms`): no record fails in an outage of a minute."""

_LEAST_DELIVERY_S: Final = 1.0
"""The limit if the first answers took all of --timeout."""

_BATCH_BYTES: Final = 1_000_000


def add_commands(commands: Commands) -> None:
    """Add the command of this file."""
    parser = add_command(
        commands,
        "produce",
        _produce,
        help="write records from standard input or files",
        description="Write records.  Each line of standard input is a record, or each FILE as a "
        "whole (its lines with -l).  The command ends when all records are acknowledged, "
        "and names each that is not.  It skips empty lines, as kcat does.  Exit status: "
        "0: all records are written; 1: some are not; 3: the outcome of some is unknown.",
        examples="  echo hello | driftlog produce greetings\n"
        "  driftlog produce flights -l flights.ndjson -z zstd\n"
        "  printf 'k1:v1\\nk2:\\n' | driftlog produce flights -K: -Z -H source=shell\n"
        '  echo \'{"key": "k", "value": {"n": 1}}\' | driftlog produce flights --json\n',
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="TOPIC [FILE]",
        help="the topic, and files of records (default: standard input)",
    )
    parser.add_argument("-t", "--topic", metavar="TOPIC", help="as TOPIC")
    record = parser.add_argument_group("records")
    record.add_argument(
        "-D",
        "--delimiter",
        type=_delimiter,
        default=b"\n",
        metavar="DELIM",
        help="end of each record (default: \\n)",
    )
    record.add_argument(
        "-K",
        "--key-delimiter",
        type=_delimiter,
        metavar="DELIM",
        help="the key is the text before the first DELIM",
    )
    record.add_argument("-k", "--key", metavar="KEY", help="key of all records without one")
    record.add_argument(
        "-H",
        "--header",
        action="append",
        type=_header,
        metavar="NAME=VALUE",
        help="header of all records; NAME alone: null; may be repeated",
    )
    record.add_argument(
        "-p",
        "--partition",
        type=int,
        default=-1,
        metavar="N",
        help="partition of all records (default: by key)",
    )
    record.add_argument(
        "-Z", "--null", action="store_true", help="make empty values and keys null (with -K)"
    )
    record.add_argument("-l", "--lines", action="store_true", help="each line of FILE is a record")
    record.add_argument(
        "--json",
        action="store_true",
        help='each line is {"key": …, "value": …, "headers": {…}, "partition": N, '
        '"timestamp": MS}, or what `consume -J` prints',
    )
    bad = record.add_mutually_exclusive_group()
    bad.add_argument(
        "--skip-bad",
        action="store_true",
        help="skip lines that are no record, and name them (default: stop at the first)",
    )
    bad.add_argument(
        "--bad-lines",
        type=Path,
        metavar="FILE",
        help="as --skip-bad, and write these lines to FILE",
    )
    record.add_argument(
        "--property",
        "--reader-property",
        dest="reader_properties",
        action="append",
        type=key_value,
        metavar="NAME=VALUE",
        help="property of Kafka's console producer: parse.key=true, key.separator=:, null.marker=…",
    )
    record.add_argument("-c", "--count", type=positive, metavar="N", help="stop after N records")
    how = parser.add_argument_group("how")
    how.add_argument(
        "-z",
        "--compression",
        choices=["none", "gzip", "snappy", "lz4", "zstd"],
        default="none",
        metavar="CODEC",
        help="none, gzip, snappy, lz4 or zstd (default: %(default)s)",
    )
    how.add_argument(
        "-a",
        "--acks",
        choices=["all", "-1", "1", "0"],
        default="all",
        help="acknowledgement: all: the record is durable (default; without duplicates), 1: one "
        "agent has it, 0: none",
    )
    how.add_argument("-T", "--tee", action="store_true", help="print the records that are sent")
    how.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    add_connection_options(
        parser,
        timeout_help="how long a record may wait for its acknowledgement, the first answers "
        f"included (default: {_DELIVERY_S:g}, and {ANSWER_S:g} for each of these)",
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
        raise UsageError("no topic is named: `driftlog produce TOPIC`")
    if problem := topic_name_problem(topic):
        raise UsageError(f"{topic!r} cannot be a topic: {problem}")
    files = [Path(word) for word in words]
    if options.json and (options.key_delimiter or options.null):
        raise UsageError("--json has keys and nulls of its own: leave -K and -Z out")
    console_lines(options)
    for file in files:
        if not os.access(file, os.R_OK):
            why = "permission denied" if file.exists() else "no such file"
            raise CommandError(f"{file}: {why}")
    cluster = ClusterClient(options)
    batch_bytes = topic_batch_bytes(cluster, topic)
    interactive = not files and sys.stdin.isatty()
    writer = RecordWriter(
        options,
        topic,
        batch_bytes or _BATCH_BYTES,
        max(_LEAST_DELIVERY_S, options.timeout.left(_DELIVERY_S)),
        is_new=batch_bytes is None,
        interactive=interactive,
    )
    options.notice.rests()
    given = RecordInput(options, files, writer.poll)
    close_on_sigterm()
    if interactive and not options.quiet:
        complain(f"writing to {topic}: one record a line, Ctrl-D ends")
    status = OK
    stopped: str | None = None
    try:
        for where, record in given.records():
            writer.write(where, record)
            if writer.taken == options.count:
                break
    except KeyboardInterrupt:
        status = INTERRUPTED
    except TooLongError:
        stopped = f"no delimiter in {size(MAX_RECORD_BYTES)}: check -D"
    except BadLineError as error:
        stopped = f"stopped at {error}; the rest is not read: --skip-bad skips bad lines"
    finally:
        interrupted = not writer.finish()
        given.close()
    if stopped is not None:
        complain(stopped)
        status = FAILED
    if writer.unknown_topic:
        near = similar(topic, cluster.metadata().topics)
        complain(
            f"topic {topic!r} does not "
            f"exist{near or f': `driftlog topics create {topic}` creates it'}"
        )
    if not options.quiet or writer.failed or writer.unknown or stopped:
        _summarize(writer, topic, files, options)
    if interrupted:
        return INTERRUPTED
    return status or (UNKNOWN if writer.unknown else FAILED if writer.failed else OK)


def topic_batch_bytes(cluster: ClusterClient, topic: str) -> int | None:
    """The largest batch: within the topic's limit, so that a larger record is refused alone.

    None: there is no such topic.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked = cluster.admin.describe_configs([resource], request_timeout=cluster.timeout)
    try:
        config = asked[resource].result()["max.message.bytes"]
    except KafkaException as error:
        is_new = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return None if is_new else _BATCH_BYTES  # else it may not be read
    except KeyError:
        return _BATCH_BYTES
    return min(_BATCH_BYTES, max(1, int(config.value)))


def _summarize(
    writer: RecordWriter, topic: str, files: list[Path], options: argparse.Namespace
) -> None:
    how = "sent" if options.acks == "0" else "written"
    text = f"{plural(writer.written, 'record')} {how} to {topic} ({size(writer.written_bytes)})"
    if writer.failed:
        text += f", {writer.failed:,} not written"
    if writer.unknown:
        text += f", {writer.unknown:,} unknown: may have been written, look before sending again"
    if files and not options.lines and not options.json:
        text += "; each file is one record: -l produces its lines"
    complain(text)
