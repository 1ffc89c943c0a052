"""Takes over partitions: claims them, reads the committed batches, and restores their logs.

    leader and partition keys ──▶ claim ──▶ the flush records of the sessions that the partitions
        list ──▶ footers ──▶ sealed end + slices join? ──▶ the bucket has no more? ──▶ logs
                 ╳ unavailable        ╳                         ╳ (`manifest_check`)
                   │                  offline, with the reason
                   └─▶ the claims that need them are released, or retained (`taken_partitions`)
        ──▶ remove finished sessions from the partitions' lists

    on our own disk: close the heads of its dead sessions ──▶ claim ──▶ revoke their leases ──▶ …

design.md, "Takeover" and "Back on its own disk": a session that is over, or whose head is closed,
commits nothing more, and a session that has released a partition commits nothing more of it.  So a
read after the claim sees every committed batch.  Footers are read once per session, not once per
partition.

`leadership/prune_sessions` defines which sessions are *finished* for a partition.

Shell.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.leadership.claim_transactions import ClaimTransactions, release
from driftlog_agents.log.leadership.prune_sessions import note_written, shorter_lists
from driftlog_agents.log.leadership.taken_partitions import (
    LookedAt,
    TailSlices,
    Taken,
    restoring,
)
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.flush_record_reads import FlushRecordReads, Footers
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.objects.manifest_check import ManifestCheck
from driftlog_agents.log.objects.manifest_listings import Newest
from driftlog_agents.log.objects.manifest_verdict import repair
from driftlog_agents.log.partition.partition import PartitionLog, TailSlice
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.session import Session, close_head
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_at, decode_flush_record
from driftlog_metadata.schema.model import FlushRecord, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import STATES_PER_TXN
from driftlog_tiering.formats.flush_object import Footer

_LISTS_AT_ONCE: Final = 4
"""Concurrent reads of sessions' flush records."""

_COMPARED_AT_ONCE: Final = 64
"""Concurrent reads of manifests that are newer than their partitions' keys."""

_BREATHE_BATCHES: Final = 2_000
"""The event loop runs after so many: keep-alives and other partitions must not wait."""


