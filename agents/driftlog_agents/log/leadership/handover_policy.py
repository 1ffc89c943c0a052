"""Which partitions are handed over next, how many at once, and how long their last flush may take.

    led here, placed elsewhere ──▶ by receiver: `group` busy ones, or `idle_group` in all

Pure.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State

_LONGEST_FLUSH_MS: Final = 10_000.0
"""Upper bound of `LeadershipSettings.flushed_ms` after repeated doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipSettings:
    """How partitions move between agents."""

    settle_ms: float = 300
    """Time between a new plan and its first hand-over.  Longer: fewer moves where agents start
    together; shorter: an agent that joins leads sooner."""

    group: int = 64
    """Busy partitions of each receiver that move at once.  More: a join is over sooner, and more
    partitions have no leader meanwhile."""

    idle_group: int = 1_024
    """All partitions of each receiver that move at once, with the idle ones: no client writes to
    these, and no consumer waits for their records."""

    taken_ms: float = 1_000
    """How long a receiver may take to lead its partitions before it gets more."""

    retry_ms: float = 300
    """Time between two attempts to claim a refused partition."""

    flushed_ms: float = 1_000
    """How long the last flush of a partition may take for it to move; doubled each time that the
    flush takes longer.  Longer: batches may wait as long before their admission; shorter: on a slow
    bucket partitions move later."""

    warm_up_ms: float = 150
    """How long a leaving agent waits before it stops: the others read footers meanwhile."""


def is_flushed(log: PartitionLog) -> bool:
    """Whether no batch of *log* is in flight."""
    return log.high_watermark == log.log_end


def may_pause(log: PartitionLog) -> bool:
    """Whether batches may wait before their admission.  Not while producer state is being loaded:
    an outage of the bucket could keep the batches waiting until it ends."""
    return log.state is State.ONLINE or (log.state is State.LOADING and bool(log.damage))


def is_busy(log: PartitionLog) -> bool:
    """Whether a client would notice a missing leader: a producer has written under this leader, or
    a consumer waits."""
    return bool(log.waiting_fetches) or log.log_end > (log.epochs[-1][1] if log.epochs else 0)


def is_movable(log: PartitionLog) -> bool:
    """Whether *log* may move; an offline partition stays on the agent that has its buffer files."""
    return log.state in (State.ONLINE, State.LOADING)


def next_to_move(
    misplaced: Iterable[tuple[PartitionLog, int]],
    agents: Container[int],
    settings: LeadershipSettings,
) -> list[PartitionLog]:
    """The next of *misplaced* to move, within each receiver's limits; only to *agents*."""
    found: list[PartitionLog] = []
    moving: dict[int, int] = {}
    busy: dict[int, int] = {}
    for log, node in misplaced:
        if not is_movable(log) or node not in agents:
            continue
        busy[node] = busy.get(node, 0) + is_busy(log)
        if moving.get(node, 0) < settings.idle_group and (
            busy[node] <= settings.group or not is_busy(log)
        ):
            moving[node] = moving.get(node, 0) + 1
            found.append(log)
    return found


class FlushDeadline:
    """How long the last flush before a hand-over may take."""

    def __init__(self, first_ms: float) -> None:
        self._first_ms = first_ms
        self.ms = first_ms

    def missed(self) -> bool:
        """Doubles the deadline; True: it has just reached its upper bound."""
        if self.ms >= _LONGEST_FLUSH_MS:
            return False
        self.ms = min(2 * self.ms, _LONGEST_FLUSH_MS)
        return self.ms == _LONGEST_FLUSH_MS

    def met(self) -> None:
        """Resets the deadline: every last flush was in time."""
        self.ms = self._first_ms
