"""When each partition is verified: once an interval, at a phase of its own.

    phase(partition) = its topic's id and its number, spread over the interval

1. The phase depends on neither the leader nor its start: after a move or a restart a partition is
   verified neither twice nor at once with all others.
2. A partition that was due while it had no leader waits for its next phase.
3. Of several that are due, the one that is due longest comes first.  So an agent whose pass takes
   longer than the interval verifies all partitions in turn.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
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

    def due(self, led: Iterable[TopicPartition], now_ms: int) -> TopicPartition | None:
        """The partition of *led* that is due longest; None: none is."""
        before = self._due_ms
        self._due_ms = {
            tp: min(before.get(tp, next_ms), next_ms)
            for tp in led
            for next_ms in (self._next_ms(tp, now_ms),)
        }
        first = min(self._due_ms, key=self._due_ms.__getitem__, default=None)
        return None if first is None or self._due_ms[first] > now_ms else first

    def verified(self, tp: TopicPartition, now_ms: int, *, repeat: bool) -> None:
        """*tp* waits for its next phase, or, with *repeat*, for a shorter time."""
        next_ms = self._next_ms(tp, now_ms)
        self._due_ms[tp] = min(next_ms, now_ms + self._settings.repeat_ms) if repeat else next_ms

    def overdue_ms(self, now_ms: int) -> int:
        """For how long the partition that is due longest has been due; 0: none is."""
        return max(0, now_ms - min(self._due_ms.values(), default=now_ms))

    def _next_ms(self, tp: TopicPartition, now_ms: int) -> int:
        """The first time after *now_ms* at the phase of *tp*."""
        interval_ms = self._settings.interval_ms
        spread_ms = int(tp.partition * _GOLDEN % 1 * interval_ms)
        return now_ms + interval_ms - (now_ms - tp.topic_id.int - spread_ms) % interval_ms
