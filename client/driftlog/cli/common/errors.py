"""Ends of a command: the exit status, and messages that say what to do.

    0    the command succeeded
    1    it failed
    2    the command line is wrong
    3    an answer was lost: the command may have done it
    130  Ctrl-C

Pure.
"""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3
INTERRUPTED: Final = 130


class CommandError(Exception):
    """The command failed; the message goes to standard error."""

    status = FAILED


class UsageError(CommandError):
    """The command line is wrong."""

    status = USAGE
