"""What commands print: tables for people, JSON for programs, and a progress line.

Nothing is cut off, and there is colour on a terminal only (never with NO_COLOR).  Thousands are
separated on a terminal only: programs read piped output.  Text of others is one line in a table,
and cannot steer the terminal.
Shell.
"""

import json
import os
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from driftlog_agents.process_log.escapes import escaped

Cell = str | int | None

_BOLD: Final = "\x1b[1m"
_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"
_PROGRESS_S: Final = 0.2
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES: Final = (("h", 3_600_000), ("min", 60_000), ("s", 1_000))

_shown: "Final[weakref.WeakSet[Progress]]" = weakref.WeakSet()
"""Progress lines that `complain` removes before it writes."""


class Bad(str):
    """A cell that needs attention."""

    __slots__ = ()


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print an aligned table, numbers to the right; None is ``-``."""
    found = list(rows)
    cells = [[_text(cell) for cell in row] for row in found]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    right = [
        bool(found) and all(cell is None or isinstance(cell, int) for cell in column)
        for column in zip(*found, strict=True)
    ] or [False] * len(titles)
    colour = _has_colour(sys.stdout)
    print(_line(titles, widths, right, _BOLD if colour else ""))
    for row, texts in zip(found, cells, strict=True):
        bad = colour and any(isinstance(cell, Bad) for cell in row)
        print(_line(texts, widths, right, _RED if bad else ""))


def _line(texts: Sequence[str], widths: list[int], right: list[bool], style: str) -> str:
    padded = (
        text.rjust(width) if to_right else text.ljust(width)
        for text, width, to_right in zip(texts, widths, right, strict=True)
    )
    line = "  ".join(padded).rstrip()
    return f"{style}{line}{_PLAIN}" if style else line


def _text(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case int():
            return number(cell)
        case _:
            return escaped(cell, len(cell))


def number(value: int) -> str:
    """``12345``, or ``12,345`` on a terminal."""
    return f"{value:,}" if sys.stdout.isatty() else str(value)


def size(value: float) -> str:
    """Bytes with a unit: ``1.5 MiB``."""
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def duration(ms: int) -> str:
    """Milliseconds in the largest unit that divides them: ``12 h``, ``90 s``."""
    for unit, unit_ms in _TIMES:
        if ms % unit_ms == 0:
            return f"{ms // unit_ms:,} {unit}"
    return f"{ms:,} ms"


def plural(count: int, what: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def title(text: str) -> None:
    """Print a heading between tables."""
    print(f"{_BOLD}{text}{_PLAIN}" if _has_colour(sys.stdout) else text)


def print_json(value: Any) -> None:
    """Print one JSON document; indented on a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def complain(message: str) -> None:
    """Print a line on standard error, in the place of the progress line."""
    for progress in _shown:
        progress.clear()
    print(f"driftlog: {message}", file=sys.stderr, flush=True)


def no_extra(error: ImportError, what: str, extras: Sequence[str] = ("agent",)) -> int:
    """Print how to install the packages for *what*; returns the exit status."""
    install = " or ".join(f"pip install 'driftlog[{extra}]'" for extra in extras)
    complain(f"{what} needs more packages than a client ({error}): {install}")
    return 1


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Progress:
    """One line that changes, if standard error is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = sys.stderr.isatty() and not quiet
        self._started = time.monotonic()
        self._next = self._started + 2 * _PROGRESS_S
        self._width = 0
        _shown.add(self)

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return max(time.monotonic() - self._started, 1e-9)

    def due(self) -> bool:
        """Whether it is time to `show`: check it before composing a text."""
        return self._shown and time.monotonic() >= self._next

    def show(self, text: str) -> None:
        """Put *text* in the place of the last one."""
        self._next = time.monotonic() + _PROGRESS_S
        sys.stderr.write(f"\r{text.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Remove the line, before other output is written."""
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()
            self._width = 0
