"""Deletes unused node ids: an id without an agent is kept for a week, then free for other agents.

    an id, no agent's key ──▶ marked with the time ──7 days──▶ still marked, no agent ──▶ deleted
                                    └── an agent with the id lives ──▶ the mark is removed

An agent that starts on the directory removes the mark before its session begins
(`process/composition/cluster_identity`), and detects there that another directory has the id.  An
agent that has no session for that long ends (`process/composition/agent`).  Marks and deletes
compare the id's key, and that the agent's key does not exist.  The dynamic configs of the broker
are deleted with its id.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from driftlog_metadata.schema.codec import decode_node_id_use
from driftlog_metadata.schema.keys import (
    AGENTS_PREFIX,
    NODE_IDS_PREFIX,
    agent_key,
    parse_node_id_key,
)
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue, MetadataStore
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import HEADS_PER_TXN, KnownNodeId, Txn

HOUR_MS: Final = 3_600_000


_KEEP_MS: Final = 7 * 24 * HOUR_MS
"""How long an unused id is kept.  Longer: a machine keeps its id through a longer outage, and more
small keys are kept."""

_INTERVAL_MS: Final = 6 * HOUR_MS
_DEADLINE_S: Final = 30.0


class NodeIds:
    """See the module.  Only the collector's agent runs it.

    Args:
        confirm: called before each mark and each delete; see `log/garbage/collector`, 6.
    """

    def __init__(self, metadata: MetadataStore, *, confirm: Callable[[], Awaitable[None]]) -> None:
        self._metadata = metadata
        self._confirm = confirm
        self._looked_ms: int | None = None
        self._log = structlog.get_logger()
        self.deleted = 0

    async def collect(self, now_ms: int) -> None:
        """Mark and delete ids, if the interval has passed.

        Args:
            now_ms: the object store's clock, since 1970.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the metadata store does not answer;
                call again later.
            FencedError: the metadata store is not the one that this process has seen.
        """
        looked_ms = self._looked_ms
        if looked_ms is not None and 0 <= now_ms - looked_ms < _INTERVAL_MS:
            return
        ids = await self._read(NODE_IDS_PREFIX)
        live = {kv.key for kv in await self._read(AGENTS_PREFIX)}
        known = [one for one in map(_parsed, ids) if one is not None]
        unused = [one for one in known if agent_key(one.node_id) not in live]
        back = [
            one
            for one in known
            if one.use.unused_since_ms is not None and agent_key(one.node_id) in live
        ]
        new = [one for one in unused if one.use.unused_since_ms is None]
        due = [
            one
            for one in unused
            if one.use.unused_since_ms is not None and now_ms - one.use.unused_since_ms >= _KEEP_MS
        ]
        for batch in _batches(back):
            await self._txn(transactions.mark_used(batch))
        for batch in _batches(new):
            await self._txn(transactions.mark_unused(batch, now_ms))
        deleted = 0
        for batch in _batches(due):
            if await self._txn(transactions.delete_node_ids(batch)):
                deleted += len(batch)
        if deleted:
            self.deleted += deleted
            self._log.info("node_ids_collected", deleted=deleted)
        self._looked_ms = now_ms

    async def _read(self, prefix: str) -> list[KeyValue]:
        async with asyncio.timeout(_DEADLINE_S):
            _, kvs = await self._metadata.get_prefix(prefix)
        return kvs

    async def _txn(self, txn: Txn) -> bool:
        """Send *txn* once; the next `collect` repeats what failed."""
        await self._confirm()
        async with asyncio.timeout(_DEADLINE_S):
            result = await self._metadata.txn(txn.compares, txn.then, txn.otherwise)
        return result.succeeded


def _parsed(kv: KeyValue) -> KnownNodeId | None:
    """Decode a node id; None: unrecognised key or unreadable value, which is kept."""
    try:
        number, use = parse_node_id_key(kv.key), decode_node_id_use(kv.value)
    except (ValueError, CorruptError):
        return None
    return KnownNodeId(node_id=number, revision=kv.mod_revision, use=use)


def _batches(ids: Sequence[KnownNodeId]) -> list[Sequence[KnownNodeId]]:
    return [ids[at : at + HEADS_PER_TXN] for at in range(0, len(ids), HEADS_PER_TXN)]
