"""The partitions that a takeover has claimed, and their restored logs.

    stored claim ──▶ log at its sealed end ──slices of flush records, in order──▶ log at its end
                              │                   ╳ a gap: offline, with the reason
                              └─ an object is unreadable now: the claim is given back, or retained

The claim of an unreadable partition is retained if its last leader was a session of this disk:
records that were acknowledged with acks=1 may be only in its buffer files, and keep their offsets
as long as no other session leads the partition.

Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.leadership.claims import StoredClaim
from driftlog_agents.log.partition.partition import (
    NO_PRODUCER_ID,
    UNDEFINED_EPOCH,
    PartitionLog,
    State,
    StoredAt,
    TailSlice,
)
from driftlog_agents.log.partition.tail import FlushBatches, flushed_between, tail_slice
from driftlog_metadata.schema.codec import decode_at, decode_partition_state
from driftlog_metadata.schema.keys import partition_key
from driftlog_metadata.schema.model import FlushRecord, PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import Release
from driftlog_tiering.formats.flush_object import Footer

_BATCHES: Final = 100
"""Batches that are restored between two turns of the caller."""
_SLICES: Final = 2_000
"""Slices of one object that are added between two turns of the caller."""


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
    retained_before: Collection[TopicPartition] = ()
    """Partitions of which our session retained its claim at an earlier attempt."""
    retained: dict[TopicPartition, Release] = field(default_factory=dict)
    """The unreadable partitions whose claims our session keeps, and the releases of these."""
    fresh: set[TopicPartition] = field(default_factory=set)
    """Partitions that have never had a leader."""
    joined: set[TopicPartition] = field(default_factory=set)
    """Partitions whose keys did not list our session before its claim."""
    refused: set[TopicPartition] = field(default_factory=set)
    """Not claimed: another session leads them, or their topic is gone."""
    unreadable: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions with an object that is unreadable now, and the reason; they are not in `logs`
    once the takeover has ended."""
    damaged: dict[TopicPartition, str] = field(default_factory=dict)
    """Not claimed: one of their keys is missing or unreadable, and why."""

    without_records: set[str] = field(default_factory=set)
    """Listed sessions that had no flush record."""

    def add(self, stored: StoredClaim, session_id: str) -> None:
        """Adds the log of a stored claim of *session_id*; it ends at its sealed end so far."""
        claim, tp = stored.claim, stored.claim.tp
        state = claim.state_under(session_id)
        log = sealed_log(self.topics[tp.topic_id].name, tp, claim.epoch, state)
        log.leader_revision = stored.leader_revision
        log.partition_revision = stored.state_revision
        log.state = State.LOADING if state.manifest_version else State.ONLINE
        self.logs[tp] = log
        if claim.same_disk:
            self.continued.add(tp)
        if claim.leader is None:
            self.fresh.add(tp)
        if session_id not in claim.state.sessions:
            self.joined.add(tp)

    def lacks_footer(self, session_id: str, why: str) -> None:
        """A footer of the session cannot be read: the end of every partition that the session led
        is unknown."""
        self.unreadable.update(
            (tp, why) for tp, log in self.logs.items() if session_id in log.sessions
        )

    def behind(
        self, versions: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """Notes where each restored log ends; yields the logs whose newest manifests are ahead of
        their keys.  *versions*: of the newest manifests."""
        for tp, log in self.logs.items():
            log.recovered_end = log.high_watermark
            is_judged = tp in self.unreadable or log.state is State.OFFLINE
            if not is_judged and versions.get(tp, 0) > log.manifest_version:
                yield tp, log

    def take_offline(self) -> Iterator[PartitionLog]:
        """Makes the logs with a reason OFFLINE; yields each of them once."""
        for log in self.logs.values():
            if log.offline_reason and log.state is not State.OFFLINE:
                log.state = State.OFFLINE
                yield log

    def retain_claims(self, tps: Iterable[TopicPartition]) -> None:
        """Retains the claims of unreadable *tps* that continue from a session of this disk."""
        for tp in self.continued.intersection(tps):
            self.retained[tp] = self.end(tp)

    def end(self, tp: TopicPartition) -> Release:
        """Removes the log of *tp*, which is not served; returns the release of its claim."""
        log = self.logs.pop(tp)
        log.state = State.CLOSED
        return Release(tp, log.leader_epoch, log.leader_revision)

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


def sealed_log(topic: str, tp: TopicPartition, epoch: int, state: PartitionState) -> PartitionLog:
    """The log of *tp* by its key: it ends at its sealed end."""
    log = PartitionLog(
        topic=topic,
        topic_id=tp.topic_id,
        partition=tp.partition,
        leader_epoch=epoch,
        log_start=state.log_start,
        sealed_end=state.sealed_end,
    )
    log.sessions = state.sessions
    log.manifest_version = state.manifest_version
    return log


def state_of(log: PartitionLog) -> PartitionState:
    """The partition's key as *log* knows it."""
    return PartitionState(
        sealed_end=log.sealed_end,
        manifest_version=log.manifest_version,
        log_start=log.log_start,
        sessions=log.sessions,
    )


@dataclass(slots=True)
class LookedAt:
    """What is committed of partitions that any session leads, as far as it is known."""

    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    """They are closed; only their offsets and epochs are valid."""
    unknown: dict[TopicPartition, str] = field(default_factory=dict)
    """Why nothing is known of the others."""

    @classmethod
    def by_keys(
        cls,
        tps: Iterable[TopicPartition],
        topics: Mapping[UUID, TopicEntry],
        keys: Mapping[str, KeyValue],
    ) -> "LookedAt":
        """The logs as the partitions' *keys* show them, to their sealed ends."""
        found = cls()
        for tp in tps:
            entry, kv = topics.get(tp.topic_id), keys.get(partition_key(tp))
            if entry is None or kv is None:
                found.unknown[tp] = (
                    "its topic is unknown" if entry is None else "its key is missing"
                )
                continue
            try:
                state = decode_at(kv.key, kv.value, decode_partition_state)
            except CorruptError as error:
                found.unknown[tp] = str(error)
                continue
            log = sealed_log(entry.topic.name, tp, UNDEFINED_EPOCH, state)
            log.partition_revision = kv.mod_revision
            log.state = State.CLOSED
            found.logs[tp] = log
        return found

    def restored(
        self, unreadable: Mapping[TopicPartition, str], keys: Mapping[str, KeyValue]
    ) -> None:
        """Removes the logs whose tails are not known.  *keys*: read after the flush records, which
        sealing deletes: those read are complete if the key has not changed."""
        for tp, log in list(self.logs.items()):
            kv = keys.get(partition_key(tp))
            if kv is None or kv.mod_revision != log.partition_revision:
                self.unknown[tp] = "its key has changed while it was read"
            elif why := unreadable.get(tp) or log.offline_reason:
                self.unknown[tp] = why
            if tp in self.unknown:
                del self.logs[tp]


class TailSlices:
    """The slices of flush records above the sealed ends of *logs*."""

    def __init__(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._logs = logs
        self._found: dict[TopicPartition, list[tuple[TailSlice, Footer]]] = {}

    def add(self, record: FlushRecord, footer: Footer) -> Iterator[None]:
        """Adds the slices of an object; yields after some of them."""
        data: FlushBatches | None = None
        for n, s in enumerate(footer.slices(), 1):
            if not n % _SLICES:
                yield
            tp = TopicPartition(s.topic_id, s.partition)
            log = self._logs.get(tp)
            if log is None or s.end <= log.sealed_end:
                continue
            data = data or FlushBatches.of_footer(footer)
            stored_at = StoredAt(record.object_key, 0)
            tail = tail_slice(data, s, stored_at, flushed_between(footer, s))
            self._found.setdefault(tp, []).append((tail, footer))

    def in_order(
        self, unreadable: Collection[TopicPartition]
    ) -> Iterator[tuple[PartitionLog, list[tuple[TailSlice, Footer]]]]:
        """The slices of each log, by offset, without the *unreadable* partitions."""
        for tp, found in self._found.items():
            if tp not in unreadable:
                yield self._logs[tp], sorted(found, key=lambda entry: entry[0].base)


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
