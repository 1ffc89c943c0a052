"""The records that `driftlog produce` reads: lines of standard input and files, files, JSON.

    read ──▶ cut at -D ──▶ cut at -K, or JSON ──▶ a record
                                     └──────────▶ a bad line: the end, or skipped and kept

Shell.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from driftlog.cli.common.errors import CommandError, UsageError
from driftlog.cli.common.output import complain, plural
from driftlog.cli.records.console_properties import LineFormat, console_line_format
from driftlog.cli.records.formats import NewRecord, from_json
from driftlog.cli.records.lines import split

_SAID_LINES: Final = 10
"""Bad lines that are printed one by one; the others are counted."""


class BadLineError(Exception):
    """A line that is no record; the message says which and why."""


class RecordInput:
    """The source of the records.

    Args:
        files: none: standard input.
        idle: called ten times a second while there is no input.

    Raises:
        UsageError: options contradict each other.
        CommandError: the file for bad lines cannot be written.
    """

    def __init__(
        self, options: argparse.Namespace, files: list[Path], idle: Callable[[], None]
    ) -> None:
        self.skipped = 0
        self._options = options
        self._files = files
        self._idle = idle
        self._console = console_lines(options)
        self._key = None if options.key is None else options.key.encode(errors="surrogateescape")
        self._skips = options.skip_bad or options.bad_lines is not None
        self._kept: BinaryIO | None = None
        if options.bad_lines is not None:
            try:
                self._kept = options.bad_lines.open("wb")
            except OSError as error:
                raise CommandError(f"{options.bad_lines}: {error.strerror}") from error

    def close(self) -> None:
        """Finish the file of bad lines; print their number."""
        if self._kept is not None:
            self._kept.close()
        if self.skipped > _SAID_LINES:
            complain(f"and {self.skipped - _SAID_LINES:,} more bad lines")
        if self.skipped:
            kept = "" if self._options.bad_lines is None else f", kept in {self._options.bad_lines}"
            complain(f"{plural(self.skipped, 'bad line')} left out{kept}")

    def records(self) -> Iterator[tuple[str, NewRecord]]:
        """Each record, with its source.

        Raises:
            TooLongError: a record is longer than `lines.MAX_RECORD_BYTES`.
            BadLineError: a line is no record, and bad lines are not skipped.
        """
        options = self._options
        if self._files and not (options.lines or options.json):
            for file in self._files:
                body = file.read_bytes()
                if body:
                    yield str(file), NewRecord(self._key, body)
            return
        if not self._files:
            yield from self._lines(sys.stdin.fileno(), "")
        for file in self._files:
            with file.open("rb") as opened:
                yield from self._lines(opened.fileno(), f"{file}, ")

    def _lines(self, fd: int, of: str) -> Iterator[tuple[str, NewRecord]]:
        for number, line in enumerate(split(fd, self._options.delimiter, self._idle), 1):
            if not line and self._console is None:
                continue
            where = f"{of}line {number}"
            try:
                record = self._parse(line)
            except ValueError as error:
                if not self._skips:
                    raise BadLineError(f"{where}: {error}") from error
                self._skip(where, line, str(error))
            else:
                yield where, record

    def _skip(self, where: str, line: bytes, why: str) -> None:
        self.skipped += 1
        if self._kept is not None:
            self._kept.write(line + self._options.delimiter)
        if self.skipped <= _SAID_LINES:
            complain(f"{where}: left out: {why}")

    def _parse(self, line: bytes) -> NewRecord:
        options = self._options
        if self._console is not None:
            return _parse_as_console(line, self._console)
        if options.json:
            return from_json(line)
        if options.key_delimiter is None:
            return NewRecord(self._key, line)
        key, found, value = line.partition(options.key_delimiter)
        if not found:
            return NewRecord(self._key, line)
        if options.null:
            return NewRecord(key or self._key, value or None)
        return NewRecord(key, value)


def console_lines(options: argparse.Namespace) -> LineFormat | None:
    """The line format of --property; None: there is no --property.

    Raises:
        UsageError: a property is unknown, or another option contradicts it.
    """
    if not options.reader_properties:
        return None
    if options.json or options.key_delimiter or options.null:
        raise UsageError("--property contradicts --json, -K and -Z: give one of them")
    try:
        return console_line_format(dict(options.reader_properties))
    except ValueError as error:
        raise UsageError(f"--property: {error}") from error


def _parse_as_console(line: bytes, reading: LineFormat) -> NewRecord:
    key: bytes | None = None
    value = line
    if reading.key_separator is not None:
        key, found, value = line.partition(reading.key_separator)
        if not found:
            raise ValueError(f"{reading.key_separator!r} is missing after a key")
    return NewRecord(None if key == reading.null else key, None if value == reading.null else value)