class Takeover:
    """Claims and opens partitions for one session.

    Args:
        topics: every known topic, by id.
        producer_ids: receives every producer id in the footers.
    """

    def __init__(
        self,
        *,
        session: Session,
        footers: FooterCache,
        check: ManifestCheck,
        producer_ids: ProducerIdFloor,
        topics: Mapping[UUID, TopicEntry],
        unknown_keys: UnknownKeys | None = None,
    ) -> None:
        self._session = session
        self._footers = footers
        self._check = check
        self._producer_ids = producer_ids
        self._topics = topics
        self._log = structlog.get_logger()
        unknown_keys = unknown_keys or UnknownKeys()
        self._claims = ClaimTransactions(session, topics, unknown_keys)
        self._records = FlushRecordReads(session, footers, unknown_keys)
        self._buffered: set[str] = set()
        """Dead sessions with directories on this disk."""
        self._restored = 0
        """Batches since the event loop last ran."""

    @property
    def session_id(self) -> str:
        """The session that claims."""
        return self._session.session_id

    async def own(self, old_sessions: Sequence[str], now_ms: float) -> Taken:
        """Claims the partitions that *old_sessions* led: dead sessions whose directories are on
        this disk.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        closed = {old: await close_head(self._session, old) for old in old_sessions}
        self._buffered.update(old_sessions)
        taken = self._nothing_taken()
        taken.old_sessions = sorted(closed, key=lambda old: closed[old][0])
        taken.closed = {old: head for old, (_, head) in closed.items() if head is not None}
        if old_sessions:
            old = frozenset(old_sessions)
            await self._claims.claim_all(taken, await self._claims.led_by(old), old)
            for session_id in old_sessions:
                await self._session.revoke(transactions.lease_id_of(session_id))
            await self._open(taken, now_ms)
        return taken

    async def take(
        self,
        wanted: Collection[TopicPartition],
        now_ms: float,
        retained: Collection[TopicPartition] = (),
    ) -> Taken:
        """Claims those of *wanted* that no live session leads.  *retained*: those of which our
        session retains its claim.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        taken = self._nothing_taken()
        taken.retained_before = retained
        await self._claims.claim_all(taken, wanted, frozenset())
        await self._open(taken, now_ms)
        return taken

    def _nothing_taken(self) -> Taken:
        topics = {i: entry.topic for i, entry in self._topics.items()}
        return Taken(topics=topics, buffered=self._buffered)

    async def look(self, tps: Collection[TopicPartition], now_ms: float) -> LookedAt:
        """Reads what is committed of *tps*, whichever session leads them.

        It claims nothing: others may commit and seal meanwhile.  The logs show all that was
        committed at one moment.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        keys = await self._claims.read_keys(sorted(tps))
        looked = LookedAt.by_keys(tps, self._topics, keys)
        tails = Taken(logs=looked.logs)
        await self._read_flushes(tails, now_ms)
        keys = await self._claims.read_keys(sorted(looked.logs))
        looked.restored(tails.unreadable, keys)
        return looked

    async def give_back(self, taken: Taken, tps: Collection[TopicPartition]) -> None:
        """Ends *tps*, which cannot be opened now: their claims are retained or released, and the
        next attempt finds them unchanged.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        taken.retain_claims(tps)
        await release(self._session, [taken.end(tp) for tp in tps if tp not in taken.retained])

    async def release_retained(self, taken: Taken, tps: Collection[TopicPartition]) -> None:
        """Releases claims that need not be retained: no batch of *tps* is on this disk.

        Raises:
            FencedError: our own session ended first.
        """
        taken.continued.difference_update(tps)
        await release(self._session, [taken.retained.pop(tp) for tp in tps])

    async def warm_up(self, session_ids: Iterable[str]) -> None:
        """Reads the footers of the flush records of *session_ids*, before their partitions are
        taken over.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        for session_id in session_ids:
            await self._footers.fetch(_decoded(await self._records.records(session_id)))

    # ── Committed batches ──

    async def _open(self, taken: Taken, now_ms: float) -> None:
        """Restores the tails of the claimed logs."""
        live: set[str] | None = None
        async with asyncio.TaskGroup() as tasks:
            listing = tasks.create_task(self._check.newest(taken.logs, taken.fresh))
            if taken.logs.keys() != taken.fresh:  # otherwise none of them has had a leader
                tasks.create_task(self._claims.read_policy_keys(taken.logs.values()))
                # After the claims and before the flush records: see the module.
                live = await self._claims.live()
                await self._read_flushes(taken, now_ms)
                self._take_offline(taken)
        await self._compare(taken, listing.result())
        await self._producer_ids.settle()
        if live is not None:  # also for released ones: each attempt makes the key larger
            await self._drop_finished(taken, live)
        await self.give_back(taken, taken.unreadable)

    async def _drop_finished(self, taken: Taken, live: set[str]) -> None:
        session = self._session
        writes = shorter_lists(session.session_id, taken.logs, live, taken.needing, taken.joined)
        for at in range(0, len(writes), STATES_PER_TXN):
            some = writes[at : at + STATES_PER_TXN]
            note_written(taken.logs, some, await session.transact(transactions.write_states(some)))

    async def _compare(self, taken: Taken, newest: Newest) -> None:
        """Takes partitions offline whose manifests are ahead of the metadata store."""
        taken.unreadable |= newest.unreadable
        limit = asyncio.Semaphore(_COMPARED_AT_ONCE)

        async def compare(tp: TopicPartition, log: PartitionLog) -> None:
            try:
                async with limit:
                    problem = await self._check.problem(log, newest.versions[tp])
            except UnavailableError as error:
                taken.unreadable[tp] = f"its newest manifest cannot be read: {error}"
            else:
                log.offline_reason = problem or ""

        async with asyncio.TaskGroup() as tasks:
            for tp, log in taken.behind(newest.versions):
                tasks.create_task(compare(tp, log))
        self._take_offline(taken)

    async def _read_flushes(self, taken: Taken, now_ms: float) -> None:
        listed = sorted({session for log in taken.logs.values() for session in log.sessions})
        records = await self._list(listed)
        taken.without_records = {session for session in listed if not records[session]}
        unavailable: Mapping[str, ObjectUnavailableError] = {}
        if len(listed) > 1:  # one session's are read concurrently anyway
            fetched = [entry for session in listed for entry in _decoded(records[session])]
            unavailable = await self._footers.fetch(fetched)
        slices = TailSlices(taken.logs)
        for session_id in listed:
            footers = await self._footers_of(session_id, records.pop(session_id), unavailable)
            for why in footers.unavailable.values():
                taken.lacks_footer(session_id, why)
            async for _, record, footer in sliced(footers.found):
                for _ in slices.add(record, footer):
                    await asyncio.sleep(0)
        for log, found in slices.in_order(taken.unreadable):
            await self._restore(log, found, now_ms)

    def _take_offline(self, taken: Taken) -> None:
        for log in taken.take_offline():
            self._log.error(
                "partition_offline",
                partition=f"{log.topic}-{log.partition}",
                reason=log.offline_reason,
                advice="clients cannot read or write the partition until the missing data that "
                "the reason names are restored and the agent restarts, or the loss is accepted",
            )

    async def _list(self, session_ids: Sequence[str]) -> dict[str, list[KeyValue]]:
        """The flush records of each session, each session's at one revision."""
        limit = asyncio.Semaphore(_LISTS_AT_ONCE)

        async def read(session_id: str) -> list[KeyValue]:
            async with limit:
                return await self._records.records(session_id)

        async with asyncio.TaskGroup() as tasks:
            reads = {s: tasks.create_task(read(s)) for s in session_ids}
        return {session_id: task.result() for session_id, task in reads.items()}

    async def _footers_of(
        self,
        session_id: str,
        kvs: list[KeyValue],
        unavailable: Mapping[str, ObjectUnavailableError] | None = None,
    ) -> Footers:
        """The footers of every flush record of a session at one revision; *kvs*: the records as
        read a moment ago."""
        while True:
            try:
                return await self._records.footers(kvs, unavailable)
            except RecordGoneError:  # consolidated or sealed meanwhile: read again
                kvs = await self._records.records(session_id)

    async def _restore(
        self, log: PartitionLog, found: list[tuple[TailSlice, Footer]], now_ms: float
    ) -> None:
        for batches, producers in restoring(log, found, now_ms):
            for producer_id in producers:
                self._producer_ids.seen.saw(producer_id)
            self._restored += batches
            if self._restored >= _BREATHE_BATCHES:
                self._restored = 0
                await asyncio.sleep(0)
        if log.offline_reason:
            log.offline_reason = f"{log.offline_reason}; {repair(log)}"


def _decoded(kvs: Iterable[KeyValue]) -> Iterable[tuple[str, FlushRecord]]:
    """The readable ones of flush records, with their keys."""
    for kv in kvs:
        with suppress(CorruptError):
            yield kv.key, decode_at(kv.key, kv.value, decode_flush_record)
