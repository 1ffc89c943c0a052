"""Positions in a log, to begin and to stop at, as users write them: kcat's -o, and times.

    beginning | end | stored | N | -N | s@TIME | e@TIME

TIME is one of `driftlog.cli.common.times`.
Pure.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from driftlog.cli.common.times import parse_time


class Where(Enum):
    """A position with a name."""

    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset; below 0: so many before the end."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromTime:
    """Begin at the first record at or after a time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class UntilTime:
    """Stop at the first record at or after a time."""

    timestamp_ms: int


Position = Where | AtOffset | FromTime | UntilTime

_NAMES: Final = {
    "beginning": Where.BEGINNING,
    "earliest": Where.BEGINNING,
    "end": Where.END,
    "latest": Where.END,
    "stored": Where.STORED,
}


def parse_position(text: str) -> Position:
    """Read one -o.

    Raises:
        ValueError: *text* is no position.
    """
    if text in _NAMES:
        return _NAMES[text]
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return AtOffset(int(text))
    if text[:2] == "s@":
        return FromTime(parse_time(text[2:]))
    if text[:2] == "e@":
        return UntilTime(parse_time(text[2:]))
    raise ValueError(
        f"{text!r} is no offset: beginning, end, stored, 42, -10 (before the end), s@TIME or e@TIME"
    )
