"""Garbage collection of flush records: unneeded ones are deleted, the others become few.

    a flush is committed here ───────────┐
    a session is over, managed here ─────┴▶ known ──all sealed, or its topics gone──▶ deleted
      (its records and footers are read)     │
                                             └──a minute old, or many──▶ fewer objects
                                                  ──one transaction──▶ known; the tail is updated

1. A record is deleted only when each of its slices is below a known sealed end, or of a topic that
   is absent from a linearizable read of all topics, begun after the record was known.  A notice
   about a deleted topic only triggers that read.
2. The sealer reports the sealed ends of partitions led here; those of others are read from the
   partitions' keys.
3. A live session alone rewrites its records; one agent rewrites those of a dead session.  The
   transaction succeeds only if each record is unchanged since it was read (`flush_transactions`).
4. A rewritten object is named within an hour of its PUT, or never.
5. One rewrite runs at a time, with its own requests; none while stores fail.

A failure leaves only objects that no record names, and the next attempt starts afresh.

Source: design.md, "Forget".

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.tasks import first_of
from driftlog_agents.log.consolidation.final_heads import FinalHeads
from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_agents.log.consolidation.object_rewriter import ObjectRewriter
from driftlog_agents.log.consolidation.policy import (
    LAST_LEVEL,
    ConsolidationLag,
    ConsolidationSettings,
    choose,
)
from driftlog_agents.log.consolidation.rewrite_job import Replacement, RewriteJob
from driftlog_agents.log.objects.availability import (
    Availability,
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_agents.log.objects.flush_record_reads import FlushRecordReads
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.segment_writer import Spool
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.session_health import SessionHealth
from driftlog_agents.log.session.unknown_keys import UnknownKeys, head_of, session_of
from driftlog_metadata.schema.codec import (
    decode_partition_state,
)
from driftlog_metadata.schema.keys import (
    HEADS_PREFIX,
    SESSIONS_PREFIX,
    flush_key,
    parse_flush_key,
    partition_key,
    partitions_prefix,
)
from driftlog_metadata.schema.model import FlushRecord, TopicPartition
from driftlog_metadata.stores.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.store import MAX_TXN_OPS, Get, KeyValue
from driftlog_metadata.transactions import flush_transactions
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_tiering.formats.flush_object import CorruptFlushObjectError, Footer
from driftlog_tiering.stores.object_store import ObjectStore

_GONE: Final = 2**63 - 1
_FOOTERS_AT_ONCE: Final = 32
"""Records of a dead session whose footers are read together."""

_FOOTER_READS_AT_ONCE: Final = 4
"""An eighth of the reads of a takeover, for which clients wait."""

_PREFIX_FROM: Final = MAX_TXN_OPS
"""From this many partitions of one topic on, their keys are read as one range."""

_LONGEST_WAIT_MS: Final = 600_000
"""Longest time between two reads of an unreadable object.  Longer than elsewhere: no client waits
for it, and a rewrite that fails has read many other objects."""

_RETRY_MS: Final = 10_000
"""Time before the next rewrite after a failed one."""


class FlushRecordGc:
    """See the module.

    Args:
        logs: returns the partition's log if it is led here.
        kept: whether this agent manages the records of that session, which is over.
        seen: the live sessions in the view: when one disappears, the dead sessions are read soon.
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
        health: consolidation waits while flushes fail.
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        footers: FooterCache,
        logs: Callable[[TopicPartition], PartitionLog | None],
        kept: Callable[[str], bool],
        seen: Callable[[], Collection[str]],
        settings: ConsolidationSettings,
        rng: Random,
        now_ms: Callable[[], float],
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        backpressure: Backpressure,
        health: SessionHealth,
        strangers: UnknownKeys | None = None,
    ) -> None:
        self._session = session
        self._footers = footers
        self._logs = logs
        self._is_kept = kept
        self._seen = seen
        self._seen_before: frozenset[str] = frozenset(seen())
        self._settings = settings
        self._now_ms = now_ms
        self._offload = offload
        self._flushes = health.flushes
        self._backpressure = backpressure
        self._consolidator = RewriteJob(
            session=session,
            footers=footers,
            rewriting=ObjectRewriter(
                objects=objects, offload=offload, spool=spool, rng=rng, now_ms=now_ms
            ),
            keeping=self,
            logs=logs,
            settings=settings,
            offload=offload,
            now_ms=now_ms,
        )
        self._log = structlog.get_logger()
        self._strangers = strangers or UnknownKeys()
        self._reads = FlushRecordReads(
            session, footers, self._strangers, at_once=_FOOTER_READS_AT_ONCE
        )
        self.final_heads = FinalHeads(session, objects)
        self._own = SessionFlushRecords(session.session_id, dead=False)
        self._sessions: dict[str, SessionFlushRecords] = {session.session_id: self._own}
        self._finished: set[str] = set()
        """Dead sessions that have no flush record, and never will."""
        self._gone = DeletedTopics()
        """Topics that are known to be deleted."""
        self._suspects: set[UUID] = set()
        """Topics that may be deleted."""
        self._forgettable: dict[str, FlushRecordEntry] = {}
        self._held: set[str] = set()
        """Records of the rewrite in progress: they are deleted by it, or after its failure."""
        self._forget_wanted = asyncio.Event()
        self._look_wanted = asyncio.Event()
        """Wakes `_looking` early: a topic may be deleted, or `_has_ended`."""
        self._look_wanted.set()
        self._has_ended = True  # perhaps this agent's last session
        self._retry_at_ms = 0.0
        self._unavailable = Availability[str](
            Random(session.session_id).random, longest_ms=_LONGEST_WAIT_MS
        )
        """Records with unreadable objects: rewrites leave them out meanwhile."""
        self.outage = health.consolidation
        """Since when every attempt to consolidate has failed."""
        self.lag = ConsolidationLag(settings.waiting_records)

    @property
    def records(self) -> int:
        """Number of known records of this session and of the dead sessions managed here."""
        return sum(len(kept.index) for kept in self._sessions.values())

    @property
    def rewrites(self) -> int:
        """Number of consolidations so far."""
        return self._consolidator.rewrites

    @property
    def rewritten_bytes(self) -> int:
        """Bytes of the objects that the consolidations wrote."""
        return self._consolidator.rewritten_bytes

    # ── Notifications ──

    def committed(
        self, seq: int, record: FlushRecord, ends: Iterable[tuple[TopicPartition, int]]
    ) -> None:
        """Notes that flush *seq* of this session is committed; *ends*: the ends of its slices."""
        known = self._own.index.add(
            flush_key(self._own.session_id, seq),
            record,
            [(tp, end) for tp, end in ends if tp.topic_id not in self._gone],
            known_ms=self._now_ms(),
        )
        if known is not None:
            self._forget([known])

    def sealed(self, tp: TopicPartition, end: int) -> None:
        """Notes that *tp* is sealed below *end*, as its key shows."""
        for kept in self._sessions.values():
            self._forget(kept.index.sealed(tp, end))

    def topic_gone(self, topic_id: UUID) -> None:
        """Notes that the topic is deleted, or is about to be; the topics are read soon."""
        self._suspects.add(topic_id)
        self._look_wanted.set()

    # ── Life ──

    async def run(self) -> None:
        """Deletes and consolidates flush records until cancelled.

        Raises:
            FencedError: the session is over.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forgetting())
                tasks.create_task(self._looking())
                tasks.create_task(self._consolidating())
                tasks.create_task(self._hold_back())
        except* FencedError as group:
            raise FencedError(str(first_of(group))) from group

    async def _forgetting(self) -> None:
        while True:
            await self._forget_wanted.wait()
            self._forget_wanted.clear()
            await self.forget()

    async def _looking(self) -> None:
        settings = self._settings
        due_ms = self._now_ms() + settings.sealed_interval_ms
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((due_ms - self._now_ms()) / 1000):
                    await self._look_wanted.wait()
            self._look_wanted.clear()
            if self._has_ended:
                await asyncio.sleep(settings.ended_ms / 1000)
            if self._has_ended or self._now_ms() >= due_ms:
                self._has_ended = False
                await self.look()
                due_ms = self._now_ms() + settings.sealed_interval_ms
            else:
                await self._look_for_topics()

    def _notice_ends(self) -> None:
        seen = frozenset(self._seen())
        if self._seen_before - seen:
            self._has_ended = True
            self._look_wanted.set()
        self._seen_before = seen

    async def _consolidating(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            self._notice_ends()
            while await self.consolidate():
                pass

    async def _hold_back(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            self.hold_back()

    def hold_back(self) -> None:
        """Holds producers back while too many flushes of this session wait for consolidation."""
        kept, lag = self._own, self.lag
        behind = lag.behind
        # Waiting producers do not reduce the number of unreadable records.
        waiting = sum(
            known.level < LAST_LEVEL and known.key not in self._unavailable for known in kept.index
        )
        # While rewrites fail, holding producers back would not help, and might last for days.
        failing = self.outage.since_ms is not None
        lag.update(0 if failing else waiting)
        self._backpressure.set("consolidation", held=lag.held)
        if lag.behind and not behind:
            self._log.warning(
                "consolidation_behind",
                records=waiting,
                advice="producers are slowed to the rate of consolidation: give the agent more "
                "cores, or the partitions to more agents",
            )
        elif behind and not lag.behind and not failing:
            self._log.info("consolidation_caught_up", records=waiting)

    # ── Forget ──

    def _forget(self, records: Iterable[FlushRecordEntry]) -> None:
        for known in records:
            self._forgettable[known.key] = known
            self._forget_wanted.set()

    async def forget(self) -> None:
        """Deletes the unneeded records; the collector deletes their objects after the grace period.

        Raises:
            FencedError: the session is over.
        """
        while batch := [known for key, known in self._forgettable.items() if key not in self._held][
            :MAX_TXN_OPS
        ]:
            if not await self._delete(batch):
                for known in batch:  # one is deleted already, perhaps by an earlier try
                    await self._delete([known])
            for known in batch:
                self._forgettable.pop(known.key, None)
                self._footers.drop(known.record.object_key)

    async def _delete(self, batch: Sequence[FlushRecordEntry]) -> bool:
        txn = flush_transactions.forget([(known.key, known.record) for known in batch])
        return (await self._session.transact(txn)).succeeded

    # ── Changes by other agents ──

    async def look(self) -> None:
        """Reads which sessions are over and managed here, and what other agents have sealed.

        Raises:
            FencedError: our own session is over.
        """
        ended = await self._look_for_sessions()
        await self._look_again()
        await self._look_for_sealed()
        await self._look_for_topics()
        await self.final_heads.put(ended)

    async def _look_for_sessions(self) -> list[str]:
        """Returns the dead sessions that are managed here."""
        # Heads first: a head and its session's key are created together.
        heads = await self._reads.named(HEADS_PREFIX, head_of)
        live = await self._reads.named(SESSIONS_PREFIX, session_of)
        dead = heads - live
        self._finished &= dead
        for session_id in [s for s, kept in self._sessions.items() if kept.dead]:
            if session_id not in dead or not self._is_kept(session_id):
                del self._sessions[session_id]
        ended = [session_id for session_id in sorted(dead) if self._is_kept(session_id)]
        for session_id in ended:
            if session_id not in self._sessions and session_id not in self._finished:
                await self._load(session_id)
        return ended

    async def _load(self, session_id: str) -> None:
        """Loads the flush records of a session that is over."""
        kvs = await self._reads.records(session_id)
        if not kvs:
            self._finished.add(session_id)
            return
        kept = SessionFlushRecords(session_id, dead=True)
        for at in range(0, len(kvs), _FOOTERS_AT_ONCE):
            if not await self._know(kept, kvs[at : at + _FOOTERS_AT_ONCE]):
                return  # its records changed meanwhile: retried later
        self._sessions[session_id] = kept
        self._log.info(
            "session_kept",
            session=session_id,
            records=len(kvs),
            advice="no action needed; this agent now manages the dead session's unsealed data",
        )

    async def _know(self, kept: SessionFlushRecords, kvs: Sequence[KeyValue]) -> bool:
        """Adds these records, except unreadable ones; False: one was deleted meanwhile."""
        try:
            footers = await self._reads.footers(kvs)
        except RecordGoneError:
            return False
        for key, why in footers.unavailable.items():
            kept.unread.add(key)
            self.unavailable(kept, key, why)
        for key, record, footer in footers.found:
            self._now_read(key)
            self._add(kept, key, record, footer)
            await asyncio.sleep(0)  # a record of a thousand partitions takes milliseconds
        return True

    def _add(
        self, kept: SessionFlushRecords, key: str, record: FlushRecord, footer: Footer
    ) -> None:
        ends: list[tuple[TopicPartition, int]] = []
        sizes: list[int] = []
        positions, lengths = footer.columns[10:12]
        for s in footer.slices():
            if s.topic_id in self._gone:
                continue
            ends.append((TopicPartition(s.topic_id, s.partition), s.end))
            last = s.first + s.count - 1
            sizes.append(positions[last] + lengths[last] - positions[s.first])
        unneeded = kept.index.add(
            key,
            record,
            ends,
            sizes=sizes,
            level=parse_flush_key(key).level,
            known_ms=self._now_ms(),
        )
        if unneeded is not None:
            self._forget([unneeded])

    def unavailable(self, kept: SessionFlushRecords, key: str, reason: str) -> None:
        """See `FlushRecordOwner`."""
        if self._unavailable.failed(key, self._now_ms()):
            self._log.error(
                "flush_object_unavailable",
                session=kept.session_id,
                record=key,
                reason=reason,
                advice="restore the object; its record is unchanged, and the agent retries. If it "
                "is gone for good: driftlog partitions accept-loss",
            )

    def _now_read(self, key: str) -> None:
        if self._unavailable.found(key):
            self._log.info("flush_object_readable_again", record=key)

    async def _look_again(self) -> None:
        """Retries the records whose objects were unreadable."""
        now_ms = self._now_ms()
        for kept in list(self._sessions.values()):
            due = {key for key in kept.unread if not self._unavailable.waits(key, now_ms)}
            if not due:
                continue
            kvs = [kv for kv in await self._reads.records(kept.session_id) if kv.key in due]
            kept.unread -= due
            for at in range(0, len(kvs), _FOOTERS_AT_ONCE):
                some = kvs[at : at + _FOOTERS_AT_ONCE]
                if not await self._know(kept, some):
                    kept.unread |= {kv.key for kv in some}  # retried later
        there = {known.key for kept in self._sessions.values() for known in kept.index}
        there.update(key for kept in self._sessions.values() for key in kept.unread)
        self._unavailable.keep_only(there.__contains__)

    async def _look_for_sealed(self) -> None:
        wanted: dict[TopicPartition, None] = {}
        for kept in self._sessions.values():
            wanted |= dict.fromkeys(kept.index.unsealed())
        elsewhere: dict[UUID, list[TopicPartition]] = {}
        for tp in wanted:
            log = self._logs(tp)
            if log is not None and log.state is not State.CLOSED:
                self.sealed(tp, log.sealed_end)
            else:
                elsewhere.setdefault(tp.topic_id, []).append(tp)
        one_by_one: list[TopicPartition] = []
        for topic_id, tps in elsewhere.items():
            if len(tps) < _PREFIX_FROM:
                one_by_one += tps
                continue
            self._read_states(tps, await self._session.read_prefix(partitions_prefix(topic_id)))
        for at in range(0, len(one_by_one), MAX_TXN_OPS):
            tps = one_by_one[at : at + MAX_TXN_OPS]
            txn = Txn((), tuple(Get(partition_key(tp)) for tp in tps))
            result = await self._session.transact(txn)
            self._read_states(tps, [kv for kvs in result.reads for kv in kvs])

    def _read_states(self, tps: Iterable[TopicPartition], kvs: Iterable[KeyValue]) -> None:
        found = {kv.key: kv.value for kv in kvs}
        for tp in tps:
            value = found.get(partition_key(tp))
            if value is None:
                self._suspects.add(tp.topic_id)  # a deleted topic's keys are gone
                continue
            with contextlib.suppress(CorruptError):  # the takeover of the partition reports it
                self.sealed(tp, decode_partition_state(value).sealed_end)

    async def _look_for_topics(self) -> None:
        suspects, self._suspects = self._suspects, set()
        if not suspects:
            return
        # Every known record was read or committed before this read begins.
        there = await self._reads.topic_ids()
        if there is None:
            return  # the unreadable topic may be any of them
        for topic_id in suspects - there:
            self._gone.add(topic_id)
            for kept in self._sessions.values():
                self._forget(kept.index.topic_gone(topic_id))

    def sealed_end(self, tp: TopicPartition) -> int:
        """See `FlushRecordOwner`."""
        if tp.topic_id in self._gone:
            return _GONE
        sessions = tuple(self._sessions.values())  # copied at once: a worker thread may call this
        return max(kept.index.sealed_end(tp) for kept in sessions)

    # ── Consolidate ──

    async def consolidate(self) -> bool:
        """Rewrites the due records of one session; False: none was due, or the rewrite failed.

        Raises:
            FencedError: the session is over.
        """
        now_ms = self._now_ms()
        if now_ms < self._retry_at_ms or self._flushes.since_ms is not None:
            return False
        for kept in list(self._sessions.values()):
            records = sorted(
                (known for known in kept.index if not self._unavailable.waits(known.key, now_ms)),
                key=lambda known: known.key,
            )
            chosen = choose(records, self._settings, now_ms, dead=kept.dead)
            if chosen:
                return await self._attempt(kept, chosen)
        return False

    async def _attempt(self, kept: SessionFlushRecords, chosen: list[FlushRecordEntry]) -> bool:
        began_ms = self._now_ms()
        self._held = {known.key for known in chosen}
        done = False
        try:
            done = await self._consolidator.rewrite(kept, chosen)
        except (ObjectUnavailableError, DamagedObjectError) as error:
            for known in chosen:
                if known.record.object_key == error.key:
                    self.unavailable(kept, known.key, str(error))
            return True
        except CorruptFlushObjectError as error:
            for known in chosen:
                self.unavailable(kept, known.key, str(error))
        except (UnavailableError, OutcomeUnknownError, TimeoutError, CorruptError) as error:
            self._failed(str(error) or repr(error), began_ms)
        else:
            if not done:
                self._retry_at_ms = self._now_ms() + _RETRY_MS
            if self.outage.ended(self._now_ms()):
                self._log.info("consolidation_resumed", failures=self.outage.failures)
        finally:
            self._held = set()
            self._forget_wanted.set()
        return done

    def _failed(self, error: str, began_ms: float) -> None:
        now_ms = self._now_ms()
        self._retry_at_ms = now_ms + _RETRY_MS
        if self.outage.failed(error, began_ms, now_ms):
            self._log.warning(
                "consolidation_failed",
                error=error,
                failures=self.outage.failures,
                advice="retrying; until then there are more flush records than necessary",
            )

    async def know_again(self, kept: SessionFlushRecords) -> None:
        """See `FlushRecordOwner`."""
        self._log.info("flush_records_changed", session=kept.session_id)
        if kept.dead:
            self._sessions.pop(kept.session_id, None)
            await self._load(kept.session_id)
            return
        # Only this session replaces its own records: by a try that was cancelled.
        before = list(kept.index)
        kvs = await self._reads.records(kept.session_id)
        there = {kv.key for kv in kvs}
        for known in before:
            if known.key not in there and known.key in kept.index:
                kept.index.drop(known)
        new = [
            kv
            for kv in kvs
            if parse_flush_key(kv.key).level
            and kv.key not in kept.index
            and kv.key not in self._forgettable
        ]
        await self._know(kept, new)

    def replaced(
        self, kept: SessionFlushRecords, old: Sequence[FlushRecordEntry], new: Sequence[Replacement]
    ) -> None:
        """See `FlushRecordOwner`."""
        for known in old:
            self._now_read(known.key)
            self._forgettable.pop(known.key, None)
            if known.key in kept.index:
                kept.index.drop(known)
            self._footers.drop(known.record.object_key)
        for (key, record), footer in new:
            self._add(kept, key, record, footer)
        if not new:
            self._forget(old)

    def keys(self, kept: SessionFlushRecords) -> list[str]:
        """See `FlushRecordOwner`."""
        return [*(known.key for known in kept.index), *self._forgettable, *kept.unread]
