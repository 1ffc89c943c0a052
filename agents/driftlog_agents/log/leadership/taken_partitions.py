"""The partitions that a takeover has claimed, and their restored logs.

    stored claim ──▶ log at its sealed end ──slices of flush records, in order──▶ log at its end
                                                  ╳ a gap: offline, with the reason

Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from driftlog_agents.log.leadership.claims import StoredClaim
from driftlog_agents.log.partition.partition import (
    NO_PRODUCER_ID,
    PartitionLog,
    State,
    TailSlice,
)
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats.flush_object import Footer

_BATCHES: Final = 100
"""Batches that are restored between two turns of the caller."""


@dataclass(slots=True)
class Taken:
    """The result of a takeover."""

    old_sessions: list[str] = field(default_factory=list)
    """Dead sessions of this disk, oldest first."""
    closed: dict[str, KeyValue] = field(default_factory=dict)
    """Heads of those, as they were before they were closed."""
    buffered: set[str] = field(default_factory=set)
    """Those with directories on this disk: acknowledged batches may be only there."""
    topics: dict[UUID, Topic] = field(default_factory=dict)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    continued: set[TopicPartition] = field(default_factory=set)
    """Partitions claimed from a session whose buffer files are on this disk."""
    fresh: set[TopicPartition] = field(default_factory=set)
    """Partitions that have never had a leader."""
    joined: set[TopicPartition] = field(default_factory=set)
    """Partitions whose keys did not list our session before its claim."""
    refused: set[TopicPartition] = field(default_factory=set)
    """Not claimed: another session leads them, or their topic is gone."""
    unreadable: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions whose claims were released because an object is unreadable now, and the reason."""
    damaged: dict[TopicPartition, str] = field(default_factory=dict)
    """Not claimed: one of their keys is missing or unreadable, and why."""

    without_records: set[str] = field(default_factory=set)
    """Listed sessions that had no flush record."""

    def add(self, stored: StoredClaim, session_id: str) -> None:
        """Adds the log of a stored claim of *session_id*; it ends at its sealed end so far."""
        claim, tp = stored.claim, stored.claim.tp
        state = claim.state_under(session_id)
        log = PartitionLog(
            topic=self.topics[tp.topic_id].name,
            topic_id=tp.topic_id,
            partition=tp.partition,
            leader_epoch=claim.epoch,
            log_start=state.log_start,
            sealed_end=state.sealed_end,
        )
        log.sessions = state.sessions
        log.leader_revision = stored.leader_revision
        log.partition_revision = stored.state_revision
        log.manifest_version = state.manifest_version
        log.state = State.LOADING if state.manifest_version else State.ONLINE
        self.logs[tp] = log
        if claim.same_disk:
            self.continued.add(tp)
        if claim.leader is None:
            self.fresh.add(tp)
        if session_id not in claim.state.sessions:
            self.joined.add(tp)

    def needing(self, tp: TopicPartition) -> set[str]:
        """Sessions that stay in the partition's list whatever its log contains."""
        if tp not in self.unreadable:
            return self.buffering(tp)
        # The log is incomplete: any session with flush records may have flushed the unread part.
        return self.buffering(tp) | set(self.logs[tp].sessions) - self.without_records

    def buffering(self, tp: TopicPartition) -> set[str]:
        """Sessions that stay in the partition's list because their directories may hold
        acknowledged batches of it.  Once another disk's agent has led it, these batches have no
        place in its log."""
        return self.buffered if tp in self.continued else set()


def restoring(
    log: PartitionLog, found: Iterable[tuple[TailSlice, Footer]], now_ms: float
) -> Iterator[tuple[int, list[int]]]:
    """Adds *found*, in the order of offsets, to *log*, some batches at a time; yields their number
    and their producer ids.  At a gap it stops and sets `offline_reason`."""
    for tail, footer in found:
        log.offline_reason = gap_before(log, tail)
        if log.offline_reason:
            return
        log.restore(tail, now_ms)
        end = tail.first + tail.count
        for first in range(tail.first, end, _BATCHES):
            some = [footer.batch(index) for index in range(first, min(first + _BATCHES, end))]
            producers: list[int] = []
            for batch in some:
                log.start_epoch(batch.leader_epoch, batch.base_offset)
                if batch.producer_id != NO_PRODUCER_ID:
                    producers.append(batch.producer_id)
                    log.producers.append(
                        batch.producer_id,
                        batch.producer_epoch,
                        batch.base_sequence,
                        batch.last_offset_delta + 1,
                        batch.base_offset,
                        now_ms,
                    )
            yield len(some), producers


def gap_before(log: PartitionLog, tail: TailSlice) -> str:
    """Why *tail* does not continue *log*; empty: it does.

    The first slice may begin below the sealed end, which may lie in the middle of a flush.
    """
    overlaps = tail.base < log.high_watermark and log.high_watermark != log.sealed_end
    if tail.base <= log.high_watermark and not overlaps:
        return ""
    return (
        f"committed data does not join: [{tail.base}, {tail.end}) follows {log.high_watermark}; "
        f"a flush record is missing"
    )
