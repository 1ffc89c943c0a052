"""When each partition is verified: once an interval, at a phase of its own.

    phase(partition) = its topic's id and its number, spread over the interval

1. The phase depends on neither the leader nor its start: after a move or a restart a partition is
   verified neither twice nor at once with all others.
2. A partition that was due while it had no leader waits for its next phase.
3. Of several that are due, the one that is due longest comes first.  So an agent whose pass takes
   longer than the interval verifies all partitions in turn.
4. A heap has the partitions by their times, so that the next one is found without a look at the
   others.  It is made again, in steps, only when other partitions are led.

Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from driftlog_metadata.schema.model import TopicPartition

_GOLDEN: Final = 0.6180339887498949
"""Multiples of it, less their whole parts, are far from each other: partitions of one topic are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSettings:
    """How often, and how fast."""

    interval_ms: int = 7 * 86_400_000
    """Between two verifications of a partition.  Shorter: damage is found earlier; more requests,
    at least one for each 4 MiB."""

    bytes_per_s: int = 8 * 1024 * 1024
    """Most bytes of segments that are read a second: 4.6 TiB a week."""

    repeat_ms: int = 3_600_000
    """Until a partition that is damaged, or that could not be read, is verified again."""


class VerificationSchedule:
    """See the module.  Times are Unix time in ms; a clock that goes back delays by one interval."""

    def __init__(self, settings: VerificationSettings) -> None:
        self._settings = settings
        self._due_ms: dict[TopicPartition, int] = {}
        self._order: list[tuple[int, TopicPartition]] = []
        """A heap.  Where `_due_ms` has another time, an entry is not valid any more."""

    def follow(self, led: Iterable[TopicPartition], now_ms: int) -> Iterator[None]:
        """Make *led* the partitions that are verified, a little at each step of the iterator.  Also
        called when the clock has gone back."""
        due_ms: dict[TopicPartition, int] = {}
        order: list[tuple[int, TopicPartition]] = []
        for tp in led:
            next_ms = self._next_ms(tp, now_ms)
            due_ms[tp] = min(self._due_ms.get(tp, next_ms), next_ms)
            heappush(order, (due_ms[tp], tp))
            yield
        self._due_ms, before = due_ms, self._due_ms
        self._order, order = order, self._order
        while before or order:  # at once they would take milliseconds to free
            if before:
                before.popitem()
            if order:
                order.pop()
            yield

    def due(self, now_ms: int) -> TopicPartition | None:
        """The partition that is due longest; None: none is."""
        first = self._first()
        return None if first is None or first[0] > now_ms else first[1]

    def verified(self, tp: TopicPartition, now_ms: int, *, repeat: bool) -> None:
        """*tp* waits for its next phase, or, with *repeat*, for a shorter time."""
        next_ms = self._next_ms(tp, now_ms)
        due_ms = min(next_ms, now_ms + self._settings.repeat_ms) if repeat else next_ms
        self._due_ms[tp] = due_ms
        heappush(self._order, (due_ms, tp))

    def forget(self, tp: TopicPartition) -> None:
        """*tp* is not led any more; the next `follow` says which ones are."""
        self._due_ms.pop(tp, None)

    def overdue_ms(self, now_ms: int) -> int:
        """For how long the partition that is due longest has been due; 0: none is."""
        first = self._first()
        return 0 if first is None else max(0, now_ms - first[0])

    def _first(self) -> tuple[int, TopicPartition] | None:
        """The valid entry with the earliest time."""
        while self._order and self._due_ms.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)
        return self._order[0] if self._order else None

    def _next_ms(self, tp: TopicPartition, now_ms: int) -> int:
        """The first time after *now_ms* at the phase of *tp*."""
        interval_ms = self._settings.interval_ms
        spread_ms = int(tp.partition * _GOLDEN % 1 * interval_ms)
        return now_ms + interval_ms - (now_ms - tp.topic_id.int - spread_ms) % interval_ms
