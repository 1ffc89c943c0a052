"""One rewrite: the chosen flush records of a session are replaced by fewer ones.

    chosen ──▶ footers ──▶ layout ──▶ objects, one after the other ──▶ one transaction
                 ╳ unavailable: the next                    ╳ the records have changed: they are
                   choice is without it                       reloaded, the objects stay unnamed
           ──▶ the tails of partitions that are led here read from the new objects

Shell.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_agents.log.consolidation.object_rewriter import ObjectRewriter
from driftlog_agents.log.consolidation.policy import (
    ConsolidationSettings,
    NewObject,
    encode,
    fits_transaction,
    how_many_fit,
    lay_out,
    level_after,
)
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.partition import tail
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import encode_flush_record
from driftlog_metadata.schema.keys import flush_key, parse_flush_key
from driftlog_metadata.schema.model import FOOTER_FACTS_LEVEL, FlushRecord, TopicPartition
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.transactions import flush_transactions
from driftlog_tiering.formats.flush_object import Footer

_MOVES_AT_ONCE: Final = 8
"""Slices of tails that are updated before the event loop runs."""

Replacement = tuple[tuple[str, FlushRecord], Footer]
"""A new record with its key, and the footer of its object."""


class FlushRecordOwner(Protocol):
    """The part of `FlushRecordGc` that a rewrite needs."""

    def sealed_end(self, tp: TopicPartition) -> int:
        """The offset below which no batch of *tp* is needed; also called from worker threads."""
        ...

    def keys(self, kept: SessionFlushRecords) -> list[str]:
        """The keys of all records of *kept* that may exist."""
        ...

    def unavailable(self, kept: SessionFlushRecords, key: str, reason: str) -> None:
        """Notes that the record's object cannot be read now."""
        ...

    async def know_again(self, kept: SessionFlushRecords) -> None:
        """Reloads the records of *kept*: they have changed."""
        ...

    def replaced(
        self, kept: SessionFlushRecords, old: Sequence[FlushRecordEntry], new: Sequence[Replacement]
    ) -> None:
        """Replaces *old* by *new* in the index; empty: all batches of *old* are sealed."""
        ...


class RewriteJob:
    """See the module."""

    def __init__(
        self,
        *,
        session: Session,
        footers: FooterCache,
        rewriting: ObjectRewriter,
        keeping: FlushRecordOwner,
        logs: Callable[[TopicPartition], PartitionLog | None],
        settings: ConsolidationSettings,
        offload: Offload,
        now_ms: Callable[[], float],
    ) -> None:
        self._session = session
        self._footers = footers
        self._rewriting = rewriting
        self._keeping = keeping
        self._logs = logs
        self._settings = settings
        self._offload = offload
        self._now_ms = now_ms
        self._log = structlog.get_logger()
        self.rewrites = 0
        self.rewritten_bytes = 0

    async def rewrite(self, kept: SessionFlushRecords, chosen: list[FlushRecordEntry]) -> bool:
        """Replaces *chosen*, or the first ones that fit into one rewrite: the others are removed
        from the list.  False: the rewrite failed; try again later.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store, or the disk; try again.
            ObjectUnavailableError, DamagedObjectError: the object of one of *chosen*.
            CorruptFlushObjectError: they contradict each other.
            FencedError: the session is over.
        """
        footers: list[Footer] = []
        for known in chosen:
            footer = await self._footer(kept, known)
            if footer is None:
                return True  # the next choice is without this record
            footers.append(footer)
            if how_many_fit(footers, self._settings) < len(footers):
                footers.pop()
                break
        del chosen[len(footers) :]
        objects = await self._lay_out(chosen, footers)
        if not objects:
            self._keeping.replaced(kept, chosen, [])
            return True
        seq = max(parse_flush_key(known.key).seq for known in chosen)
        level = level_after(chosen, self._settings)
        old = [(known.record, footer) for known, footer in zip(chosen, footers, strict=True)]
        new: list[tuple[str, FlushRecord]] = []
        made: list[Footer] = []
        index = self._free_index(kept, seq, level)
        began_ms = self._now_ms()
        has_facts = self._session.author.format_version >= FOOTER_FACTS_LEVEL
        for n, one in enumerate(objects):
            place = (level, index + n) if has_facts else None
            encoded, footer = await self._offload(encode, one, footers, kept.session_id, seq, place)
            record = await self._rewriting.write(one, old, encoded, kept.session_id, seq, place)
            self._footers.keep(record.object_key, encoded)
            new.append((flush_key(kept.session_id, seq, level, index + n), record))
            made.append(footer)
        until_ms = began_ms + self._settings.named_within_ms
        if not await self._replace(kept, chosen, new, until_ms):
            return False
        self._keeping.replaced(kept, chosen, list(zip(new, made, strict=True)))
        self._say(kept, len(chosen), new)
        await self._tell_tails(new, made)
        return True

    def _say(
        self, kept: SessionFlushRecords, old: int, new: Sequence[tuple[str, FlushRecord]]
    ) -> None:
        size = sum(record.size_bytes for _, record in new)
        self.rewrites += 1
        self.rewritten_bytes += size
        self._log.debug(
            "flushes_consolidated",
            session=kept.session_id,
            replaced=old,
            level=parse_flush_key(new[0][0]).level,
            objects=len(new),
            bytes=size,
        )

    async def _footer(self, kept: SessionFlushRecords, known: FlushRecordEntry) -> Footer | None:
        """The footer; None: it is unavailable, and the record is not chosen until it is due."""
        try:
            return await self._footers.get(known.key, known.record)
        except RecordGoneError:
            await self._keeping.know_again(kept)
        except ObjectUnavailableError as error:
            self._keeping.unavailable(kept, known.key, str(error))
        return None

    async def _lay_out(
        self, chosen: list[FlushRecordEntry], footers: list[Footer]
    ) -> list[NewObject]:
        """The layout of the new objects; of fewer records if all do not fit into a transaction."""
        while True:
            objects: list[NewObject] = await self._offload(
                lay_out, footers, self._keeping.sealed_end, self._settings.object_bytes
            )
            if fits_transaction(len(chosen), len(objects)):
                return objects
            assert len(chosen) > 1
            del chosen[len(chosen) * 2 // 3 :], footers[len(footers) * 2 // 3 :]

    def _free_index(self, kept: SessionFlushRecords, seq: int, level: int) -> int:
        """The first index after those of records with the same sequence number and level."""
        places = [parse_flush_key(key) for key in self._keeping.keys(kept)]
        mine = [
            at.index
            for at in places
            if (at.session_id, at.seq, at.level) == (kept.session_id, seq, level)
        ]
        return max(mine, default=-1) + 1

    async def _replace(
        self,
        kept: SessionFlushRecords,
        chosen: Sequence[FlushRecordEntry],
        new: Sequence[tuple[str, FlushRecord]],
        until_ms: float,
    ) -> bool:
        """Sends the transaction until *until_ms*; False: the records have changed meanwhile."""
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
            await self._keeping.know_again(kept)
            raise
        if result.succeeded:
            return True
        mine, first = result.reads
        if first and first[0].value == encode_flush_record(new[0][1]):
            return True  # an earlier try; its answer was lost
        if not mine or mine[0].create_revision != session.revision:
            raise FencedError("the session ended while its flushes were consolidated")
        await self._keeping.know_again(kept)
        return False

    async def _tell_tails(
        self, new: Sequence[tuple[str, FlushRecord]], footers: Sequence[Footer]
    ) -> None:
        """Updates the tails of partitions that are led here; other leaders find out later."""
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
