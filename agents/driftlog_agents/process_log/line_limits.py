"""Limits the lines of the log: a budget for each event and client, and one for each kind.

    line ──▶ kind ──▶ of its event (and client): left? ──▶ of its kind: left? ──▶ written
                          ╳                                    ╳
                          └──────── left out and counted ──────┘ ──▶ `summary`, once a second

    kind       lines that                      of one event           of all
    client     name a client                   R a second and address 100 a second
    process    name none                       50 a second            200 a second
    error      name none, and are errors       50 a second            200 a second

The kinds share no budget: a flood of lines that clients cause displaces no line of the process, and
neither displaces an error.

Pure.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final

LINES_PER_SECOND: Final = 10
"""R, unless the config ``driftlog.log.lines.per.second`` sets it."""

_MOST_BUDGETS: Final = 4_096
"""Most budgets that are remembered.  Further addresses share one for each event, and further events
one for each kind, until others are silent."""

_SUMMARY_MS: Final = 1_000.0
_TOLD: Final = 10
"""Events that a summary names."""


class Kind(Enum):
    """The kind of a line; see the module."""

    CLIENT = "client"
    PROCESS = "process"
    ERROR = "error"


@dataclass(slots=True)
class _Budget:
    """Lines that may be written now; it grows by *per_second* up to *burst*."""

    per_second: float
    burst: float
    left: float
    at_ms: float

    def grow(self, now_ms: float) -> None:
        grown = max(0.0, now_ms - self.at_ms) * self.per_second / 1000
        self.left = min(self.burst, self.left + grown)
        self.at_ms = max(self.at_ms, now_ms)


_OF_ALL: Final = {
    Kind.CLIENT: (100.0, 200.0),
    Kind.PROCESS: (200.0, 2_000.0),
    Kind.ERROR: (200.0, 2_000.0),
}
_OF_EVENT: Final = (50.0, 1_000.0)
"""Lines a second, and at once: an agent that starts writes many lines at once, and a flood writes
more."""


class LineLimits:
    """See the module.  Not thread-safe."""

    def __init__(self, lines_per_second: int = LINES_PER_SECOND) -> None:
        self.lines_per_second = lines_per_second
        """Lines a second, of one event and client address."""
        self.left_out = 0
        """Number of lines left out since the start."""
        self._since: Counter[str] = Counter()
        self._told_ms = 0.0
        self._all = {
            kind: _Budget(rate, burst, burst, 0.0) for kind, (rate, burst) in _OF_ALL.items()
        }
        self._budgets: dict[tuple[Kind, str, str], _Budget] = {}

    def admit(self, kind: Kind, event: str, address: str, now_ms: float) -> bool:
        """Whether to write the line; else it is counted.  *address*: of the client."""
        of_event, of_all = self._budget(kind, event, address, now_ms), self._all[kind]
        of_event.grow(now_ms)
        of_all.grow(now_ms)
        if of_event.left < 1 or of_all.left < 1:
            self.left_out += 1
            if len(self._since) < _MOST_BUDGETS or event in self._since:
                self._since[event] += 1
            else:
                self._since["others"] += 1
            return False
        of_event.left -= 1
        of_all.left -= 1
        return True

    def summary(self, now_ms: float, *, at_once: bool = False) -> dict[str, int]:
        """How many lines were left out since the last summary, by event; empty: none, or too early.

        It names the events that were left out most, and sums up the ``others``.
        """
        if not self._since or (now_ms - self._told_ms < _SUMMARY_MS and not at_once):
            return {}
        self._told_ms = now_ms
        since, self._since = self._since, Counter()
        told = dict(since.most_common(_TOLD))
        others = since.total() - sum(told.values())
        return {**told, "others": others + told.get("others", 0)} if others else told

    def _budget(self, kind: Kind, event: str, address: str, now_ms: float) -> _Budget:
        key = kind, event, address
        if (budget := self._budgets.get(key)) is not None:
            return budget
        if len(self._budgets) >= _MOST_BUDGETS:
            self._forget_silent(now_ms)
        if len(self._budgets) >= _MOST_BUDGETS:
            key = kind, event if kind is Kind.CLIENT else "", ""
        rate, burst = _OF_EVENT
        if kind is Kind.CLIENT:
            rate = burst = float(self.lines_per_second)
        return self._budgets.setdefault(key, _Budget(rate, burst, burst, now_ms))

    def _forget_silent(self, now_ms: float) -> None:
        for key, budget in list(self._budgets.items()):
            budget.grow(now_ms)
            if budget.left >= budget.burst:
                del self._budgets[key]
