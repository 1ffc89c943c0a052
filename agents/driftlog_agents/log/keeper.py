"""The keeper: flush records that nobody needs are forgotten, and the others become few.

    a flush is committed here ───────────┐
    a session is over, and kept here ────┴▶ known ──all sealed, or its topics gone──▶ deleted
      (its records and footers are read)     │
                                             └──a minute old, or many──▶ fewer objects
                                                  ──one transaction──▶ known; the tail is told

1. A record is deleted only when each of its slices is below a sealed end that was read or told,
   or of a topic that a linearizable read of all topics, begun later than the record was known,
   did not show.  What somebody says of topics is only why that read is made.
2. Sealed ends of what is led here are told; of what is led elsewhere the partitions' keys are read.
3. A live session's records are rewritten by itself only, a dead one's by who keeps it; in one
   transaction that holds only if each record is the one that was read (`flush_transactions`).
4. An object is named within an hour of its PUT, or not at all.
5. One rewrite at a time, with requests of its own; none while stores fail.

Whatever fails on the way leaves objects that nobody names, and the next attempt starts afresh.

Source: design.md, "Forget".

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.log import tail
from driftlog_agents.log.consolidation import (
    ConsolidationSettings,
    NewObject,
    choose,
    encode,
    fits_transaction,
    how_many_fit,
    lay_out,
    level_after,
)
from driftlog_agents.log.footers import Footers, RecordGoneError
from driftlog_agents.log.outage import Outage
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_agents.log.records_index import KnownRecord, RecordsIndex
from driftlog_agents.log.rewriting import DamagedSourceError, Rewriting
from driftlog_agents.log.segment_writing import Offload, Spool
from driftlog_agents.log.session import Session
from driftlog_metadata import flush_transactions
from driftlog_metadata.codec import (
    decode_at,
    decode_flush_record,
    decode_partition_state,
    decode_topic,
    encode_flush_record,
)
from driftlog_metadata.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.keys import (
    HEADS_PREFIX,
    SESSIONS_PREFIX,
    TOPICS_PREFIX,
    flush_key,
    flushes_prefix,
    parse_flush_key,
    parse_head_key,
    parse_partition_key,
    parse_session_key,
    partition_key,
    partitions_prefix,
)
from driftlog_metadata.model import FlushRecord, TopicPartition
from driftlog_metadata.store import MAX_TXN_OPS, Get, KeyValue
from driftlog_metadata.transactions import Txn
from driftlog_tiering.flush_object import CorruptFlushObjectError, Footer
from driftlog_tiering.object_store import ObjectStore

_GONE: Final = 2**63 - 1
_FOOTERS_AT_ONCE: Final = 32
"""Decoded together while a dead session's records are read."""

_PREFIX_FROM: Final = MAX_TXN_OPS
"""Partitions of one topic whose keys are read as one range, and no more one by one."""

_NAMED_WITHIN_MS: Final = 3_600_000
"""From the first PUT of a rewrite to its transaction; 6 h are what the collector allows."""

_RETRY_MS: Final = 10_000
_MOVES_AT_ONCE: Final = 32
"""Slices of the tail that are told of a rewrite before others have their turn."""


class _Kept:
    """A session whose records are kept here."""

    def __init__(self, session_id: str, *, dead: bool) -> None:
        self.session_id = session_id
        self.dead = dead
        self.index = RecordsIndex()
        self.set_aside: set[str] = set()
        """Records whose objects are damaged: neither forgotten for what is not known of them, nor
        rewritten."""


