"""One rewrite: the chosen flush records of a session are replaced by fewer ones.

    chosen ──▶ footers ──▶ layout ──▶ objects, one after the other ──▶ one transaction
                 ╳ unavailable: the next                    ╳ the records have changed: they are
                   choice is without it                       reloaded, the objects stay unnamed
           ──▶ the tails of partitions that are led here read from the new objects

Shell.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from driftlog_agents.log.consolidation.flush_record_index import (
    FlushRecordEntry,
    SessionFlushRecords,
)
from driftlog_agents.log.consolidation.managed_records import ManagedFlushRecords, Replacement
from driftlog_agents.log.consolidation.object_layout import encode, how_many_fit, lay_out_most
from driftlog_agents.log.consolidation.object_rewriter import ObjectRewriter
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.consolidation.replacement import RecordReplacement, ReplacementOutcome
from driftlog_agents.log.objects.footer_cache import FooterCache
from driftlog_agents.log.partition import tail
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import parse_flush_key
from driftlog_metadata.schema.model import FOOTER_FACTS_LEVEL, FlushRecord, TopicPartition
from driftlog_metadata.stores.errors import FencedError
from driftlog_tiering.formats.flush_object import Footer
from driftlog_tiering.foundation.types import Offload

_MOVES_AT_ONCE: Final = 8
"""Slices of tails that are updated before the event loop runs."""


class RecordsChangedError(Exception):
    """The records of the session have changed, or may have, and must be loaded again: the new
    objects stay unnamed.

    *answered*: the metadata store refused the transaction; otherwise it did not answer.
    """

    def __init__(self, why: str, *, answered: bool) -> None:
        super().__init__(why)
        self.answered = answered


class RewriteJob:
    """See the module."""

    def __init__(
        self,
        *,
        session: Session,
        footers: FooterCache,
        rewriter: ObjectRewriter,
        records: ManagedFlushRecords,
        logs: Callable[[TopicPartition], PartitionLog | None],
        settings: ConsolidationSettings,
        offload: Offload,
        now_ms: Callable[[], float],
    ) -> None:
        self._session = session
        self._footers = footers
        self._rewriter = rewriter
        self.records = records
        self._logs = logs
        self._settings = settings
        self._offload = offload
        self._now_ms = now_ms
        self._log = structlog.get_logger()
        self.rewrites = 0
        self.rewritten_bytes = 0

    async def rewrite(self, managed: SessionFlushRecords, chosen: list[FlushRecordEntry]) -> bool:
        """Replaces *chosen*, or the first ones that fit into one rewrite: the others are removed
        from the list.  Returns True.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store, or the disk; try again.
            ObjectUnavailableError, DamagedObjectError: the object of one of *chosen*.
            CorruptFlushObjectError: they contradict each other.
            RecordGoneError, RecordsChangedError: load the records again.
            FencedError: the session is over.
        """
        footers: list[Footer] = []
        for known in chosen:
            footers.append(await self._footers.get(known.key, known.record))
            if how_many_fit(footers, self._settings) < len(footers):
                footers.pop()
                break
        count, objects = await self._offload(
            lay_out_most, footers, self.records.sealed_end, self._settings.object_bytes
        )
        del chosen[count:], footers[count:]
        new: list[tuple[str, FlushRecord]] = []
        made: list[Footer] = []
        if objects:
            keys = self.records.new_keys(managed, chosen, len(objects))
            old = [(known.record, footer) for known, footer in zip(chosen, footers, strict=True)]
            seq = parse_flush_key(keys[0]).seq
            began_ms = self._now_ms()
            has_facts = self._session.author.format_version >= FOOTER_FACTS_LEVEL
            for key, one in zip(keys, objects, strict=True):
                name = parse_flush_key(key)
                place = (name.level, name.index) if has_facts else None
                encoded, footer = await self._offload(
                    encode, one, footers, managed.session_id, seq, place
                )
                record = await self._rewriter.write(
                    one, old, encoded, managed.session_id, seq, place
                )
                self._footers.keep(record.object_key, encoded)
                new.append((key, record))
                made.append(footer)
            await self._replace(managed, chosen, new, began_ms + self._settings.named_within_ms)
        self._note(managed, chosen, list(zip(new, made, strict=True)))
        await self._tell_tails(new, made)
        return True

    def _note(
        self,
        managed: SessionFlushRecords,
        old: Sequence[FlushRecordEntry],
        new: Sequence[Replacement],
    ) -> None:
        for key in self.records.replaced(managed, old, new, self._now_ms()):
            self._log.info("flush_object_readable_again", record=key)
        for known in old:
            self._footers.drop(known.record.object_key)
        if new:
            self._say(managed, len(old), [one for one, _ in new])

    def _say(
        self, managed: SessionFlushRecords, old: int, new: Sequence[tuple[str, FlushRecord]]
    ) -> None:
        size = sum(record.size_bytes for _, record in new)
        self.rewrites += 1
        self.rewritten_bytes += size
        self._log.debug(
            "flushes_consolidated",
            session=managed.session_id,
            replaced=old,
            level=parse_flush_key(new[0][0]).level,
            objects=len(new),
            bytes=size,
        )

    async def _replace(
        self,
        managed: SessionFlushRecords,
        chosen: Sequence[FlushRecordEntry],
        new: Sequence[tuple[str, FlushRecord]],
        until_ms: float,
    ) -> None:
        """Sends the transaction until *until_ms*."""
        session = self._session
        replacement = RecordReplacement(session.session_id, session.revision, managed, chosen, new)
        try:
            async with asyncio.timeout((until_ms - self._now_ms()) / 1000):
                result = await session.transact(replacement.txn)
        except TimeoutError as error:
            raise RecordsChangedError("no answer in time", answered=False) from error
        match replacement.outcome(result):
            case ReplacementOutcome.SESSION_OVER:
                raise FencedError("the session ended while its flushes were consolidated")
            case ReplacementOutcome.CHANGED:
                raise RecordsChangedError("the records have changed", answered=True)
            case ReplacementOutcome.REPLACED:
                return

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
