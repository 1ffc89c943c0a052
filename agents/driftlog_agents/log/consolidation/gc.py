"""Garbage collection of flush records: unneeded ones are deleted, the others become few.

    commits, sealed ends, deleted topics, dead sessions ──▶ `managed_records`
                                  unneeded ◀──────────────────┤
       one transaction ◀── deleted ◀──┘                       └──▶ chosen ──▶ rewritten
                                                                      (`rewrite_job`)

1. The sealer reports the sealed ends of partitions led here; those of others are read from the
   partitions' keys.
2. A live session alone rewrites its records; one agent rewrites those of a dead session.  The
   transaction succeeds only if each record is unchanged since it was read (`flush_transactions`).
3. A rewritten object is named within an hour of its PUT, or never.
4. One rewrite runs at a time, with its own requests; none while stores fail.

A failure leaves only objects that no record names, and the next attempt starts afresh.

Source: design.md, "Forget".

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.tasks import first_of
from driftlog_agents.log.consolidation.final_heads import FinalHeads
from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_agents.log.consolidation.gc_schedule import (
    LagNews,
    LookSchedule,
    RewriteSchedule,
    hold_back,
)
from driftlog_agents.log.consolidation.managed_records import GONE, reads_of
from driftlog_agents.log.consolidation.policy import (
    ConsolidationSettings,
)
from driftlog_agents.log.consolidation.rewrite_job import RecordsChangedError, RewriteJob
from driftlog_agents.log.objects.availability import (
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_agents.log.objects.flush_record_reads import FlushRecordReads
from driftlog_agents.log.objects.footer_cache import RecordGoneError
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.session_health import SessionSignals
from driftlog_agents.log.session.unknown_keys import head_of, session_of
from driftlog_metadata.schema.keys import (
    HEADS_PREFIX,
    SESSIONS_PREFIX,
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
from driftlog_metadata.stores.store import Get, KeyValue
from driftlog_metadata.transactions import flush_transactions
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_tiering.formats.flush_object import CorruptFlushObjectError

_FOOTERS_AT_ONCE: Final = 32
"""Records of a dead session whose footers are read together."""


class ManagedSessions(Protocol):
    """The sessions of the cluster, and which of their partitions are led here; see
    `log/log_session`."""

    def find(self, tp: TopicPartition) -> PartitionLog | None:
        """The partition's log if it is led here."""
        ...

    def live(self) -> Collection[str]:
        """The live sessions in the view: when one disappears, the dead sessions are read soon."""
        ...

    def is_managed(self, session_id: str) -> bool:
        """Whether this agent manages the records of that session, which is over."""
        ...


