"""The process's log: structlog, `logging`, warnings and uncaught errors, all to standard error.

    structlog ─▶ limits ─▶ escapes ─▶ one line ─▶ ┐
    logging   ─▶ limits ─▶ escapes ─▶ one line ─▶ ├─▶ `StreamWriter` ─▶ standard error
    print, uncaught errors ──────────▶ lines ────▶ ┘

A line is text, or one JSON object: `ts`, `level`, `event`, and the event's own keys.

Logging never raises and never waits.  Lines that are left out are counted, and reported by a later
line, ``log_lines_left_out``.  `close` writes the queued lines, for a bounded time.

Shell.
"""

import atexit
import contextlib
import io
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any, Final, TextIO

import structlog

from driftlog_agents.process_log.escapes import (
    OWN_CHARACTERS,
    TRACEBACK_CHARACTERS,
    escaped,
    escaped_line,
)
from driftlog_agents.process_log.json_lines import json_line
from driftlog_agents.process_log.line_limits import Kind, LineLimits
from driftlog_agents.process_log.stream_writer import StreamWriter

TEXT: Final = "text"
JSON: Final = "json"

_CLOSE_S: Final = 2.0
"""How long the end of the process waits for the reader of the log."""

_LAST_STANDARD: Final = 2
"""The descriptor of standard error."""

_LAST_WORDS_BYTES: Final = 64 * 1024
"""Text without a newline is written as a line from here on."""


