"""Sealed ranges that memory or buffer files still hold: fetches read them without the bucket.

    sealed ──▶ remembered, oldest first ──▶ forgotten when its file is used again, or
                                            when what is remembered takes too much memory

Consumers a little behind the tail would otherwise read ranges from the bucket that were sealed a
moment ago.  Fetches read a forgotten range from its segment.

Pure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches

_MAX_BYTES: Final = 32 * 1024 * 1024
"""Of positions.  More: consumers further behind read no segment; shorter flushes need more."""

_SLICE_BYTES: Final = 1_200
_BATCH_BYTES: Final = 40
"""Measured: a slice of a flush with few partitions takes 850 to 1,300 bytes beside its batches."""


class SealedCache:
    """The sealed slices of one session that are still local."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._remembered: deque[tuple[PartitionLog, TailSlice]] = deque()
        self._compacted = 0
        """Of these, the slices that `forget` has taken from their partitions."""
        self._bytes = 0

    def add(self, log: PartitionLog, sealed: Iterable[TailSlice]) -> None:
        """Remember *sealed*, slices that just left the tail of *log*, in offset order."""
        for tail in sealed:
            if _is_here(tail) and tail.base >= log.compacted_end:
                log.sealed_slices.append(tail)
                self._remembered.append((log, tail))
                self._bytes += _bytes_of(tail)
        self.trim()

    def forget(self, log: PartitionLog, end: int) -> None:
        """Forget the slices of *log* that begin below *end*, and remember no more of them."""
        gone = bisect_left(log.sealed_slices, end, key=lambda tail: tail.base)
        self._bytes -= sum(map(_bytes_of, log.sealed_slices[:gone]))
        del log.sealed_slices[:gone]
        log.compacted_end = max(end, log.compacted_end)
        self._compacted += gone
        if self._compacted > len(self._remembered) / 2:
            self._remembered = deque(
                (log, tail) for log, tail in self._remembered if not _is_compacted(log, tail)
            )
            self._compacted = 0
        self.trim()

    def trim(self) -> None:
        """Forget slices that are no longer local, and the oldest above the limit."""
        while self._remembered:
            log, tail = self._remembered[0]
            if _is_compacted(log, tail):
                self._remembered.popleft()
                self._compacted -= 1
                continue
            wanted = self._bytes <= self._max_bytes and log.state is not State.CLOSED
            if wanted and _is_here(tail):
                return
            self._remembered.popleft()
            self._bytes -= _bytes_of(tail)
            forgotten = log.sealed_slices.pop(0)
            assert forgotten is tail, "slices of a partition are forgotten in their order"


def _is_compacted(log: PartitionLog, tail: TailSlice) -> bool:
    """Whether `SealedCache.forget` has taken *tail* from the slices of *log*."""
    return tail.base < log.compacted_end


def _bytes_of(tail: TailSlice) -> int:
    return _SLICE_BYTES + _BATCH_BYTES * tail.count


def _is_here(tail: TailSlice) -> bool:
    assert isinstance(tail.data, FlushBatches)
    return tail.data.is_local
