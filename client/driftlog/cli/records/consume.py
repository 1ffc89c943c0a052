"""`driftlog consume`: prints records of topics, from any position, in any format.

Without a group it assigns itself partitions, from positions that it looks up once; with a group
it subscribes, and commits the records that it has written to standard output.
Shell.
"""

import argparse
import contextlib
import os
import sys
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from driftlog.cli.common.errors import FAILED, OK, CommandError, UsageError
from driftlog.cli.common.output import Progress, complain, plural, size
from driftlog.cli.common.parsers import (
    Commands,
    add_command,
    key_value,
    natural,
    partitions,
    positive,
)
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import (
    add_connection_options,
    close_on_sigterm,
    new_client,
    properties,
    reason,
)
from driftlog.cli.records.console_properties import console_formatter
from driftlog.cli.records.formats import Formatter, compile_format, to_json, unescape
from driftlog.cli.records.offset_ranges import Range, ranges
from driftlog.cli.records.positions import Position, UntilTime, Where, parse_position
from driftlog.errors import advice

_AT_ONCE: Final = 1_000
_WAIT_S: Final = 0.2
_COMMIT_S: Final = 10.0
_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""Errors that librdkafka retries by itself."""


def add_commands(commands: Commands) -> None:
    """The command of this file."""
    parser = add_command(
        commands,
        "consume",
        _consume,
        help="print records of topics",
        description="Print records of topics.  Without -o, -e or --from-beginning the command "
        "begins at the end of each partition, and prints records as they come.",
        examples="  driftlog consume flights --from-beginning\n"
        "  driftlog consume flights -o -10 -e                        the last ten, and end\n"
        "  driftlog consume flights -f '%t [%p] at %o: key %k: %s\\n' -c 5 -o beginning\n"
        "  driftlog consume flights -o s@2026-11-22T00:00:00 -J | jq .payload\n"
        "  driftlog consume flights --group billing                  commits what it prints\n",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="TOPIC",
        help="topics; with --group a word that begins with ^ is a regular expression",
    )
    parser.add_argument("-t", "--topic", action="append", metavar="TOPIC", help="as TOPIC")
    where = parser.add_argument_group("which records")
    where.add_argument(
        "--from-beginning",
        action="store_true",
        help="begin at the first record; with --group only where nothing is committed",
    )
    where.add_argument(
        "-o",
        "--offset",
        action="append",
        type=_position,
        metavar="OFFSET",
        help="beginning, end, stored, 42, -10 (before the end), s@TIME, and e@TIME to stop at; "
        "TIME: milliseconds or 2026-11-22T01:02:03",
    )
    where.add_argument(
        "-p",
        "--partition",
        action="append",
        type=partitions,
        metavar="N[,N]",
        help="read only these partitions",
    )
    where.add_argument(
        "-c", "--count", "--max-messages", type=positive, metavar="N", help="end after N records"
    )
    where.add_argument(
        "-e",
        "--exit",
        action="store_true",
        help="begin at the beginning, and end at the end of each partition",
    )
    where.add_argument(
        "--timeout-ms",
        type=natural,
        metavar="MS",
        help="end after MS milliseconds without a record",
    )
    where.add_argument(
        "-G", "-g", "--group", metavar="GROUP", help="join the group, and commit offsets"
    )
    where.add_argument(
        "--isolation-level",
        choices=["read_uncommitted", "read_committed"],
        default="read_committed",
        help="isolation from transactions (default: %(default)s)",
    )
    how = parser.add_argument_group("output")
    how.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        help="%%t topic, %%p partition, %%o offset, %%k key, %%s value, %%K and %%S their lengths, "
        "%%T timestamp, %%h headers, %%%% percent, \\n \\t \\xHH",
    )
    how.add_argument(
        "-J", "--json", action="store_true", help="print a JSON object a line, as kcat -J does"
    )
    how.add_argument(
        "-D",
        "--delimiter",
        default="\\n",
        metavar="DELIM",
        help="end of each record (default: \\n)",
    )
    how.add_argument(
        "-K", "--key-delimiter", metavar="DELIM", help="print the key and DELIM before the value"
    )
    how.add_argument(
        "-Z", "--null", action="store_true", help="print NULL for null values and keys"
    )
    how.add_argument(
        "--property",
        "--formatter-property",
        dest="formatter_properties",
        action="append",
        type=key_value,
        metavar="NAME=VALUE",
        help="property of Kafka's console consumer: print.key=true, key.separator=:, …",
    )
    how.add_argument("-u", "--unbuffered", action="store_true", help="flush after each record")
    how.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    add_connection_options(parser)


def _position(text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _consume(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys([*options.words, *(options.topic or [])]))
    if not names:
        raise UsageError("no topic is named: `driftlog consume TOPIC`")
    first, until = _from_until(options)
    formatter = _formatter(options)
    if options.group is not None and not options.partition:
        if first not in (None, Where.BEGINNING, Where.END, Where.STORED) or until is not None:
            raise UsageError(
                "members of a group begin at their committed offsets: `driftlog groups "
                "reset-offsets` moves these; or give partitions with -p"
            )
    elif options.group is None and first is Where.STORED:
        raise UsageError("-o stored needs a group: give --group")
    cluster = ClusterClient(options)
    printer = _RecordPrinter(options, formatter, begins=_reset(options, first))
    close_on_sigterm()
    try:
        if options.group is not None and not options.partition:
            literal = [name for name in names if not name.startswith("^")]
            if literal:
                cluster.topics(literal)
            printer.subscribe(names)
        else:
            printer.assign(ranges(cluster, options, names, first, until))
        printer.run()
    finally:
        status = printer.close()
    return status


def _from_until(options: argparse.Namespace) -> tuple[Position | None, int | None]:
    """The position to begin at, and the time to stop at.

    Raises:
        UsageError: there are several of one kind.
    """
    given = options.offset or []
    firsts: list[Position] = [p for p in given if not isinstance(p, UntilTime)]
    if options.from_beginning:
        firsts.append(Where.BEGINNING)
    untils = [p.timestamp_ms for p in given if isinstance(p, UntilTime)]
    if len(set(firsts)) > 1 or len(untils) > 1:
        raise UsageError("-o is given twice for the start or the end: give it once")
    first = firsts[0] if firsts else None
    if first is None and options.group is None:
        # From the end to the end there is no record.
        first = Where.BEGINNING if options.exit or untils else Where.END
    elif first is None and options.partition:
        first = Where.STORED
    return first, untils[0] if untils else None


def _reset(options: argparse.Namespace, first: Position | None) -> str:
    if first is Where.BEGINNING or (options.exit and first in (None, Where.STORED)):
        return "earliest"
    return "latest"


def _formatter(options: argparse.Namespace) -> Formatter:
    if options.formatter_properties:
        if options.format or options.json or options.key_delimiter:
            raise UsageError("--property cannot be combined with -f, -J or -K")
        try:
            return console_formatter(dict(options.formatter_properties))
        except ValueError as error:
            raise UsageError(f"--property: {error}") from error
    end = unescape(options.delimiter)
    if options.json:
        return lambda message: to_json(message) + end
    null = b"NULL" if options.null else b""
    if options.format is not None:
        try:
            return compile_format(options.format, null)
        except ValueError as error:
            raise UsageError(f"-f: {error}") from error
    if options.key_delimiter is None:
        return lambda m: (m.value() or null) + end
    between = unescape(options.key_delimiter)
    return lambda m: b"".join((m.key() or null, between, m.value() or null, end))


def _unreadable(message: Message, error: UnicodeError) -> CommandError:
    partition, offset = message.partition(), message.offset() or 0
    return CommandError(
        f"{message.topic()} [{partition}] at offset {offset}: {error}; leave headers out, or begin "
        f"behind it with -p {partition} -o {offset + 1}"
    )


class _RecordPrinter:
    """A consumer that prints its records, counts them, and knows when it is done."""

    def __init__(self, options: argparse.Namespace, formatter: Formatter, *, begins: str) -> None:
        self._options = options
        self._formatter = formatter
        self._commits = options.group is not None
        self._progress = Progress(quiet=options.quiet or sys.stdout.isatty())
        self._records = 0
        self._bytes = 0
        self._ends: dict[tuple[str, int], int] = {}
        self._open: set[tuple[str, int]] = set()
        self._said: set[int] = set()
        self._last_record_s = time.monotonic()
        self._answered_s = time.monotonic()
        self._consumer = new_client(
            Consumer,
            {"error_cb": self._error}
            | properties(
                options,
                # librdkafka requires a name; without --group there are no requests for this one.
                group_id=options.group or f"driftlog-consume-{os.getpid()}",
                enable_auto_commit=self._commits,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset=begins,
                isolation_level=options.isolation_level,
                fetch_wait_max_ms=200,
                # librdkafka's pause of a second when its queue is full shows as a stutter.
                fetch_queue_backoff_ms=10,
                allow_auto_create_topics=False,
            ),
        )

    def subscribe(self, names: list[str]) -> None:
        """Subscribe to topics as a member of the group."""
        self._consumer.subscribe(
            names, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def assign(self, found: list[Range]) -> None:
        """Assign ranges of partitions, without a group."""
        self._ends = {(r.topic, r.partition): r.end for r in found if r.end is not None}
        self._open = {(r.topic, r.partition) for r in found if not r.is_empty}
        self._consumer.assign([TopicPartition(r.topic, r.partition, r.start) for r in found])

    def run(self) -> None:
        """Print until there is no more record to print.

        Raises:
            CommandError: the cluster refuses.
        """
        out = sys.stdout.buffer
        while not self._is_done():
            left = (self._options.count or sys.maxsize) - self._records
            batch = self._consumer.consume(min(_AT_ONCE, left), _WAIT_S)
            if self._options.exit and not batch:
                self._options.notice.waits_still()
                self._check_wait()
            else:
                self._options.notice.rests()
                self._answered_s = time.monotonic()
            printed: dict[tuple[str, int], int] = {}
            lines = []
            unreadable: CommandError | None = None
            for message in batch:
                if self._is_wanted(message):
                    try:
                        lines.append(self._formatter(message))
                    except UnicodeError as error:
                        unreadable = _unreadable(message, error)
                        break
                    printed[message.topic(), message.partition()] = message.offset() + 1
            if lines:
                if self._options.unbuffered:
                    for line in lines:
                        out.write(line)
                        out.flush()
                else:
                    out.write(b"".join(lines))
                    out.flush()
                self._last_record_s = time.monotonic()
                self._records += len(lines)
                self._bytes += sum(map(len, lines))
                self._store(printed)
            if unreadable is not None:
                raise unreadable
            if self._progress.due():
                self._progress.show(
                    f"{plural(self._records, 'record')}, {size(self._bytes)}, "
                    f"{size(self._bytes / self._progress.seconds)}/s"
                )

    def close(self) -> int:
        """Commit, leave the group; returns the exit status."""
        self._progress.clear()
        status = self._commit() if self._commits else OK
        self._consumer.close()
        return status

    def _commit(self) -> int:
        """Commit the printed records; librdkafka may have to find the coordinator first."""
        deadline = time.monotonic() + min(self._options.timeout.seconds or _COMMIT_S, _COMMIT_S)
        while True:
            try:
                self._consumer.commit(asynchronous=False)
            except KafkaException as error:
                code = error.args[0].code()
                if code in _PASSING and time.monotonic() < deadline:
                    self._consumer.poll(_WAIT_S)
                    continue
                if code != KafkaError._NO_OFFSET:
                    complain(f"the offsets of the last records are not committed: {reason(error)}")
                    return FAILED
            return OK

    # ── What comes ──

    def _is_wanted(self, message: Message) -> bool:
        """Whether the message is a record to print.

        Raises:
            CommandError: it is an error that prevents reading.
        """
        at = (message.topic() or "", message.partition() or 0)
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                if self._options.exit:
                    self._open.discard(at)
            else:
                self._error(error, f"{at[0]} [{at[1]}]: " if at[0] else "")
            return False
        end = self._ends.get(at)
        if end is not None and (message.offset() or 0) >= end - 1:
            self._open.discard(at)
            if (message.offset() or 0) >= end:
                return False
        elif end is None and self._options.exit:
            self._open.add(at)
        return True

    def _error(self, error: KafkaError, of: str = "") -> None:
        if error.code() in _PASSING and not error.fatal():
            if error.code() not in self._said and not self._options.quiet:
                self._said.add(error.code())
                self._progress.clear()
                complain(f"{of}{reason(error)}; retrying")
            return
        raise CommandError(f"{of}{reason(error)}. {advice(error.code())}")

    def _is_done(self) -> bool:
        if self._options.count is not None and self._records >= self._options.count:
            return True
        wait_ms = self._options.timeout_ms
        if wait_ms is not None and time.monotonic() - self._last_record_s > wait_ms / 1000:
            return True
        ends = self._options.exit or bool(self._ends)
        return ends and not self._open and self._has_assignment()

    def _check_wait(self) -> None:
        """
        Raises:
            CommandError: no answer has come for as long as --timeout allows.
        """
        limit_s = self._options.timeout.seconds
        if limit_s is not None and time.monotonic() - self._answered_s > limit_s:
            raise CommandError(f"no record for {limit_s:g} s (--timeout), before the end")

    def _has_assignment(self) -> bool:
        return bool(self._consumer.assignment())

    def _store(self, printed: dict[tuple[str, int], int]) -> None:
        if self._commits:
            with contextlib.suppress(KafkaException):  # revoked meanwhile: another member reads it
                self._consumer.store_offsets(
                    offsets=[TopicPartition(*at, offset) for at, offset in printed.items()]
                )

    # ── The group ──

    def _assigned(self, _: Consumer, given: list[TopicPartition]) -> None:
        self._open |= {(tp.topic, tp.partition) for tp in given}

    def _revoked(self, _: Consumer, taken: list[TopicPartition]) -> None:
        self._open -= {(tp.topic, tp.partition) for tp in taken}