class ProcessLog:
    """See the module.  One per process: `install` sends all output through it."""

    def __init__(self, level: str, line_format: str = TEXT) -> None:
        self._json = line_format == JSON
        self._level = getattr(logging, level.upper(), logging.INFO)
        _occupy_standard_descriptors()
        self._limits = LineLimits()
        self._lock = threading.RLock()
        self._errors = StreamWriter(_descriptor(sys.stderr), "log", self._say_left_out)
        self._output = StreamWriter(_descriptor(sys.stdout), "output", lambda _: None)
        self._told_dropped = 0
        console = structlog.dev.ConsoleRenderer(colors=_is_terminal(sys.stderr))
        self._renderer = json_line if self._json else console
        self._time = structlog.processors.TimeStamper(fmt="iso")

    def install(self) -> None:
        """From now on structlog, `logging`, standard error and standard output write here."""
        structlog.configure(
            processors=[structlog.processors.add_log_level, self._processed],
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
            logger_factory=lambda *_: _QueuedLines(self._errors),
            cache_logger_on_first_use=True,
        )
        wrap = self._wrapped if self._json else None
        sys.stderr = _Lines(self._errors, sys.stderr, wrap)
        sys.stdout = _Lines(self._output, sys.stdout)
        logging.raiseExceptions = False
        logging.getLogger().addHandler(_Handler(self))
        logging.captureWarnings(True)
        atexit.register(self.close)  # after the traceback of an uncaught error

    def set_lines_per_second(self, lines: int) -> None:
        """Limit the lines of one event and address (config ``driftlog.log.lines.per.second``)."""
        with self._lock:
            self._limits.lines_per_second = lines

    def dropped(self) -> Mapping[str, int]:
        """Lines that were not written, by reason."""
        failed = self._errors.dropped
        return {"rate": self._limits.left_out, "queue": failed["queue"], "write": failed["write"]}

    def close(self) -> None:
        """Write the queued lines, for a bounded time: the process ends."""
        self._errors.close(_CLOSE_S)
        self._output.close(_CLOSE_S)

    def say_stacks(self) -> None:
        """Log the stack of each thread, so that a person finds why the process did not end."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            stack = "".join(traceback.format_stack(frame))
            text = f"Thread {names.get(ident)}:\n{stack}"
            self._errors.put(self._wrapped(text) if self._json else text.encode(), important=True)

    # ── One line ──

    def _processed(
        self, _: Any, method: str, fields: MutableMapping[str, Any]
    ) -> tuple[tuple[bytes, bool], dict[str, Any]]:
        """The last processor of structlog: the line, and whether it is important.

        Raises:
            DropEvent: the line is left out.
        """
        kind = Kind.PROCESS
        try:
            event, client = str(fields.get("event")), fields.get("client")
            if client is not None:
                kind = Kind.CLIENT
            elif method in ("error", "critical", "exception"):
                kind = Kind.ERROR
            if not self._admit(kind, event, _host(client)):
                raise structlog.DropEvent
            line = self._rendered(fields)
        except structlog.DropEvent:
            raise
        except Exception as error:  # noqa: BLE001  # a value cannot be shown: log that
            line = self._not_shown(type(error).__name__)
        return (line, kind is Kind.ERROR), {}

    def _wrapped(self, text: str) -> bytes:
        """Text without an event, such as a traceback of Python's, as a line of JSON."""
        fields = {"event": "text_written", "level": "error", "text": text[-TRACEBACK_CHARACTERS:]}
        return f"{json_line(None, '', self._time(None, '', fields))}\n".encode()

    def _not_shown(self, error: str) -> bytes:
        if self._json:
            return self._rendered({"event": "log_line_not_shown", "level": "error", "error": error})
        return f"log_line_not_shown {error}\n".encode()

    def _admit(self, kind: Kind, event: str, address: str) -> bool:
        with self._lock:
            return self._limits.admit(kind, event[:OWN_CHARACTERS], address, _now_ms())

    def _rendered(self, fields: MutableMapping[str, Any]) -> bytes:
        fields = structlog.processors.format_exc_info(None, "", dict(fields))
        fields = self._time(None, "", escaped_line(fields))
        return f"{self._renderer(None, '', fields)}\n".encode(errors="backslashreplace")

    def _say_left_out(self, closing: bool) -> None:
        """Called by the thread that writes; while the stream fails, the summary waits."""
        if not self._errors.works:
            return
        with self._lock:
            events = self._limits.summary(_now_ms(), at_once=closing)
        lost = self._errors.dropped.total()
        lost, self._told_dropped = lost - self._told_dropped, lost
        if not events and not lost:
            return
        fields: dict[str, Any] = {"event": "log_lines_left_out", "level": "warning"}
        fields["lines"] = sum(events.values()) + lost
        if events:
            fields["events"] = ", ".join(f"{event} {count}" for event, count in events.items())
        if lost:
            fields["not_taken"] = lost
            fields["advice"] = "the log's disk is full or closed, or its reader is too slow"
        self._errors.put(self._rendered(fields), important=True)

    def said_by_logging(self, record: logging.LogRecord) -> None:
        """Write a record of `logging` as a line of this log; it may have a `client`, an address."""
        client = getattr(record, "client", None)
        kind = Kind.ERROR if record.levelno >= logging.ERROR else Kind.PROCESS
        if client is not None:
            kind = Kind.CLIENT
        if not self._admit(kind, f"{record.name}: {record.msg}", _host(client)):
            return
        fields: dict[str, Any] = {
            "event": escaped(record.getMessage(), OWN_CHARACTERS),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if client is not None:
            fields["client"] = client
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        self._errors.put(self._rendered(fields), important=kind is Kind.ERROR)


class _QueuedLines:
    """The logger that structlog calls with each line."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer

    def msg(self, line: bytes, important: bool) -> None:
        self._writer.put(line, important=important)

    debug = info = warning = error = critical = exception = msg


class _Handler(logging.Handler):
    """The handler that `logging` calls with each record; like its last resort, from warnings on."""

    def __init__(self, log: ProcessLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a record that cannot be formatted
            self._log.said_by_logging(record)


class _Lines(io.TextIOBase):
    """A text stream that queues its lines, also those of Python's own tracebacks, in a writer.

    Args:
        wrap: makes a line of the log from the text; None: the text is written as it is.
    """

    def __init__(
        self,
        writer: StreamWriter,
        stream: TextIO | None,
        wrap: Callable[[str], bytes] | None = None,
    ) -> None:
        self._writer = writer
        self._stream = stream
        self._wrap = wrap
        self._rest = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return _is_terminal(self._stream)

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with self._lock:
            whole, newline, self._rest = (self._rest + text).rpartition("\n")
            if len(self._rest) > _LAST_WORDS_BYTES:
                whole, newline, self._rest = whole + newline + self._rest, "\n", ""
            if newline:
                self._put(whole)
        return len(text)

    def flush(self) -> None:
        """Do nothing: text without a newline waits for one, or for the end."""

    def _put(self, text: str) -> None:
        if self._wrap is None:
            data = f"{text}\n".encode(errors="backslashreplace")
        else:
            data = self._wrap(text)
        self._writer.put(data, important=True)


def _host(client: object) -> str:
    """The host of HOST:PORT, or of an address alone: a client that connects again has another
    port."""
    text = "" if client is None else str(client)
    try:
        ip_address(text)
    except ValueError:
        return text.rpartition(":")[0]
    return text


def _descriptor(stream: TextIO | None) -> int | None:
    """The descriptor of *stream*; None: it was closed, and its number may be another file's now."""
    try:
        descriptor = -1 if stream is None else stream.fileno()
        os.fstat(descriptor)
    except (OSError, ValueError):
        return None
    return descriptor


def _occupy_standard_descriptors() -> None:
    """Open /dev/null in place of standard streams that were closed.

    Else a socket or the database gets the number, and native code that writes to standard error
    writes into it.  (libuv aborts when it is to close such a descriptor.)
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(descriptor)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def _now_ms() -> float:
    return time.monotonic() * 1000
