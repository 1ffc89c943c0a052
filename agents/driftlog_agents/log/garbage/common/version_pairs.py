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
class Versions:
    """The manifest versions of a partition, ascending, and the store's clock at the listing."""

    ascending: tuple[Version, ...]
    store_now_ms: int


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


@dataclass(slots=True)
class _Due:
    """``edited_here_ms``: when this agent last edited the partition; None: not that it knows."""

    at_ms: float
    edited_here_ms: float | None = None


class WalkSchedule:
    """Which partitions may have a due pair.  An idle partition without one has no entry.

    The agent that edits a partition walks it.  Another one that knows of superseded versions, by a
    listing or because it has edited the partition before, waits for *patience* longer: it walks
    what is left then, and where nothing is left another collector is at work.
    """

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._due: dict[NamedPartition, _Due] = {}

    def __len__(self) -> int:
        return len(self._due)

    def edited(self, partition: NamedPartition, now_ms: float) -> None:
        """Its manifest has a new version: the one before it is due after grace."""
        self._add(partition, now_ms + self._grace.ms, now_ms)

    def superseded(self, partition: NamedPartition, now_ms: float) -> None:
        """A listing shows superseded versions that are `overdue`."""
        self._add(partition, now_ms, None)

    def take_due(self, now_ms: float) -> "Walk | None":
        """The partition to walk now, which is no longer scheduled; None: none is due."""
        partition = min(self._due, key=lambda there: self._due[there].at_ms, default=None)
        if partition is None or self._due[partition].at_ms > now_ms:
            return None
        return Walk(partition, self._due.pop(partition).edited_here_ms)

    def again(self, walk: "Walk", now_ms: float, wait_ms: float = 0.0) -> None:
        """It was walked, and its next pair is due after *wait_ms*.  Edits that follow each other
        are walked together."""
        own = walk.is_own(now_ms, self._grace)
        wait_ms = max(wait_ms, self._grace.short_ms) + (0 if own else patience_ms(self._grace))
        self._add(walk.partition, now_ms + wait_ms, walk.edited_here_ms)

    def walked(self, walk: "Walk", walked: "Walked", now_ms: float) -> None:
        """*walk* has ended with *walked*: if something is left, it is walked again."""
        if walked.next is None:
            return
        if walked.pairs or walked.interrupted or walk.is_own(now_ms, self._grace):
            self.again(walk, now_ms, walked.next.ms)

    def _add(self, partition: NamedPartition, due_ms: float, edited_ms: float | None) -> None:
        before = self._due.get(partition)
        if before is None:
            self._due[partition] = _Due(due_ms, edited_ms)
            return
        before.at_ms = min(due_ms, before.at_ms)
        if edited_ms is not None:
            before.edited_here_ms = max(edited_ms, before.edited_here_ms or 0)


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk that is due."""

    partition: NamedPartition
    edited_here_ms: float | None = None

    def is_own(self, now_ms: float, grace: Grace) -> bool:
        """Whether what is due was edited by this agent, as far as it knows."""
        edited_ms = self.edited_here_ms
        return edited_ms is not None and now_ms - edited_ms <= grace.ms + patience_ms(grace)


@dataclass(slots=True)
class Walked:
    """What a walk did.  ``next``: when the next pair is due; None: nothing is superseded."""

    next: Wait | None
    pairs: int = 0
    """Versions that were collected."""
    interrupted: bool = False
    """Another collector is at work."""
    lists_missing: bool = False
    """A list of a superseded version was not there: what was in it may still be."""


def patience_ms(grace: Grace) -> int:
    """For how long a due pair is left to the agent that made it."""
    return 2 * grace.short_ms


def overdue(later_put_ms: int, store_now_ms: int, grace: Grace) -> bool:
    """Whether a pair whose later version was PUT then is due for so long that the agent that made
    it does not collect it."""
    return store_now_ms - later_put_ms > grace.ms + patience_ms(grace)
