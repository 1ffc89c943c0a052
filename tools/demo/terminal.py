"""The output for the user: steps, tables, and a line that moves while work continues.

Colour and movement appear only on a terminal, and colour never when NO_COLOR is set (no-color.org).

Shell.
"""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

_BAR_CELLS: Final = 24
_REDRAW_S: Final = 0.1
_BOLD, _DIM, _GREEN, _RED, _CYAN = "1", "2", "32", "31", "36"


class Terminal:
    """Writes to *out*; the moving line is overwritten by the next one."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moves = out.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self._moves and not os.environ.get("NO_COLOR")
        self._steps = 0
        self._drawn_at = 0.0
        self._begin = time.monotonic()

    def title(self, text: str) -> None:
        """Print the first line."""
        self._print(f"\n{self._style(text, _BOLD)}")

    def step(self, text: str) -> None:
        """Print a numbered heading, with the seconds since the start."""
        self._steps += 1
        number = self._style(f"{self._steps}", _BOLD, _CYAN)
        elapsed = self._style(f"{time.monotonic() - self._begin:5.1f} s", _DIM)
        self._print(f"\n{number}  {self._style(f'{text:<66}', _BOLD)} {elapsed}")

    def line(self, text: str = "") -> None:
        """Print a line below a step."""
        self._print(f"   {text}" if text else "")

    def dim(self, text: str) -> None:
        """Print less important lines: commands, code, log lines."""
        for line in text.splitlines():
            self._print(f"   {self._style(line, _DIM)}")

    def verdict(self, text: str, *, good: bool) -> None:
        """Print the result that the user waits for."""
        mark, colour = ("✔", _GREEN) if good else ("✘", _RED)
        self._print(f"   {self._style(f'{mark} {text}', _BOLD, colour)}")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print columns as wide as needed: numbers to the right, words to the left."""
        cells = [[_cell(value) for value in row] for row in rows]
        filled = [row for row in cells if row]
        columns = list(zip(*filled, strict=True)) if filled else [()] * len(head)
        numbers = [all(isinstance(value, int | float) for value in column) for column in columns]
        texts = [list(head), *([_text(value) for value in row] for row in cells)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for i, row in enumerate(texts):
            padded = [
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(row, widths, numbers, strict=True)
            ]
            line = "   ".join(padded).rstrip()
            self._print(f"   {self._style(line, _DIM) if i == 0 else line}")

    def progress(self, done: int, total: int, text: str) -> None:
        """Redraw the line that moves; at most ten times a second."""
        now = time.monotonic()
        if not self._moves or (now - self._drawn_at < _REDRAW_S and done < total):
            return
        self._drawn_at = now
        filled = _BAR_CELLS * done // max(total, 1)
        bar = f"{'━' * filled}{self._style('━' * (_BAR_CELLS - filled), _DIM)}"
        self._out.write(f"\r\x1b[2K   {self._style(bar, _CYAN)} {text}")
        self._out.flush()

    def waiting(self, text: str) -> None:
        """Show what the demo waits for, until the next line is printed."""
        if self._moves:
            self._out.write(f"\r\x1b[2K   {self._style(f'{text} …', _DIM)}")
            self._out.flush()

    def _print(self, text: str) -> None:
        # Overwrite the moving line, if there is one.
        first = "\r\x1b[2K" if self._moves else ""
        self._out.write(f"{first}{text}\n")
        self._out.flush()

    def _style(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._colours else text


def megabytes(count: int) -> str:
    """``31.1 MB``; smaller sizes in kB and bytes."""
    if count >= 1_000_000:
        return f"{count / 1_000_000:,.1f} MB"
    return f"{count / 1_000:,.1f} kB" if count >= 1_000 else f"{count} bytes"


def _cell(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _text(value: object) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4f}"
        case _:
            return str(value)


def terminal() -> Terminal:
    """The terminal on standard output, for any encoding."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a TextIOWrapper
    return Terminal(sys.stdout)
