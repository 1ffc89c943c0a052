"""Takes over partitions: claims them, reads the committed batches, and restores their logs.

    leader and partition keys ──▶ claim ──▶ the flush records of the sessions that the partitions
        list ──▶ footers ──▶ sealed end + slices join? ──▶ the bucket has no more? ──▶ logs
                 ╳ unavailable        ╳                         ╳ (`manifest_check`)
                   │                  offline, with the reason
                   └─▶ the claims that need them are released
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
from driftlog_agents.log.leadership.claims import StoredClaim, judge_refused, plan_claims, way_out
from driftlog_agents.log.leadership.prune_sessions import note_written, shorter_lists
from driftlog_agents.log.leadership.taken_partitions import Taken, restoring
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.flush_record_reads import FlushRecordReads, Footers
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.objects.manifest_check import ManifestCheck, Newest, repair
from driftlog_agents.log.partition.partition import (
    UNDEFINED_EPOCH,
    PartitionLog,
    State,
    StoredAt,
    TailSlice,
)
from driftlog_agents.log.partition.tail import FlushBatches, flushed_between, tail_slice
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.session import Session, close_head
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_flush_record,
    decode_leader,
    decode_partition_state,
)
from driftlog_metadata.schema.keys import (
    LEADERS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    leader_key,
    parse_leader_key,
    parse_session_key,
    partition_key,
)
from driftlog_metadata.schema.model import FlushRecord, Leader, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_metadata.stores.store import MAX_TXN_OPS, Get, KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import STATES_PER_TXN, Claim, claim_batches
from driftlog_tiering.formats.flush_object import Footer

_TXNS_AT_ONCE: Final = 4
"""Reads and claims in flight.  More: thousands of partitions are led sooner, and the commits of
other agents wait longer behind them."""

_COMPARED_AT_ONCE: Final = 64
"""Concurrent reads of manifests that are newer than their partitions' keys."""

_READ_ALL: Final = 2_000
"""For more partitions, the takeover reads all keys of the cluster instead of single ones."""

