"""What is handed over next, how much at once, and how long its last flush may take.

    led here, placed elsewhere ──▶ by receiver: `group` busy ones, or `idle_group` in all

Pure.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State

_LONGEST_FLUSH_MS: Final = 10_000.0
"""Of `LeadershipSettings.flushed_ms`, however often it was not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipSettings:
    """How partitions move."""

    settle_ms: float = 300
    """Before a new plan's first hand-over.  Longer: fewer moves where agents start together;
    shorter: an agent that joins leads sooner."""

    group: int = 64
    """Partitions of each receiver that are on their way at once.  More: a join is over sooner,
    and more partitions are without a leader meanwhile."""

    idle_group: int = 1_024
    """The same of partitions to which nothing is written and of which no consumer waits to
    read."""

    taken_ms: float = 1_000
    """How long a receiver may take to lead what was released to it before more is."""

    retry_ms: float = 300
    """Between two attempts to claim what was refused."""

    flushed_ms: float = 1_000
    """How long the commit of what a partition has in flight may take for it to be moved; twice as
    long each time that it takes longer.  Longer: batches may wait for as long before they are
    admitted; shorter: on a slow bucket partitions move later."""

    warm_up_ms: float = 150
    """How long an agent that leaves waits before it stops, for the others to read what they will
    need."""


def is_flushed(log: PartitionLog) -> bool:
    """Whether nothing of it is in flight."""
    return log.high_watermark == log.log_end


def may_pause(log: PartitionLog) -> bool:
    """Whether batches may wait before their admission.  Where they wait for producers that are
    loaded as well, an outage of the bucket could keep them for as long as it lasts."""
    return log.state is State.ONLINE or (log.state is State.LOADING and bool(log.damage))


def is_busy(log: PartitionLog) -> bool:
    """Whether a client would notice that it has no leader: it was written to under this one, or a
    consumer waits."""
    return bool(log.waiting_fetches) or log.log_end > (log.epochs[-1][1] if log.epochs else 0)


def is_movable(log: PartitionLog) -> bool:
    """Whether it may be led elsewhere: what is offline stays where its buffer files are."""
    return log.state in (State.ONLINE, State.LOADING)


def next_to_move(
    misplaced: Iterable[tuple[PartitionLog, int]],
    agents: Container[int],
    settings: LeadershipSettings,
) -> list[PartitionLog]:
    """Some of *misplaced*, for each of its receivers that is one of *agents*."""
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
    """How long the last flush of what is handed over may take."""

    def __init__(self, first_ms: float) -> None:
        self._first_ms = first_ms
        self.ms = first_ms

    def missed(self) -> bool:
        """Wait longer next time; True: it has just become as long as it may be."""
        if self.ms >= _LONGEST_FLUSH_MS:
            return False
        self.ms = min(2 * self.ms, _LONGEST_FLUSH_MS)
        return self.ms == _LONGEST_FLUSH_MS

    def met(self) -> None:
        """All that was handed over was flushed in time."""
        self.ms = self._first_ms
