"""What ends a command: in words that say what to do, and with which status.

    0 it did what it was asked   1 it did not   2 the command line is wrong   130 Ctrl-C

Pure.
"""

import difflib
from collections.abc import Iterable
from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


class CommandError(Exception):
    """It failed; the message is for the person who typed it."""

    status = FAILED


class UsageError(CommandError):
    """The command line asks for what cannot be."""

    status = USAGE


def similar(name: str, known: Iterable[str]) -> str:
    """What *name* may have been meant to be, as the end of a message; empty if nothing."""
    names = sorted(known)
    lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)
    inside = [other for other in names if len(name) > 2 and name.lower() in other.lower()]
    found = list(dict.fromkeys([*(lower[other] for other in close), *inside]))[:3]
    if not found:
        return ""
    return f"; did you mean {' or '.join(repr(other) for other in found)}?"
