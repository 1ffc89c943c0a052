"""How many files the process may open, and so how many clients may connect.

Shell.
"""

import resource
from contextlib import suppress
from typing import Final

_OURS: Final = 1_024
"""For buffer files, the stores' connections and threads' files: a few hundred at most."""
_FEWEST: Final = 64
MOST: Final = 2**31 - 1
"""Kafka's default of ``max.connections``."""


def connections_possible(http_connections: int) -> int:
    """Raise the soft limit of open files to the hard one; returns how many connections that allows
    beside those of the HTTP port."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS has a lower limit that it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(_FEWEST, min(MOST, soft - _OURS - http_connections))
