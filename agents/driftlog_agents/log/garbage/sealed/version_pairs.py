"""When superseded manifest versions are collected: the next pair, and the partitions that are due.

    versions 4 5 6 7     (4, 5) ──grace after the PUT of 5──▶ collect what 4 names and 5 does not,
                                                              then 4 itself; then (5, 6) …

1. The oldest pair first.  A pair is of neighbours in one listing.
2. Grace runs from the PUT of the pair's later version, by the store's clock: until then an entitled
   reader may hold a list of files of the older one.
3. The newest version is the older one of no pair: it stays.

The schedule counts by the agent's clock.  It decides only when the store is asked.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Version:
    """A manifest version in a listing.  ``put_ms``: of its PUT, by the store's clock."""

    number: int
    put_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pair:
    """*older* may go, with what it names and *later* does not."""

    older: Version
    later: Version


@dataclass(frozen=True, slots=True)
class Wait:
    """The oldest pair is due after so long."""

    ms: int


def next_pair(versions: Sequence[Version], store_now_ms: int, grace: Grace) -> Pair | Wait | None:
    """What is due of *versions*, which ascend; None: nothing is superseded."""
    if len(versions) < 2:  # a pair
        return None
    older, later = versions[:2]
    assert older.number < later.number
    left_ms = later.put_ms + grace.ms - store_now_ms
    return Wait(left_ms) if left_ms > 0 else Pair(older, later)


@dataclass(frozen=True, slots=True)
class NamedPartition:
    """A partition and its topic's name."""

    topic: str
    tp: TopicPartition

    @property
    def name(self) -> str:
        """As log lines call it."""
        return f"{self.topic}-{self.tp.partition}"


class WalkSchedule:
    """Which partitions may have a due pair.  An idle partition without one has no entry."""

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._due_ms: dict[NamedPartition, float] = {}

    def __len__(self) -> int:
        return len(self._due_ms)

    def edited(self, partition: NamedPartition, now_ms: float) -> None:
        """Its manifest has a new version: the one before it is due after grace."""
        self._add(partition, now_ms + self._grace.ms)

    def superseded(self, partition: NamedPartition, now_ms: float) -> None:
        """A listing shows superseded versions, perhaps for long."""
        self._add(partition, now_ms)

    def again(self, partition: NamedPartition, now_ms: float, wait_ms: float = 0.0) -> None:
        """It was walked, and its next pair is due after *wait_ms*.  Edits that follow each other
        are walked together."""
        self._add(partition, now_ms + max(wait_ms, self._grace.short_ms))

    def take_due(self, now_ms: float) -> NamedPartition | None:
        """The partition to walk now, which is no longer scheduled; None: none is due."""
        partition = min(self._due_ms, key=self._due_ms.__getitem__, default=None)
        if partition is None or self._due_ms[partition] > now_ms:
            return None
        del self._due_ms[partition]
        return partition

    def _add(self, partition: NamedPartition, due_ms: float) -> None:
        self._due_ms[partition] = min(due_ms, self._due_ms.get(partition, due_ms))