class Keeper:
    """See the module.

    Args:
        logs: the partition, if it is led here.
        kept: whether the records of that session, which is over, are this agent's to keep.
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
        paused: whether stores have more important things to do.
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        footers: Footers,
        logs: Callable[[TopicPartition], PartitionLog | None],
        kept: Callable[[str], bool],
        settings: ConsolidationSettings,
        rng: Random,
        now_ms: Callable[[], float],
        offload: Offload,
        spool: Callable[[], AbstractContextManager[Spool]],
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session = session
        self._footers = footers
        self._logs = logs
        self._is_kept = kept
        self._settings = settings
        self._now_ms = now_ms
        self._offload = offload
        self._paused = paused
        self._rewriting = Rewriting(objects=objects, offload=offload, spool=spool, rng=rng)
        self._log = structlog.get_logger()
        self._own = _Kept(session.session_id, dead=False)
        self._sessions: dict[str, _Kept] = {session.session_id: self._own}
        self._finished: set[str] = set()
        """Dead sessions that have no record, and never will."""
        self._gone: set[UUID] = set()
        """Topics that are gone for sure."""
        self._suspects: set[UUID] = set()
        """Topics that may be gone."""
        self._forgettable: dict[str, KnownRecord] = {}
        self._held: set[str] = set()
        """Records that are being rewritten: they go with that, or when it has failed."""
        self._forget_wanted = asyncio.Event()
        self._topics_wanted = asyncio.Event()
        self._retry_at_ms = 0.0
        self._outage = Outage()
        self.forgotten = 0
        self.rewrites = 0
        self.rewritten_bytes = 0

    @property
    def records(self) -> int:
        """Known records, of our own session and of those that are kept here."""
        return sum(len(kept.index) for kept in self._sessions.values())

    # ── What others say ──

    def committed(
        self, seq: int, record: FlushRecord, ends: Iterable[tuple[TopicPartition, int]]
    ) -> None:
        """Flush *seq* of our session is committed; *ends*: where its slices end."""
        known = self._own.index.add(
            flush_key(self._own.session_id, seq),
            record,
            [(tp, end) for tp, end in ends if tp.topic_id not in self._gone],
            known_ms=self._now_ms(),
        )
        if known is not None:
            self._forget([known])

    def sealed(self, tp: TopicPartition, end: int) -> None:
        """*tp* is sealed below *end*: its key says so."""
        for kept in self._sessions.values():
            self._forget(kept.index.sealed(tp, end))

    def topic_gone(self, topic_id: UUID) -> None:
        """The topic was deleted, or is about to be: look soon whether it is gone."""
        self._suspects.add(topic_id)
        self._topics_wanted.set()

    # ── Life ──

    async def run(self) -> None:
        """Forget and consolidate until cancelled.

        Raises:
            FencedError: the session is over.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forgetting())
                tasks.create_task(self._looking())
                tasks.create_task(self._consolidating())
        except* FencedError as group:
            raise FencedError("the session is over") from group

    async def _forgetting(self) -> None:
        while True:
            await self._forget_wanted.wait()
            self._forget_wanted.clear()
            await self.forget()

    async def _looking(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.sealed_interval_ms / 1000):
                    await self._topics_wanted.wait()
            except TimeoutError:
                await self.look()
            else:
                await self._look_for_topics()

    async def _consolidating(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            while await self.consolidate():
                pass

    # ── Forget ──

    def _forget(self, records: Iterable[KnownRecord]) -> None:
        for known in records:
            self._forgettable[known.key] = known
            self._forget_wanted.set()

    async def forget(self) -> None:
        """Delete the records that nobody needs; their objects go after their grace.

        Raises:
            FencedError: the session is over.
        """
        while batch := [known for key, known in self._forgettable.items() if key not in self._held][
            :MAX_TXN_OPS
        ]:
            if not await self._delete(batch):
                for known in batch:  # one of them is gone already, perhaps by our own attempt
                    await self._delete([known])
            for known in batch:
                self._forgettable.pop(known.key, None)
                self._footers.drop(known.record.object_key)
            self.forgotten += len(batch)

    async def _delete(self, batch: Sequence[KnownRecord]) -> bool:
        txn = flush_transactions.forget([(known.key, known.record) for known in batch])
        return (await self._session.transact(txn)).succeeded

    # ── What is sealed, gone and over elsewhere ──

    async def look(self) -> None:
        """Learn which sessions are over and kept here, and what others have sealed.

        Raises:
            FencedError: our own session is over.
        """
        await self._look_for_sessions()
        await self._look_for_sealed()
        await self._look_for_topics()

    async def _look_for_sessions(self) -> None:
        # Heads first: a head and its session's key are created together.
        heads = {parse_head_key(kv.key) for kv in await self._session.read_prefix(HEADS_PREFIX)}
        live = {
            parse_session_key(kv.key) for kv in await self._session.read_prefix(SESSIONS_PREFIX)
        }
        dead = heads - live
        self._finished &= dead
        for session_id in [s for s, kept in self._sessions.items() if kept.dead]:
            if session_id not in dead or not self._is_kept(session_id):
                del self._sessions[session_id]
        for session_id in sorted(dead):
            known = session_id in self._sessions or session_id in self._finished
            if not known and self._is_kept(session_id):
                await self._load(session_id)

    async def _load(self, session_id: str) -> None:
        """Know the records of a session that is over."""
        kvs = await self._session.read_prefix(flushes_prefix(session_id))
        if not kvs:
            self._finished.add(session_id)
            return
        kept = _Kept(session_id, dead=True)
        for at in range(0, len(kvs), _FOOTERS_AT_ONCE):
            if not await self._know(kept, kvs[at : at + _FOOTERS_AT_ONCE]):
                return  # its records change just now: another time
        self._sessions[session_id] = kept
        self._log.info("session_kept", session=session_id, records=len(kvs))

    async def _know(self, kept: _Kept, kvs: Sequence[KeyValue]) -> bool:
        """Add what these records hold; False: one of them is not there any more."""
        records: list[tuple[str, FlushRecord]] = []
        for kv in kvs:
            try:
                records.append((kv.key, decode_at(kv.key, kv.value, decode_flush_record)))
            except CorruptError as error:
                self._set_aside(kept, kv.key, str(error))
        footers = await self._read_footers(records)
        if footers is None:
            return False
        for (key, record), footer in zip(records, footers, strict=True):
            if isinstance(footer, str):
                self._set_aside(kept, key, footer)
                continue
            self._add(kept, key, record, footer)
        return True

    def _add(self, kept: _Kept, key: str, record: FlushRecord, footer: Footer) -> None:
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

    async def _read_footers(
        self, records: Sequence[tuple[str, FlushRecord]]
    ) -> list[Footer | str] | None:
        """None: one of the records is not there any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                reads = [
                    tasks.create_task(self._footers.get(key, record)) for key, record in records
                ]
        except BaseExceptionGroup as group:
            lost, others = group.split(RecordGoneError)
            if lost is None or others is not None:
                raise
            return None
        return [read.result() for read in reads]

    def _set_aside(self, kept: _Kept, key: str, reason: str) -> None:
        if key in kept.set_aside:
            return
        kept.set_aside.add(key)
        self._log.error(
            "flush_object_damaged",
            session=kept.session_id,
            reason=reason,
            advice="its record stays as it is until the object is restored",
        )

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
        found = {parse_partition_key(kv.key): kv.value for kv in kvs}
        for tp in tps:
            value = found.get(tp)
            if value is None:
                self._suspects.add(tp.topic_id)  # a topic's partitions go with it
                continue
            with contextlib.suppress(CorruptError):  # who would lead it says so
                self.sealed(tp, decode_partition_state(value).sealed_end)

    async def _look_for_topics(self) -> None:
        self._topics_wanted.clear()
        suspects, self._suspects = self._suspects, set()
        if not suspects:
            return
        # Whatever is known by now was read or committed before this read begins.
        kvs = await self._session.read_prefix(TOPICS_PREFIX)
        try:
            there = {decode_at(kv.key, kv.value, decode_topic).topic_id for kv in kvs}
        except CorruptError as error:
            # It may be any of them: nothing is known to be gone.
            self._log.error(
                "topics_unreadable",
                error=str(error),
                advice="flush records of topics that were deleted stay until that key is what it "
                "was; or upgrade the agent",
            )
            return
        for topic_id in suspects - there:
            self._gone.add(topic_id)
            for kept in self._sessions.values():
                self._forget(kept.index.topic_gone(topic_id))

    def _sealed_end(self, tp: TopicPartition) -> int:
        if tp.topic_id in self._gone:
            return _GONE
        return max(kept.index.sealed_end(tp) for kept in self._sessions.values())

    # ── Consolidate ──

    async def consolidate(self) -> bool:
        """Rewrite what is due of one session; False: nothing was.

        Raises:
            FencedError: the session is over.
        """
        now_ms = self._now_ms()
        if now_ms < self._retry_at_ms or self._paused():
            return False
        for kept in list(self._sessions.values()):
            records = sorted(
                (known for known in kept.index if known.key not in kept.set_aside),
                key=lambda known: known.key,
            )
            chosen = choose(records, self._settings, now_ms, dead=kept.dead)
            if chosen:
                return await self._attempt(kept, chosen)
        return False

    async def _attempt(self, kept: _Kept, chosen: list[KnownRecord]) -> bool:
        began_ms = self._now_ms()
        self._held = {known.key for known in chosen}
        done = False
        try:
            done = await self._rewrite(kept, chosen)
        except DamagedSourceError as error:
            self._set_aside(kept, chosen[error.source].key, str(error))
            return True
        except CorruptFlushObjectError as error:
            for known in chosen:
                self._set_aside(kept, known.key, str(error))
        except (UnavailableError, OutcomeUnknownError, TimeoutError, CorruptError) as error:
            self._failed(str(error) or repr(error), began_ms)
        else:
            if self._outage.ended(self._now_ms()):
                self._log.info("consolidation_goes_on", failures=self._outage.failures)
        finally:
            self._held = set()
            self._forget_wanted.set()
        return done

    def _failed(self, error: str, began_ms: float) -> None:
        now_ms = self._now_ms()
        self._retry_at_ms = now_ms + _RETRY_MS
        if self._outage.failed(error, began_ms, now_ms):
            self._log.warning(
                "consolidation_failed",
                error=error,
                failures=self._outage.failures,
                advice="tried again; until then there are more flush records than need be",
            )

    async def _rewrite(self, kept: _Kept, chosen: list[KnownRecord]) -> bool:
        footers: list[Footer] = []
        for known in chosen:
            footer = await self._footer(kept, known)
            if footer is None:
                return True  # there is less to choose from now
            footers.append(footer)
            if how_many_fit(footers, self._settings) < len(footers):
                footers.pop()
                break
        del chosen[len(footers) :]
        objects = await self._lay_out(chosen, footers)
        self._held = {known.key for known in chosen}
        if not objects:
            for known in chosen:
                if known.key in kept.index:
                    kept.index.drop(known)
            self._forget(chosen)
            return True
        seq = max(parse_flush_key(known.key).seq for known in chosen)
        level = level_after(chosen, self._settings)
        old = [(known.record, footer) for known, footer in zip(chosen, footers, strict=True)]
        new: list[tuple[str, FlushRecord]] = []
        made: list[Footer] = []
        index = self._free_index(kept, seq, level)
        began_ms = self._now_ms()
        for n, one in enumerate(objects):
            encoded, footer = await self._offload(encode, one, footers, kept.session_id, seq)
            record = await self._rewriting.write(one, old, encoded, kept.session_id, seq)
            self._footers.keep(record.object_key, encoded)
            new.append((flush_key(kept.session_id, seq, level, index + n), record))
            made.append(footer)
        if not await self._replace(kept, chosen, new, began_ms + _NAMED_WITHIN_MS):
            return True
        self._replaced(kept, chosen, new, made)
        await self._tell_tails(new, made)
        return True

    async def _footer(self, kept: _Kept, known: KnownRecord) -> Footer | None:
        """None: there is none, and the record is not chosen again."""
        try:
            footer = await self._footers.get(known.key, known.record)
        except RecordGoneError:
            await self._know_again(kept)
            return None
        if isinstance(footer, str):
            self._set_aside(kept, known.key, footer)
            return None
        return footer

    async def _lay_out(self, chosen: list[KnownRecord], footers: list[Footer]) -> list[NewObject]:
        """What the new objects consist of; of fewer records, if all are too many."""
        while True:
            objects: list[NewObject] = await self._offload(
                lay_out, footers, self._sealed_end, self._settings.object_bytes
            )
            if fits_transaction(len(chosen), len(objects)):
                return objects
            assert len(chosen) > 1
            del chosen[len(chosen) * 2 // 3 :], footers[len(footers) * 2 // 3 :]

    def _free_index(self, kept: _Kept, seq: int, level: int) -> int:
        """Behind those that stand under the same sequence and level."""
        keys = [*(known.key for known in kept.index), *self._forgettable, *kept.set_aside]
        places = [parse_flush_key(key) for key in keys]
        mine = [
            at.index
            for at in places
            if (at.session_id, at.seq, at.level) == (kept.session_id, seq, level)
        ]
        return max(mine, default=-1) + 1

    async def _replace(
        self,
        kept: _Kept,
        chosen: Sequence[KnownRecord],
        new: Sequence[tuple[str, FlushRecord]],
        until_ms: float,
    ) -> bool:
        """The transaction, sent until *until_ms*; False: the records are others by now, or may
        be."""
        session = self._session
        txn = flush_transactions.consolidate(
            session.session_id,
            session.revision,
            [(known.key, known.record) for known in chosen],
            new,
            dead=kept.session_id if kept.dead else None,
        )
        try:
            async with asyncio.timeout((until_ms - self._now_ms()) / 1000):
                result = await session.transact(txn)
        except TimeoutError:
            await self._know_again(kept)
            raise
        if result.succeeded:
            return True
        mine, first = result.reads
        if first and first[0].value == encode_flush_record(new[0][1]):
            return True  # our own attempt, its answer lost
        if not mine or mine[0].create_revision != session.revision:
            raise FencedError("the session ended while its flushes were consolidated")
        await self._know_again(kept)
        return False

    async def _know_again(self, kept: _Kept) -> None:
        """Records are not as they were known."""
        self._log.info("flush_records_changed", session=kept.session_id)
        if kept.dead:
            self._sessions.pop(kept.session_id, None)
            await self._load(kept.session_id)
            return
        # Of our own only we ourselves can have replaced some, by an attempt that was given up.
        before = list(kept.index)
        kvs = await self._session.read_prefix(flushes_prefix(kept.session_id))
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

    def _replaced(
        self,
        kept: _Kept,
        chosen: Sequence[KnownRecord],
        new: Sequence[tuple[str, FlushRecord]],
        footers: Sequence[Footer],
    ) -> None:
        for known in chosen:
            self._forgettable.pop(known.key, None)
            if known.key in kept.index:
                kept.index.drop(known)
            self._footers.drop(known.record.object_key)
        for (key, record), footer in zip(new, footers, strict=True):
            self._add(kept, key, record, footer)
        size = sum(record.size_bytes for _, record in new)
        self.rewrites += 1
        self.rewritten_bytes += size
        self._log.info(
            "flushes_consolidated",
            session=kept.session_id,
            replaced=len(chosen),
            level=parse_flush_key(new[0][0]).level,
            objects=len(new),
            bytes=size,
        )

    async def _tell_tails(
        self, new: Sequence[tuple[str, FlushRecord]], footers: Sequence[Footer]
    ) -> None:
        """Partitions that are led here read from the new objects; the others find out."""
        told = 0
        for (_, record), footer in zip(new, footers, strict=True):
            for s in footer.slices():
                log = self._logs(TopicPartition(s.topic_id, s.partition))
                if log is None or log.state is State.CLOSED:
                    continue
                tail.move(log, footer, s, record.object_key)
                told += 1
                if told % _MOVES_AT_ONCE == 0:
                    await asyncio.sleep(0)
