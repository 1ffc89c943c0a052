"""Which addresses had connections refused, by which limit, and what the log has not said of it yet.

    refused ──▶ the first of its address for a second? ──▶ a line at once
                         └──▶ counted ──▶ a line of its address within a second

Pure.
"""

from collections import Counter
from typing import Final, NamedTuple

OTHERS: Final = "others"
"""In place of an address, when `_MOST` are remembered already."""

_MOST: Final = 256


class Refused(NamedTuple):
    """What a line is about: connections of one address that one limit refused."""

    address: str
    limit: str


class RefusedConnections:
    """See the module.  Whoever owns it calls `due` each second until that returns None."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[Refused] = Counter()
        """Refused, and not in a line yet.  Those of 0 had a line less than a second ago."""

    def count(self, refused: Refused) -> bool:
        """One more is refused; True: say so at once, for nothing was said of it for a second."""
        if refused not in self._counts:
            if len(self._counts) < _MOST:
                self._counts[refused] = 0
                return True
            refused = Refused(OTHERS, refused.limit)
        self._counts[refused] += 1
        return False

    def due(self) -> list[tuple[Refused, int]] | None:
        """What to say now, with its count; None: nothing was refused for a second."""
        if not self._counts:
            return None
        told = [(refused, count) for refused, count in self._counts.items() if count]
        self._counts = Counter({refused: 0 for refused, _ in told})
        return told
