"""Heads of sessions that are over: kept while somebody may ask for them, then deleted.

    a head, its session's key gone ──▶ marked with the time ──7 days──▶ nobody needs it ──▶ deleted

A head outlives its session so that a commit without an answer can be resolved ("head ≥ seq means
committed, whether or not the session lives").  It goes only when

1. its session's key was gone in a read that began after the head was read: head and key are
   created together, so that session is over for good;
2. it was marked 7 days ago, by the clock of the object store.  The mark is in the head itself, so
   that it does not depend on this agent's disk;
3. reads that began after (1) show no flush record of it, and no partition whose list names it:
   neither can come into being any more;
4. there is no directory of it on this disk: what it buffered is put in order by its head;
5. head and key are as they were read.

A head that cannot be read stays, and so does what is nobody's head.

Source: design.md, "Commit" and "Forget".

Shell.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.strangers import Strangers, head_of, session_of
from driftlog_metadata import transactions
from driftlog_metadata.codec import (
    decode_at,
    decode_ended_head,
    decode_head,
    decode_partition_state,
)
from driftlog_metadata.errors import CorruptError
from driftlog_metadata.keys import (
    FLUSHES_PREFIX,
    HEADS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    flushes_prefix,
    parse_partition_key,
)
from driftlog_metadata.store import KeyValue, MetadataStore
from driftlog_metadata.transactions import HEADS_PER_TXN, DeadHead, Txn

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """How long heads stay, and how often that is looked at."""

    keep_ms: int = 7 * 24 * HOUR_MS
    """Longer: a commit may wait longer for its answer, and more small keys are kept."""

    interval_ms: int = 6 * HOUR_MS
    """Between two looks.  Each reads heads and sessions, and all partitions where a head is due."""

    request_deadline_ms: float = 30_000.0


class Heads:
    """See the module.  One per cluster at a time, for now: the collector's."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        disk: AgentDisk,
        settings: HeadSettings | None = None,
        strangers: Strangers,
    ) -> None:
        self._metadata = metadata
        self._disk = disk
        self._settings = settings or HeadSettings()
        self._looked_ms: int | None = None
        self._strangers = strangers
        self._unreadable: set[str] = set()
        """Heads of the last look that could not be read."""
        self._log = structlog.get_logger()
        self.deleted = 0

    async def collect(self, now_ms: int) -> None:
        """Mark and delete what is due, if it is time to look.  *now_ms*: of the object store.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the store; look again later.
            CorruptError: a partition's state is damaged; no more is deleted.
        """
        looked_ms, settings = self._looked_ms, self._settings
        if looked_ms is not None and 0 <= now_ms - looked_ms < settings.interval_ms:
            return
        heads = await self._read(HEADS_PREFIX)  # before the sessions: see the module, 1
        parsed = self._strangers.parsed
        live = {parsed(kv.key, session_of) for kv in await self._read(SESSIONS_PREFIX)}
        new: list[DeadHead] = []
        due: list[DeadHead] = []
        unreadable: set[str] = set()
        for kv in heads:
            session_id = parsed(kv.key, head_of)
            if session_id is None or session_id in live:
                continue
            try:
                head = decode_at(kv.key, kv.value, decode_head)
                ended = decode_ended_head(kv.value)
            except CorruptError as error:
                unreadable.add(kv.key)
                self._say(kv.key, error)
                continue
            dead = DeadHead(session_id=session_id, revision=kv.mod_revision, head=head)
            if ended is None:
                new.append(dead)
            elif now_ms - ended.ended_ms >= settings.keep_ms:
                due.append(dead)
        self._unreadable = unreadable
        for batch in _batches(new):
            await self._txn(transactions.mark_ended(batch, now_ms))
        if due:
            await self._delete(due)
        self._looked_ms = now_ms

    async def _delete(self, due: list[DeadHead]) -> None:
        recorded = {kv.key[: kv.key.rindex("/") + 1] for kv in await self._read(FLUSHES_PREFIX)}
        kept = set(self._disk.sessions())
        states = self._strangers.decoded(
            await self._read(PARTITIONS_PREFIX), decode_partition_state, parse_partition_key
        )
        kept.update(session_id for state in states for session_id in state.sessions)
        gone = [
            head
            for head in due
            if head.session_id not in kept and flushes_prefix(head.session_id) not in recorded
        ]
        deleted = 0
        for batch in _batches(gone):
            if await self._txn(transactions.delete_heads(batch)):
                deleted += len(batch)
        self.deleted += deleted
        self._log.info("heads_collected", deleted=deleted, still_needed=len(due) - deleted)

    def _say(self, key: str, error: CorruptError) -> None:
        if key not in self._unreadable:
            self._log.error(
                "head_unreadable",
                error=str(error),
                advice="it stays; put back what it was, or upgrade the agent",
            )

    async def _read(self, prefix: str) -> list[KeyValue]:
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            _, kvs = await self._metadata.get_prefix(prefix)
        return kvs

    async def _txn(self, txn: Txn) -> bool:
        """Once: what was not done is done at the next look."""
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            result = await self._metadata.txn(txn.compares, txn.then, txn.otherwise)
        return result.succeeded


def _batches(heads: list[DeadHead]) -> Iterable[list[DeadHead]]:
    return (heads[at : at + HEADS_PER_TXN] for at in range(0, len(heads), HEADS_PER_TXN))
