"""Which partition the sealer attempts next, of those that are due.

    look ──▶ partitions that wait ──▶ take ──▶ attempt ──▶ ended: its topic has had so much time
                    ▲                                         │
                    └──────── still due at the next look ─────┘

The topic that has had least of the sealer's time is next, and of its partitions the one that has
had least, then the one with most to seal (`fair_queue`).  A batch of 1 kB may decode to 48 MiB: a
topic of such batches takes minutes, and delays the other topics by one attempt.  Near the bounds of
unsealed data, beyond which producers wait, the most urgent partition is next.

Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from driftlog_agents.foundation.fair_queue import Client, FairQueue
from driftlog_agents.log.partition.partition import PartitionLog

_CREDIT_MS: Final = 0.0
"""A topic that falls due is next after the attempts that run: it needs no credit."""


class SealTurns:
    """See the module; of one session."""

    def __init__(self) -> None:
        self._queue = FairQueue[PartitionLog](_CREDIT_MS)
        self._ends: dict[PartitionLog, Sequence[int | None]] = {}
        """Those that wait."""
        self._clients: dict[PartitionLog, Client] = {}
        """Those that wait or are attempted; the address is the topic."""
        self.attempted: set[PartitionLog] = set()
        """Those that are attempted now."""
        self._looked_too_early: set[PartitionLog] = set()
        """Those, and those whose attempt ended since the look began."""
        self._first: PartitionLog | None = None
        """It is next, whatever its topic has had."""

    @property
    def waiting(self) -> int:
        """So many partitions wait."""
        return len(self._ends)

    def begin_look(self) -> None:
        """A look at all partitions begins; attempts go on meanwhile."""
        self._looked_too_early = set(self.attempted)

    def end_look(
        self, due: Mapping[PartitionLog, Sequence[int | None]], *, near: bool = False
    ) -> None:
        """From now on those *due* wait, the most urgent first, and no others; *near* the bounds.

        *due*: up to where each is to be sealed, in one attempt after the other; None: as far as one
        segment goes.
        """
        before = self._ends
        self._ends = {log: ends for log, ends in due.items() if log not in self._looked_too_early}
        known = self._clients
        self._clients = {
            log: known.get(log) or Client(log.topic) for log in (*self._ends, *self.attempted)
        }
        for log in before:
            if log not in self._ends:
                self._queue.remove(log)
        for log in self._ends:
            self._queue.add(self._clients[log], log)
        self._first = next(iter(self._ends), None) if near else None

    def take(self) -> tuple[PartitionLog, Sequence[int | None]]:
        """The next partition, which is attempted from now on, and its ends; one must wait."""
        log, self._first = self._first, None
        if log is None:
            _, log = self._queue.take()
        else:
            self._queue.remove(log)
        self.attempted.add(log)
        self._looked_too_early.add(log)
        return log, self._ends.pop(log)

    def ended(self, log: PartitionLog, took_ms: float) -> None:
        """The attempts of *log* ended, and took so long."""
        self.attempted.discard(log)
        if self._queue:
            self._queue.spend(self._clients[log], took_ms)
