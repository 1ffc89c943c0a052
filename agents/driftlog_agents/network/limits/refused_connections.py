"""Counts refused connections by address and limit, and decides when they are logged.

    refused ──▶ the first of its address for a second? ──▶ a line at once
                         └──▶ counted ──▶ a line for its address within a second

Pure.
"""

from collections import Counter
from typing import Final, NamedTuple

OTHERS: Final = "others"
"""In place of an address, when `_MOST` are remembered already."""

_MOST: Final = 256


class Refused(NamedTuple):
    """The subject of a log line: connections of one address that one limit refused."""

    address: str
    limit: str


class RefusedConnections:
    """See the module.  The owner calls `due` each second until it returns None."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[Refused] = Counter()
        """Refused, and not logged yet; 0: logged less than a second ago."""

    def count(self, refused: Refused) -> bool:
        """Count one more; True: log it at once, because a second passed without it."""
        if refused not in self._counts:
            if len(self._counts) < _MOST:
                self._counts[refused] = 0
                return True
            refused = Refused(OTHERS, refused.limit)
        self._counts[refused] += 1
        return False

    def due(self) -> list[tuple[Refused, int]] | None:
        """What to log now, with its count; None: a second passed without a refusal."""
        if not self._counts:
            return None
        told = [(refused, count) for refused, count in self._counts.items() if count]
        self._counts = Counter({refused: 0 for refused, _ in told})
        return told