_BREATHE_BATCHES: Final = 2_000
_BREATHE_SLICES: Final = 2_000
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
        strangers: UnknownKeys | None = None,
    ) -> None:
        self._session = session
        self._footers = footers
        self._check = check
        self._producer_ids = producer_ids
        self._topics = topics
        self._log = structlog.get_logger()
        self._strangers = strangers or UnknownKeys()
        self._records = FlushRecordReads(session, footers, self._strangers)
        self._restored = 0
        """Batches since the event loop last ran."""
        self._told: set[str] = set()
        """Errors of unreadable keys that are logged already."""

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
        taken = Taken(
            old_sessions=sorted(closed, key=lambda old: closed[old][0]),
            closed={old: head for old, (_, head) in closed.items() if head is not None},
            buffered=set(old_sessions),
        )
        taken.topics = {i: entry.topic for i, entry in self._topics.items()}
        if old_sessions:
            old = frozenset(old_sessions)
            leaders = await self._session.read_prefix(LEADERS_PREFIX)
            ours = [
                tp
                for kv in leaders
                if (leader := self._leader(kv)) is not None
                and leader.session_id in old
                and (tp := self._strangers.parsed(kv.key, parse_leader_key)) is not None
            ]
            await self._claim_all(taken, ours, old)
            for session_id in old_sessions:
                await self._session.revoke(transactions.lease_id_of(session_id))
            await self._open(taken, now_ms)
        return taken

    async def take(self, wanted: Collection[TopicPartition], now_ms: float) -> Taken:
        """Claims those of *wanted* that no live session leads.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        taken = Taken(topics={i: entry.topic for i, entry in self._topics.items()})
        await self._claim_all(taken, wanted, frozenset())
        await self._open(taken, now_ms)
        return taken

    async def look(
        self, tps: Collection[TopicPartition], now_ms: float
    ) -> tuple[dict[TopicPartition, PartitionLog], dict[TopicPartition, str]]:
        """Reads what is committed of *tps*, whichever session leads them; also returns why it is
        unknown for some.

        It claims nothing: others may commit and seal meanwhile.  The logs show all that was
        committed at one moment; they are closed, and only their offsets and epochs are valid.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        looked = Taken()
        unknown: dict[TopicPartition, str] = {}
        keys = await self._read_keys(sorted(tps))
        for tp in tps:
            entry, state_kv = self._topics.get(tp.topic_id), keys.get(partition_key(tp))
            if entry is None or state_kv is None:
                unknown[tp] = "its topic is unknown" if entry is None else "its key is missing"
                continue
            try:
                state = decode_at(state_kv.key, state_kv.value, decode_partition_state)
            except CorruptError as error:
                unknown[tp] = str(error)
                continue
            log = PartitionLog(
                topic=entry.topic.name,
                topic_id=tp.topic_id,
                partition=tp.partition,
                leader_epoch=UNDEFINED_EPOCH,
                log_start=state.log_start,
                sealed_end=state.sealed_end,
            )
            log.sessions = state.sessions
            log.partition_revision = state_kv.mod_revision
            log.manifest_version = state.manifest_version
            log.state = State.CLOSED
            looked.logs[tp] = log
        await self._read_flushes(looked, now_ms)
        # Sealing deletes flush records: those read are complete if the key has not changed.
        keys = await self._read_keys(sorted(looked.logs))
        for tp, log in looked.logs.items():
            state_kv = keys.get(partition_key(tp))
            if state_kv is None or state_kv.mod_revision != log.partition_revision:
                unknown[tp] = "its key has changed while it was read"
            elif log.offline_reason:
                unknown[tp] = log.offline_reason
        unknown |= looked.unreadable
        return {tp: log for tp, log in looked.logs.items() if tp not in unknown}, unknown

    async def give_back(self, taken: Taken, tps: Collection[TopicPartition]) -> None:
        """Releases partitions that cannot be opened now: the next attempt finds them unchanged.

        Also partitions of this disk's dead sessions: `recovery` then handles their buffered batches
        as those of a partition that is led elsewhere.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        taken.continued.difference_update(tps)
        logs = [taken.logs.pop(tp) for tp in tps]
        for log in logs:
            log.state = State.CLOSED
        await self._release(
            [
                transactions.Release(tp, log.leader_epoch, log.leader_revision)
                for tp, log in zip(tps, logs, strict=True)
            ]
        )

    async def warm_up(self, session_ids: Iterable[str]) -> None:
        """Reads the footers of the flush records of *session_ids*, before their partitions are
        taken over.

        Raises:
            FencedError: our own session ended first; perhaps in a group.
        """
        for session_id in session_ids:
            await self._footers_of(session_id, await self._records.records(session_id))

    # ── Claims ──

    def _leader(self, kv: KeyValue) -> Leader | None:
        try:
            return decode_at(kv.key, kv.value, decode_leader)
        except CorruptError as error:
            if self._strangers.is_ours(kv.key, parse_leader_key):
                self._say_damaged(error)
            return None

    def _say_damaged(self, error: CorruptError) -> None:
        if str(error) in self._told:
            return  # the claim is retried several times a second
        self._told.add(str(error))
        self._log.error(
            "partition_not_claimed",
            error=str(error),
            advice="restore that key, or upgrade the agent if a later release wrote it; until "
            "then the partition has no leader",
        )

    def _refuse_damaged(self, taken: Taken, damaged: Mapping[TopicPartition, CorruptError]) -> None:
        for tp, error in damaged.items():
            self._say_damaged(error)
            taken.damaged[tp] = way_out(error)

    async def _claim_all(
        self, taken: Taken, wanted: Collection[TopicPartition], old_sessions: frozenset[str]
    ) -> None:
        wanted = [tp for tp in wanted if tp.topic_id in self._topics]
        keys = await self._read_keys(wanted)
        live = await self._live()
        plan = plan_claims(wanted, keys, live, self._session.session_id, old_sessions)
        self._refuse_damaged(taken, plan.damaged)
        taken.refused.update(plan.refused)
        await self._release(plan.strays)
        limit = asyncio.Semaphore(_TXNS_AT_ONCE)

        async def limited(batch: list[Claim]) -> None:
            async with limit:
                await self._claim(taken, batch, old_sessions)

        async with asyncio.TaskGroup() as tasks:
            for batch in claim_batches(plan.claims):
                tasks.create_task(limited(batch))

    async def _read_keys(self, wanted: Sequence[TopicPartition]) -> dict[str, KeyValue]:
        """Leader keys and partition keys of *wanted*; if one of a partition's is missing, both were
        read at one revision."""
        found: dict[str, KeyValue] = {}
        if len(wanted) > _READ_ALL:
            leaders = await self._session.read_prefix(LEADERS_PREFIX)
            found = {kv.key: kv for kv in (*leaders, *await self._states())}
            # Read at two revisions: another agent may have made both keys in between.
            wanted = [
                tp for tp in wanted if (leader_key(tp) in found) != (partition_key(tp) in found)
            ]
            for tp in wanted:
                found.pop(leader_key(tp), None)
                found.pop(partition_key(tp), None)
        limit = asyncio.Semaphore(_TXNS_AT_ONCE)

        async def read(some: Sequence[TopicPartition]) -> None:
            gets = tuple(Get(key(tp)) for tp in some for key in (leader_key, partition_key))
            async with limit:
                result = await self._session.transact(transactions.Txn((), gets))
            found.update((kv.key, kv) for kvs in result.reads for kv in kvs)

        async with asyncio.TaskGroup() as tasks:
            for at in range(0, len(wanted), MAX_TXN_OPS // 2):
                tasks.create_task(read(wanted[at : at + MAX_TXN_OPS // 2]))
        return found

    async def _states(self) -> list[KeyValue]:
        return await self._session.read_prefix(PARTITIONS_PREFIX)

    async def _live(self) -> set[str]:
        """Sessions whose keys exist."""
        kvs = await self._session.read_prefix(SESSIONS_PREFIX)
        found = (self._strangers.parsed(kv.key, parse_session_key) for kv in kvs)
        return {session_id for session_id in found if session_id is not None}

    async def _claim(self, taken: Taken, claims: list[Claim], old_sessions: frozenset[str]) -> None:
        """Claims in one transaction; if it is refused, claims the rest by the present keys.

        Agents that start together claim the same partitions: the later agent loses those that are
        led by then, and claims the others of the batch together again.
        """
        session = self._session
        entries = [self._topics.get(claim.tp.topic_id) for claim in claims]
        topics = {e.topic.name: e.create_revision for e in entries if e is not None}
        if len(topics) < len({claim.tp.topic_id for claim in claims}):
            taken.refused.update(claim.tp for claim in claims)  # a topic was deleted just now
            return
        result = await session.transact(
            transactions.claim(
                session.session_id, session.revision, claims, topics, cluster=session.cluster
            )
        )
        if result.succeeded:
            for claim in claims:
                taken.add(StoredClaim(claim, result.revision, result.revision), session.session_id)
            return
        *reads, mine, cluster = result.reads
        session.check_cluster(cluster)
        if not mine or mine[0].create_revision != session.revision:
            raise FencedError("the session ended while it claimed its partitions")
        found = judge_refused(claims, reads, session.session_id, old_sessions)
        self._refuse_damaged(taken, found.damaged)
        for stored in found.stored:
            taken.add(stored, session.session_id)
        left = found.left
        if found.changed:
            live = set[str]() if all(one.is_free for one in left) else await self._live()
            taken.refused.update(one.tp for one in left if one.needs_gone in live)
            left = [one for one in left if one.needs_gone not in live]
            if left:
                await self._claim(taken, left, old_sessions)
        elif len(left) > 1:
            for one in left:
                await self._claim(taken, [one], old_sessions)
        else:
            taken.refused.update(one.tp for one in left)

    async def _release(self, releases: list[transactions.Release]) -> None:
        await release(self._session, releases)

    # ── Committed batches ──

    async def _open(self, taken: Taken, now_ms: float) -> None:
        """Restores the tails of the claimed logs."""
        live: set[str] | None = None
        async with asyncio.TaskGroup() as tasks:
            listing = tasks.create_task(self._check.newest(taken.logs, taken.fresh))
            if taken.logs.keys() != taken.fresh:  # otherwise none of them has had a leader
                # After the claims and before the flush records: see the module.
                live = await self._live()
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
            for tp, log in taken.logs.items():
                log.recovered_end = log.high_watermark
                judged = tp in taken.unreadable or log.state is State.OFFLINE
                if not judged and newest.versions.get(tp, 0) > log.manifest_version:
                    tasks.create_task(compare(tp, log))
        self._take_offline(taken)

    async def _read_flushes(self, taken: Taken, now_ms: float) -> None:
        listed = sorted({session for log in taken.logs.values() for session in log.sessions})
        slices: dict[TopicPartition, list[tuple[TailSlice, Footer]]] = {}
        seen = 0
        records = await self._list(listed)
        taken.without_records = {session for session in listed if not records[session]}
        unavailable: Mapping[str, ObjectUnavailableError] = {}
        if len(listed) > 1:  # one session's are read concurrently anyway
            fetched = [entry for session in listed for entry in _decoded(records[session])]
            unavailable = await self._footers.fetch(fetched)
        for session_id in listed:
            footers = await self._footers_of(session_id, records.pop(session_id), unavailable)
            for why in footers.unavailable.values():
                # The end of every partition that this session led is unknown.
                taken.unreadable.update(
                    (tp, why) for tp, log in taken.logs.items() if session_id in log.sessions
                )
            async for _, record, footer in sliced(footers.found):
                data: FlushBatches | None = None
                for s in footer.slices():
                    seen += 1
                    if not seen % _BREATHE_SLICES:
                        await asyncio.sleep(0)
                    tp = TopicPartition(s.topic_id, s.partition)
                    log = taken.logs.get(tp)
                    if log is None or s.end <= log.sealed_end:
                        continue
                    data = data or FlushBatches.of_footer(footer)
                    stored_at = StoredAt(record.object_key, 0)
                    tail = tail_slice(data, s, stored_at, flushed_between(footer, s))
                    slices.setdefault(tp, []).append((tail, footer))
        for tp in slices.keys() & taken.unreadable.keys():
            del slices[tp]
        for tp, found in slices.items():
            found.sort(key=lambda entry: entry[0].base)
            await self._restore(taken.logs[tp], found, now_ms)

    def _take_offline(self, taken: Taken) -> None:
        for log in taken.logs.values():
            if log.offline_reason and log.state is not State.OFFLINE:
                log.state = State.OFFLINE
                self._log.error(
                    "partition_offline",
                    partition=f"{log.topic}-{log.partition}",
                    reason=log.offline_reason,
                    advice="clients cannot read or write the partition until the missing data that "
                    "the reason names are restored and the agent restarts, or the loss is accepted",
                )

    async def _list(self, session_ids: Sequence[str]) -> dict[str, list[KeyValue]]:
        """The flush records of each session, each session's at one revision."""
        limit = asyncio.Semaphore(_TXNS_AT_ONCE)

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
                self._producer_ids.saw(producer_id)
            self._restored += batches
            if self._restored >= _BREATHE_BATCHES:
                self._restored = 0
                await asyncio.sleep(0)
        if log.offline_reason:
            log.offline_reason = f"{log.offline_reason}; {repair(log)}"


async def release(session: Session, releases: Sequence[transactions.Release]) -> None:
    """Releases partitions, for good; one that is led elsewhere by now is skipped.

    Raises:
        FencedError: the session ended first.
    """
    for at in range(0, len(releases), MAX_TXN_OPS):
        some = releases[at : at + MAX_TXN_OPS]
        result = await session.transact(transactions.release(some))
        if result.succeeded or len(some) == 1:
            continue  # refused alone: led elsewhere, or an earlier try succeeded
        for one in some:
            await session.transact(transactions.release([one]))


def _decoded(kvs: Iterable[KeyValue]) -> Iterable[tuple[str, FlushRecord]]:
    """The readable ones of flush records, with their keys."""
    for kv in kvs:
        with suppress(CorruptError):
            yield kv.key, decode_at(kv.key, kv.value, decode_flush_record)
