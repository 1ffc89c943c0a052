"""Blocks of producer ids, unique in the cluster, from the metadata store and the bucket.

    /producer_ids: its end ──▶ our block's start ──▶ create producer-ids/{start} in the bucket
                  ▲                                    │ created: the block is ours, and no other
                  │                                    │          agent's, ever
                  └── raised by 2^32, and again ◀──────┤ exists: an older store gave it out again
                                                       └ no answer: the block is not used

    an id in a footer or snapshot ──at or above that end──▶ the store went back: its end is raised
    a manifest that is ahead of the log ──────────────────▶ as well

Two blocks overlap only if they have the same name (`producer_id_ranges`), and the bucket creates a
name once: a metadata store that went back gives no id out again, even where no log shows the id.
The marks stay for ever: one small object per block.

Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

import asyncio
from typing import Final

import structlog

from driftlog_agents.log.session.producer_id_ranges import (
    BLOCK_SIZE,
    SKIPPED,
    SeenProducerIds,
    block_after,
    end_of,
    replace,
)
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY
from driftlog_metadata.schema.model import ProducerIdBlock
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_producer_ids
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

_CREATE_S: Final = 5.0
"""How long the bucket may take to create a mark.  Longer: a client waits longer for a new id;
shorter: with a slow bucket more blocks stay unused, and more requests fail."""


async def next_block(session: Session, objects: ObjectStore, node_id: int) -> ProducerIdBlock:
    """The next thousand ids.  After a lost answer some are skipped, and none is taken twice.

    Raises:
        RefusedError: UNKNOWN_SERVER_ERROR: all 2^63 are used up.
        UnavailableError: the bucket did not create the block's mark; try again.
        CorruptError: the store's key cannot be read.
        FencedError: the session ended first.
    """
    while True:
        block = await _take(session, node_id, BLOCK_SIZE)
        if await _mark(objects, block, session.session_id):
            return block
        await _take(session, node_id, SKIPPED)
        structlog.get_logger().warning(
            "producer_ids_raised",
            seen=block.first_producer_id,
            store=block.first_producer_id,
            advice="no action needed, the ids are skipped: the bucket shows that they were given "
            "out, so the metadata store is older than the bucket",
        )


async def _take(session: Session, node_id: int, size: int) -> ProducerIdBlock:
    """*size* ids that this store has not given out before."""
    kv = await session.read(PRODUCER_IDS_KEY)
    while True:
        block = block_after(0 if kv is None else end_of(kv), size, node_id)
        result = await session.transact(replace(kv, block))
        if result.succeeded:
            return block
        kv = result.reads[0][0] if result.reads[0] else None


async def _mark(objects: ObjectStore, block: ProducerIdBlock, session_id: str) -> bool:
    """Create the block's mark, in one attempt; False: it exists already.

    An attempt without an answer is not repeated: its mark could not be told from another agent's.
    """
    key = layout.producer_ids_key(block.first_producer_id)
    try:
        async with asyncio.timeout(_CREATE_S):
            await objects.create(key, [encode_producer_ids(block, session_id)])
    except AlreadyExistsError:
        return False
    except (OutcomeUnknownError, TimeoutError) as error:
        raise UnavailableError(f"{key}: {str(error) or 'no answer in time'}") from error
    return True


class ProducerIdFloor:
    """Keeps the store's end above the producer ids that one session has `seen` in the log."""

    def __init__(self, session: Session, node_id: int) -> None:
        self._session = session
        self._node_id = node_id
        self._lock = asyncio.Lock()
        self._told = False
        self.seen = SeenProducerIds()
        self.raised = 0
        """How often this session raised the store's end: blocks from before are below an id
        seen."""
        self._log = structlog.get_logger()

    @property
    def settled(self) -> bool:
        """Whether the store's end is above all that was seen."""
        return self.seen.settled

    async def settle(self) -> None:
        """Raise the store's end above the ids seen, if it is not above them.

        One read per session, and more when ids of later blocks were seen.

        Raises:
            FencedError: the session ended first.
        """
        async with self._lock:
            while not self.seen.settled:
                kv = await self._session.read(PRODUCER_IDS_KEY)
                try:
                    end = 0 if kv is None else end_of(kv)
                except CorruptError as error:
                    self._log.error(
                        "producer_ids_unreadable",
                        error=str(error),
                        advice="restore that key; until then no producer id is given out",
                    )
                    return
                self._report(self.seen.read_end(end), end)
                seen = self.seen.above_end()
                if seen is not None:
                    await self._raise(kv, seen)

    def _report(self, incredible: list[int], end: int) -> None:
        if incredible and not self._told:
            self._told = True
            self._log.warning(
                "producer_ids_not_believed",
                smallest=min(incredible),
                store=end,
                advice="a client makes up its producer ids; another producer may get the same id",
            )

    async def _raise(self, kv: KeyValue | None, seen: int) -> None:
        skipped = ProducerIdBlock(first_producer_id=seen, size=SKIPPED, node_id=self._node_id)
        result = await self._session.transact(replace(kv, skipped))
        if result.succeeded:
            self.raised += 1
            self.seen.raised()
            self._log.warning(
                "producer_ids_raised",
                seen=seen,
                store=0 if kv is None else end_of(kv),
                advice="the log has producer ids that the metadata store has not given out, or "
                "more than that store knows: it is older than the bucket, or a client makes up "
                "its ids",
            )
