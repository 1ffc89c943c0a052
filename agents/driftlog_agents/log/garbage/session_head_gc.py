"""Heads of sessions that are over: kept while a session may read them, then deleted.

    a head, its session's key gone ──▶ the final head is in the bucket ──▶ marked with the time
        ──7 days──▶ not needed ──▶ deleted

A head outlives its session so that a commit without an answer can be resolved ("head ≥ seq means
committed, whether or not the session lives").  It is deleted only when

1. its session's key was gone in a read that began after the head was read: head and key are
   created together, so that session is over for good;
2. it was marked 7 days ago, by the clock of the object store.  The mark is in the head itself, so
   that it does not depend on this agent's disk;
3. reads that began after (1) show no flush record of it, and no partition whose list names it:
   neither can be created any more, so these reads need not be of one revision.  Records are read
   for the heads that are due, partitions in pages by the first digit of their topics' ids;
4. there is no directory of it on this disk: the recovery of its buffer needs the head;
5. head and key are unchanged since they were read.

From the mark on no agent puts the session's final head, which may be deleted already
(`consolidation/final_heads`).  So this puts it before the mark; usually it exists.

An unreadable head stays, and so does a key that is no head of a session.

Source: design.md, "Commit" and "Forget".

Shell.
"""

import asyncio
import contextlib
from collections.abc import Set
from typing import Final

import structlog

from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.dead_heads import (
    DeadHeads,
    HeadSettings,
    in_transactions,
    judge,
    unneeded,
)
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.session.unknown_keys import UnknownKeys, head_of, session_of
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_cluster,
    decode_partition_state,
)
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    HEADS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    flushes_prefix,
    head_key,
    parse_partition_key,
)
from driftlog_metadata.schema.model import CLOSED, FINAL_HEADS_LEVEL
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import DeadHead, Txn
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import FinalHead, encode_final_head
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import AlreadyExistsError

_PAGES: Final = 16
"""Pages of all partitions' keys, by topic: some thousands of 100,000 in each, about two MB."""


class SessionHeadGc:
    """See the module.  One runs in a cluster at a time: the collector's."""

    def __init__(
        self,
        *,
        stores: ConfirmedStores,
        disk: AgentDisk,
        offload: Offload,
        unknown_keys: UnknownKeys,
        settings: HeadSettings | None = None,
    ) -> None:
        self._metadata = stores.metadata
        self._objects = stores.objects
        self._disk = disk
        self._offload = offload
        self._unknown_keys = unknown_keys
        self._confirm = stores.confirm
        self._settings = settings or HeadSettings()
        self._reads = CollectorReads(
            stores.metadata, request_retry(self._settings.request_deadline_ms)
        )
        self._looked_ms: int | None = None
        self._unreadable: Set[str] = frozenset()
        """Keys of heads that were unreadable at the last check."""
        self._log = structlog.get_logger()
        self.deleted = 0

    async def collect(self, now_ms: int) -> None:
        """Marks and deletes due heads, if `interval_ms` has passed.  *now_ms*: the object store's
        time.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the metadata store; try again
                later.
            FencedError: the metadata store is not the cluster's.
            CorruptError: a partition's state is damaged; nothing was deleted.
        """
        if not self._settings.is_due(self._looked_ms, now_ms):
            return
        heads = await self._reads.prefix(HEADS_PREFIX)  # before the sessions: see the module, 1
        sessions = await self._reads.prefix(SESSIONS_PREFIX)
        dead = await self._offload(self._judge, heads, sessions, now_ms)
        if dead.to_mark or dead.due:
            await self._confirm()
        for batch in in_transactions(await self._with_final_heads(dead.to_mark)):
            await self._txn(transactions.mark_ended(batch, now_ms))
        if dead.due:
            await self._delete(dead.due)
        self._looked_ms = now_ms

    def _judge(self, heads: list[KeyValue], sessions: list[KeyValue], now_ms: int) -> DeadHeads:
        parsed = self._unknown_keys.parsed
        found = judge(
            {name: kv for kv in heads if (name := parsed(kv.key, head_of)) is not None},
            {parsed(kv.key, session_of) for kv in sessions},
            now_ms,
            self._settings.keep_ms,
        )
        for key in found.unreadable.keys() - self._unreadable:
            self._log.error(
                "head_unreadable",
                error=str(found.unreadable[key]),
                advice="the head is not deleted; restore the key, or upgrade the agent",
            )
        self._unreadable = found.unreadable.keys()
        return found

    async def _with_final_heads(self, new: list[DeadHead]) -> list[DeadHead]:
        """Those of *new* whose final heads are in the bucket, or that have none."""
        if not new or not await self._has_final_heads():
            return new
        there: list[DeadHead] = []
        for dead in new:
            # Read after the session's key was gone: it does not grow any more.  One that has grown
            # since the first read is found by the next check.
            (kv,) = await self._reads.get(head_key(dead.session_id))
            if kv is None or kv.mod_revision != dead.revision:
                continue
            if dead.head != CLOSED:  # which is no number
                try:
                    await self._put_final_head(FinalHead(dead.session_id, dead.head, dead.revision))
                except NO_ANSWER as error:
                    session_id = dead.session_id
                    self._log.debug("final_head_not_put", session=session_id, error=str(error))
                    break
            there.append(dead)
        return there

    async def _put_final_head(self, final: FinalHead) -> None:
        key = layout.final_head_key(final.session_id, final.head)
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            with contextlib.suppress(AlreadyExistsError):
                await self._objects.create(key, [encode_final_head(final)])

    async def _has_final_heads(self) -> bool:
        """Whether every agent of the cluster knows them."""
        (kv,) = await self._reads.get(CLUSTER_KEY)
        if kv is None:
            return False
        cluster = decode_at(kv.key, kv.value, decode_cluster)
        return cluster.format_version >= FINAL_HEADS_LEVEL

    async def _delete(self, due: list[DeadHead]) -> None:
        kept = set(self._disk.sessions())
        for head in due:
            if await self._reads.prefix(flushes_prefix(head.session_id)):
                kept.add(head.session_id)
        for page in range(_PAGES):
            kvs = await self._reads.prefix(f"{PARTITIONS_PREFIX}{page:x}")
            if kvs:
                kept |= await self._offload(self._sessions_of, kvs)
        deleted = 0
        for batch in in_transactions(unneeded(due, kept)):
            await self._confirm()
            if await self._txn(transactions.delete_heads(batch)):
                deleted += len(batch)
        self.deleted += deleted
        self._log.info("heads_collected", deleted=deleted, still_needed=len(due) - deleted)

    def _sessions_of(self, partitions: list[KeyValue]) -> set[str]:
        states = self._unknown_keys.decoded(partitions, decode_partition_state, parse_partition_key)
        return {session_id for state in states for session_id in state.sessions}

    async def _txn(self, txn: Txn) -> bool:
        """Sends *txn* once: the next check repeats what failed."""
        async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
            result = await self._metadata.txn(txn.compares, txn.then, txn.otherwise)
        return result.succeeded