class FlushRecordGc:
    """See the module.

    Args:
        reads: a few at a time: clients wait for those of a takeover.
    """

    def __init__(
        self,
        *,
        session: Session,
        reads: FlushRecordReads,
        rewrite: RewriteJob,
        final_heads: FinalHeads,
        sessions: ManagedSessions,
        settings: ConsolidationSettings,
        now_ms: Callable[[], float],
        signals: SessionSignals,
    ) -> None:
        self._session = session
        self._reads = reads
        self._rewrite = rewrite
        self._sessions = sessions
        self.state = rewrite.records
        """The records that this agent manages."""
        self._settings = settings
        self._now_ms = now_ms
        self._flushes = signals.health.flushes
        self._backpressure = signals.backpressure
        self._log = structlog.get_logger()
        self._final_heads = final_heads
        self._forget_wanted = asyncio.Event()
        self._look_wanted = asyncio.Event()
        """Wakes `_looking` early: a topic may be deleted, or a session has ended."""
        self._look_wanted.set()
        self._looks = LookSchedule(settings, now_ms())
        self._rewrites = RewriteSchedule()
        self.outage = signals.health.consolidation
        """Since when every attempt to consolidate has failed."""

    @property
    def records(self) -> int:
        """Number of known records of this session and of the dead sessions managed here."""
        return len(self.state)

    @property
    def rewrites(self) -> int:
        """Number of consolidations so far."""
        return self._rewrite.rewrites

    @property
    def rewritten_bytes(self) -> int:
        """Bytes of the objects that the consolidations wrote."""
        return self._rewrite.rewritten_bytes

    # ── Notifications ──

    def committed(
        self, seq: int, record: FlushRecord, ends: Iterable[tuple[TopicPartition, int]]
    ) -> None:
        """Notes that flush *seq* of this session is committed; *ends*: the ends of its slices."""
        self.state.committed(seq, record, ends, self._now_ms())
        self._delete_soon()

    def sealed(self, tp: TopicPartition, end: int) -> None:
        """Notes that *tp* is sealed below *end*, as its key shows."""
        self.state.sealed(tp, end)
        self._delete_soon()

    def topic_gone(self, topic_id: UUID) -> None:
        """Notes that the topic is deleted, or is about to be; the topics are read soon."""
        self.state.suspect(topic_id)
        self._look_wanted.set()

    def _delete_soon(self) -> None:
        if self.state.has_unneeded:
            self._forget_wanted.set()

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
        looks = self._looks
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(looks.wait_ms(self._now_ms()) / 1000):
                    await self._look_wanted.wait()
            self._look_wanted.clear()
            if looks.delay_ms:
                await asyncio.sleep(looks.delay_ms / 1000)
            if looks.takes_all(self._now_ms()):
                await self.look()
                looks.looked(self._now_ms())
            else:
                await self._look_for_topics()

    async def _consolidating(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            if self.state.has_ended(self._sessions.live()):
                self._looks.session_ended()
                self._look_wanted.set()
            while await self.consolidate():
                pass

    async def _hold_back(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            self.hold_back()

    def hold_back(self) -> None:
        """Holds producers back while too many flushes of this session wait for consolidation."""
        waiting = self.state.waiting()
        news = hold_back(self.state.lag, waiting, failing=self.outage.since_ms is not None)
        self._backpressure.set("consolidation", held=self.state.lag.held)
        if news is LagNews.BEHIND:
            self._log.warning(
                "consolidation_behind",
                records=waiting,
                advice="producers are slowed to the rate of consolidation: give the agent more "
                "cores, or the partitions to more agents",
            )
        elif news is LagNews.CAUGHT_UP:
            self._log.info("consolidation_caught_up", records=waiting)

    # ── Forget ──

    async def forget(self) -> None:
        """Deletes the unneeded records; the collector deletes their objects after the grace period.

        Raises:
            FencedError: the session is over.
        """
        while batch := self.state.to_delete():
            if not await self._delete(batch):
                for known in batch:  # one is deleted already, perhaps by an earlier try
                    await self._delete([known])
            self.state.deleted(batch)
            for known in batch:
                self._reads.drop(known.record.object_key)

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
        await self._final_heads.put(ended)

    async def _look_for_sessions(self) -> list[str]:
        """Returns the dead sessions that are managed here."""
        # Heads first: a head and its session's key are created together.
        heads = await self._reads.named(HEADS_PREFIX, head_of)
        live = await self._reads.named(SESSIONS_PREFIX, session_of)
        dead = heads - live
        for session_id in self.state.managed_here(dead, self._sessions.is_managed):
            await self._load(session_id)
        return sorted(filter(self._sessions.is_managed, dead))

    async def _load(self, session_id: str) -> None:
        """Loads the flush records of a session that is over."""
        kvs = await self._reads.records(session_id)
        if not kvs:
            self.state.finished(session_id)
            return
        managed = SessionFlushRecords(session_id, dead=True)
        for at in range(0, len(kvs), _FOOTERS_AT_ONCE):
            if not await self._know(managed, kvs[at : at + _FOOTERS_AT_ONCE]):
                return  # its records changed meanwhile: retried later
        self.state.manage(managed)
        self._log.info(
            "session_kept",
            session=session_id,
            records=len(kvs),
            advice="no action needed; this agent now manages the dead session's unsealed data",
        )

    async def _know(self, managed: SessionFlushRecords, kvs: Sequence[KeyValue]) -> bool:
        """Adds these records, except unreadable ones; False: one was deleted meanwhile."""
        try:
            footers = await self._reads.footers(kvs)
        except RecordGoneError:
            return False
        for key, why in footers.unavailable.items():
            managed.unread.add(key)
            self.unavailable(managed, key, why)
        for key, record, footer in footers.found:
            if self.state.readable(key):
                self._report_readable(key)
            self.state.add(managed, key, record, footer, self._now_ms())
            self._delete_soon()
            await asyncio.sleep(0)  # a record of a thousand partitions takes milliseconds
        return True

    def unavailable(self, managed: SessionFlushRecords, key: str, reason: str) -> None:
        """Notes that the record's object cannot be read now."""
        if self.state.unreadable(key, self._now_ms()):
            self._log.error(
                "flush_object_unavailable",
                session=managed.session_id,
                record=key,
                reason=reason,
                advice="restore the object; its record is unchanged, and the agent retries. If it "
                "is gone for good: driftlog partitions accept-loss",
            )

    def _report_readable(self, key: str) -> None:
        self._log.info("flush_object_readable_again", record=key)

    async def _look_again(self) -> None:
        """Retries the records whose objects were unreadable."""
        now_ms = self._now_ms()
        for managed in self.state.sessions():
            due = self.state.due_again(managed, now_ms)
            if not due:
                continue
            kvs = [kv for kv in await self._reads.records(managed.session_id) if kv.key in due]
            managed.unread -= due
            for at in range(0, len(kvs), _FOOTERS_AT_ONCE):
                some = kvs[at : at + _FOOTERS_AT_ONCE]
                if not await self._know(managed, some):
                    managed.unread |= {kv.key for kv in some}  # retried later
        self.state.forget_readable()

    async def _look_for_sealed(self) -> None:
        elsewhere: list[TopicPartition] = []
        async for tp in sliced(self.state.unsealed()):
            log = self._sessions.find(tp)
            if log is not None and log.state is not State.CLOSED:
                self.sealed(tp, log.sealed_end)
            else:
                elsewhere.append(tp)
        for topic_id, tps in reads_of(elsewhere):
            if topic_id is not None:
                kvs = await self._session.read_prefix(partitions_prefix(topic_id))
            else:
                txn = Txn((), tuple(Get(partition_key(tp)) for tp in tps))
                kvs = [kv for read in (await self._session.transact(txn)).reads for kv in read]
            self.state.keys_read(tps, kvs)
            self._delete_soon()

    async def _look_for_topics(self) -> None:
        suspects = self.state.take_suspects()
        if not suspects:
            return
        # Every known record was read or committed before this read begins.
        there = await self._reads.topic_ids()
        if there is None:
            return  # the unreadable topic may be any of them
        async for tp in sliced(self.state.topics_gone(suspects - there)):
            self.state.sealed(tp, GONE)
        self._delete_soon()

    # ── Consolidate ──

    async def consolidate(self) -> bool:
        """Rewrites the due records of one session; False: none was due, or the rewrite failed.

        Raises:
            FencedError: the session is over.
        """
        now_ms = self._now_ms()
        failing = self._flushes.since_ms is not None
        if not self._rewrites.may_begin(now_ms, flushes_fail=failing):
            return False
        due = self.state.to_rewrite(now_ms)
        return due is not None and await self._attempt(*due)

    async def _attempt(self, managed: SessionFlushRecords, chosen: list[FlushRecordEntry]) -> bool:
        began_ms = self._now_ms()
        self.state.hold(chosen)
        done = False
        try:
            done = await self._rewrite.rewrite(managed, chosen)
        except (ObjectUnavailableError, DamagedObjectError) as error:
            for known in chosen:
                if known.record.object_key == error.key:
                    self.unavailable(managed, known.key, str(error))
            return True
        except RecordGoneError:
            await self._know_again(managed)
            return True
        except RecordsChangedError as error:
            await self._know_again(managed)
            if error.answered:
                self._rewrites.failed(self._now_ms())
                self._answered()
            else:
                self._failed(str(error), began_ms)
        except CorruptFlushObjectError as error:
            for known in chosen:
                self.unavailable(managed, known.key, str(error))
        except (UnavailableError, OutcomeUnknownError, TimeoutError, CorruptError) as error:
            self._failed(str(error) or repr(error), began_ms)
        else:
            self._answered()
        finally:
            self.state.hold(())
            self._forget_wanted.set()
        return done

    def _answered(self) -> None:
        if self.outage.ended(self._now_ms()):
            self._log.info("consolidation_resumed", failures=self.outage.failures)

    def _failed(self, error: str, began_ms: float) -> None:
        now_ms = self._now_ms()
        self._rewrites.failed(now_ms)
        if self.outage.failed(error, began_ms, now_ms):
            self._log.warning(
                "consolidation_failed",
                error=error,
                failures=self.outage.failures,
                advice="retrying; until then there are more flush records than necessary",
            )

    async def _know_again(self, managed: SessionFlushRecords) -> None:
        """Reloads the records of *managed*: they have changed."""
        self._log.info("flush_records_changed", session=managed.session_id)
        if managed.dead:
            self.state.drop(managed.session_id)
            await self._load(managed.session_id)
            return
        before = list(managed.index)
        kvs = await self._reads.records(managed.session_id)
        new = self.state.reread_own(before, {kv.key for kv in kvs})
        await self._know(managed, [kv for kv in kvs if kv.key in new])
