"""The flush records that this agent manages: its own session's, and those of dead sessions.

    a flush is committed here ───────────┐
    a session is over, managed here ─────┴▶ known ──all sealed, or its topics gone──▶ unneeded
      (its records and footers are read)     │
                                             └──chosen by `policy`──▶ rewritten ──▶ replaced

1. A record is unneeded only when each of its slices is below a known sealed end, or of a topic that
   is absent from a linearizable read of all topics, begun after the record was known.  A notice
   about a deleted topic only triggers that read.
2. A record of the rewrite in progress is deleted by it, or after its failure.
3. A record whose object cannot be read is neither deleted nor rewritten until it is read.

Pure.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Final
from uuid import UUID

from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_agents.log.consolidation.policy import (
    LAST_LEVEL,
    ConsolidationLag,
    ConsolidationSettings,
    choose,
    level_after,
)
from driftlog_agents.log.objects.availability import Availability
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_metadata.schema.codec import decode_partition_state
from driftlog_metadata.schema.keys import flush_key, parse_flush_key, partition_key
from driftlog_metadata.schema.model import FlushRecord, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import MAX_TXN_OPS, KeyValue
from driftlog_tiering.formats.flush_object import Footer

GONE: Final = 2**63 - 1
"""The sealed end of a partition whose topic is deleted."""

_PREFIX_FROM: Final = MAX_TXN_OPS
"""From this many partitions of one topic on, their keys are read as one range."""

_LONGEST_WAIT_MS: Final = 600_000
"""Longest time between two reads of an unreadable object.  Longer than elsewhere: no client waits
for it, and a rewrite that fails has read many other objects."""

Replacement = tuple[tuple[str, FlushRecord], Footer]
"""A new record with its key, and the footer of its object."""


class ManagedFlushRecords:
    """See the module."""

    def __init__(
        self, session_id: str, settings: ConsolidationSettings, seen: Collection[str]
    ) -> None:
        self.settings = settings
        self.own = SessionFlushRecords(session_id, dead=False)
        self._sessions: dict[str, SessionFlushRecords] = {session_id: self.own}
        self._finished: set[str] = set()
        """Dead sessions that have no flush record, and never will."""
        self._seen = frozenset(seen)
        """The live sessions in the view."""
        self._gone = DeletedTopics(limit=settings.deleted_topics)
        """Topics that are known to be deleted."""
        self._suspects: set[UUID] = set()
        """Topics that may be deleted."""
        self._unneeded: dict[str, FlushRecordEntry] = {}
        self._held: set[str] = set()
        """Records of the rewrite in progress."""
        self._unavailable = Availability[str](
            Random(session_id).random, longest_ms=_LONGEST_WAIT_MS
        )
        """Records with unreadable objects: rewrites leave them out meanwhile."""
        self.lag = ConsolidationLag(settings.waiting_records)

    def __len__(self) -> int:
        return sum(len(managed.index) for managed in self._sessions.values())

    def sessions(self) -> list[SessionFlushRecords]:
        """This session and the dead sessions that are managed here."""
        return list(self._sessions.values())

    # ── Sealed ends, deleted topics ──

    def committed(
        self,
        seq: int,
        record: FlushRecord,
        ends: Iterable[tuple[TopicPartition, int]],
        now_ms: float,
    ) -> None:
        """Flush *seq* of this session is committed; *ends*: the ends of its slices."""
        known = self.own.index.add(
            flush_key(self.own.session_id, seq),
            record,
            [(tp, end) for tp, end in ends if tp.topic_id not in self._gone],
            known_ms=now_ms,
        )
        if known is not None:
            self._forget([known])

    def sealed(self, tp: TopicPartition, end: int) -> None:
        """*tp* is sealed below *end*, as its key shows."""
        for managed in self._sessions.values():
            self._forget(managed.index.sealed(tp, end))

    def sealed_end(self, tp: TopicPartition) -> int:
        """The offset below which no batch of *tp* is needed; also called from worker threads."""
        if tp.topic_id in self._gone:
            return GONE
        sessions = tuple(self._sessions.values())  # copied at once: the event loop may change it
        return max(managed.index.sealed_end(tp) for managed in sessions)

    def unsealed(self) -> list[TopicPartition]:
        """Partitions of which a known record may have an unsealed slice."""
        wanted: dict[TopicPartition, None] = {}
        for managed in self._sessions.values():
            wanted |= dict.fromkeys(managed.index.unsealed())
        return list(wanted)

    def keys_read(self, tps: Iterable[TopicPartition], kvs: Iterable[KeyValue]) -> None:
        """The keys of *tps* were read: each shows a sealed end, or is gone with its topic."""
        found = {kv.key: kv.value for kv in kvs}
        for tp in tps:
            value = found.get(partition_key(tp))
            if value is None:
                self.suspect(tp.topic_id)
                continue
            with contextlib.suppress(CorruptError):  # the takeover of the partition reports it
                self.sealed(tp, decode_partition_state(value).sealed_end)

    def suspect(self, topic_id: UUID) -> None:
        """The topic may be deleted."""
        self._suspects.add(topic_id)

    def take_suspects(self) -> set[UUID]:
        """The topics that may be deleted, for a read of all topics that begins now."""
        suspects, self._suspects = self._suspects, set()
        return suspects

    def topics_gone(self, topic_ids: Collection[UUID]) -> list[TopicPartition]:
        """These topics are deleted, by a read that began after every known record was known.

        Returns their partitions that records have: the caller notes that these are sealed below
        `GONE`.
        """
        for topic_id in topic_ids:
            self._gone.add(topic_id)
        return [
            tp
            for managed in self._sessions.values()
            for tp in managed.index.partitions()
            if tp.topic_id in topic_ids
        ]

    # ── Dead sessions ──

    def has_ended(self, seen: Collection[str]) -> bool:
        """Whether a live session has disappeared from the view since the last call."""
        before, self._seen = self._seen, frozenset(seen)
        return bool(before - self._seen)

    def managed_here(self, dead: set[str], is_managed: Callable[[str], bool]) -> list[str]:
        """Forgets the sessions that are managed elsewhere by now; returns those of *dead* whose
        records must be loaded."""
        self._finished &= dead
        for session_id in [s for s, managed in self._sessions.items() if managed.dead]:
            if session_id not in dead or not is_managed(session_id):
                self.drop(session_id)
        known = self._sessions.keys() | self._finished
        return [one for one in sorted(dead) if one not in known and is_managed(one)]

    def finished(self, session_id: str) -> None:
        """A dead session has no flush record."""
        self._finished.add(session_id)

    def manage(self, managed: SessionFlushRecords) -> None:
        """The records of a dead session are loaded."""
        self._sessions[managed.session_id] = managed

    def drop(self, session_id: str) -> None:
        """The records of a dead session are managed elsewhere, or are loaded again."""
        self._sessions.pop(session_id, None)

    def add(
        self,
        managed: SessionFlushRecords,
        key: str,
        record: FlushRecord,
        footer: Footer,
        now_ms: float,
    ) -> None:
        """Adds a record by the footer of its object."""
        ends: list[tuple[TopicPartition, int]] = []
        sizes: list[int] = []
        positions, lengths = footer.columns[10:12]
        for s in footer.slices():
            if s.topic_id in self._gone:
                continue
            ends.append((TopicPartition(s.topic_id, s.partition), s.end))
            last = s.first + s.count - 1
            sizes.append(positions[last] + lengths[last] - positions[s.first])
        unneeded = managed.index.add(
            key,
            record,
            ends,
            sizes=sizes,
            level=parse_flush_key(key).level,
            known_ms=now_ms,
        )
        if unneeded is not None:
            self._forget([unneeded])

    # ── Unreadable objects ──

    def unreadable(self, key: str, now_ms: float) -> bool:
        """The record's object cannot be read now; True: log it."""
        return self._unavailable.failed(key, now_ms)

    def readable(self, key: str) -> bool:
        """The record's object was read, or is not needed; True: it was unreadable before."""
        return self._unavailable.found(key)

    def due_again(self, managed: SessionFlushRecords, now_ms: float) -> set[str]:
        """Records outside the index whose objects are to be read again now."""
        return {key for key in managed.unread if not self._unavailable.waits(key, now_ms)}

    def forget_readable(self) -> None:
        """Forgets which objects were unreadable where the record is not known any more."""
        there = {known.key for managed in self._sessions.values() for known in managed.index}
        there.update(key for managed in self._sessions.values() for key in managed.unread)
        self._unavailable.keep_only(there.__contains__)

    # ── Deletion ──

    def _forget(self, records: Iterable[FlushRecordEntry]) -> None:
        for known in records:
            self._unneeded[known.key] = known

    @property
    def has_unneeded(self) -> bool:
        """Whether a record is to be deleted, now or after the rewrite in progress."""
        return bool(self._unneeded)

    def to_delete(self) -> list[FlushRecordEntry]:
        """Unneeded records that one transaction deletes; empty: none."""
        free = [known for key, known in self._unneeded.items() if key not in self._held]
        return free[:MAX_TXN_OPS]

    def deleted(self, records: Iterable[FlushRecordEntry]) -> None:
        """The records do not exist any more."""
        for known in records:
            self._unneeded.pop(known.key, None)

    # ── Rewrites ──

    def to_rewrite(
        self, now_ms: float
    ) -> tuple[SessionFlushRecords, list[FlushRecordEntry]] | None:
        """The records to rewrite now, of one session; None: nothing is due."""
        for managed in self._sessions.values():
            records = sorted(
                (
                    known
                    for known in managed.index
                    if not self._unavailable.waits(known.key, now_ms)
                ),
                key=lambda known: known.key,
            )
            chosen = choose(records, self.settings, now_ms, dead=managed.dead)
            if chosen:
                return managed, chosen
        return None

    def hold(self, chosen: Iterable[FlushRecordEntry]) -> None:
        """A rewrite of *chosen* begins; none: it has ended."""
        self._held = {known.key for known in chosen}

    def new_keys(
        self, managed: SessionFlushRecords, chosen: Sequence[FlushRecordEntry], count: int
    ) -> list[str]:
        """The keys of *count* records that replace *chosen*: their indexes come after those of all
        records with the same sequence number and level that may exist."""
        seq = max(parse_flush_key(known.key).seq for known in chosen)
        level = level_after(chosen, self.settings)
        there = [*(known.key for known in managed.index), *self._unneeded, *managed.unread]
        taken = [
            at.index
            for at in map(parse_flush_key, there)
            if (at.session_id, at.seq, at.level) == (managed.session_id, seq, level)
        ]
        first = max(taken, default=-1) + 1
        return [flush_key(managed.session_id, seq, level, first + n) for n in range(count)]

    def replaced(
        self,
        managed: SessionFlushRecords,
        old: Sequence[FlushRecordEntry],
        new: Sequence[Replacement],
        now_ms: float,
    ) -> list[str]:
        """Replaces *old* by *new*; empty: all batches of *old* are sealed.  Returns the records
        that were unreadable before."""
        back = [known.key for known in old if self.readable(known.key)]
        for known in old:
            self._unneeded.pop(known.key, None)
            if known.key in managed.index:
                managed.index.drop(known)
        for (key, record), footer in new:
            self.add(managed, key, record, footer, now_ms)
        if not new:
            self._forget(old)
        return back

    def reread_own(self, before: Sequence[FlushRecordEntry], there: set[str]) -> set[str]:
        """The records of this session are *there* now; *before*: those in the index when the read
        began.  Returns the keys of rewritten records to load.

        Only this session replaces its own records: by an attempt that was cancelled.
        """
        index = self.own.index
        for known in before:
            if known.key not in there and known.key in index:
                index.drop(known)
        return {
            key
            for key in there
            if parse_flush_key(key).level and key not in index and key not in self._unneeded
        }

    def waiting(self) -> int:
        """Flushes of this session that wait for a rewrite: waiting producers do not reduce the
        number of unreadable records."""
        return sum(
            known.level < LAST_LEVEL and known.key not in self._unavailable
            for known in self.own.index
        )


def reads_of(
    tps: Iterable[TopicPartition],
) -> list[tuple[UUID | None, list[TopicPartition]]]:
    """The reads of the keys of *tps*: all keys of a topic as one range, or, without a topic, the
    keys of a few partitions in one transaction."""
    by_topic: dict[UUID, list[TopicPartition]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic_id, []).append(tp)
    reads: list[tuple[UUID | None, list[TopicPartition]]] = []
    few: list[TopicPartition] = []
    for topic_id, mine in by_topic.items():
        if len(mine) < _PREFIX_FROM:
            few += mine
        else:
            reads.append((topic_id, mine))
    reads += [(None, few[at : at + MAX_TXN_OPS]) for at in range(0, len(few), MAX_TXN_OPS)]
    return reads
