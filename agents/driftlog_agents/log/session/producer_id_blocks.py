"""Blocks of producer ids, unique in the cluster, from the metadata store and the bucket.

    /producer_ids: its end ──▶ our block's start ──▶ create producer-ids/{start} in the bucket
                  ▲                                    │ created: the block is ours, and no other
                  │                                    │          agent's, ever
                  └── raised by 2^32, and again ◀──────┤ exists: an older store gave it out again
                                                       └ no answer: the block is not used

    an id in a footer or snapshot ──at or above that end──▶ the store went back: its end is raised
    a manifest that is ahead of the log ──────────────────▶ as well

A block is a thousand ids that begin at a multiple of a thousand, so two blocks overlap only if they
have the same name, and the bucket creates a name once: a metadata store that went back gives no id
out again, even where no log shows the id.  The marks stay for ever: one small object per block.

Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

import asyncio
from typing import Final

import structlog

from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_producer_id_block,
    encode_producer_id_block,
)
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY
from driftlog_metadata.schema.model import ProducerIdBlock
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Get, KeyValue, ModRevisionIs, Put
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_producer_ids
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

BLOCK_SIZE: Final = 1_000
"""Ids of one block: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE.  Never changed: see the module."""

_CREATE_S: Final = 5.0
"""How long the bucket may take to create a mark.  Longer: a client waits longer for a new id;
shorter: with a slow bucket more blocks stay unused, and more requests fail."""

_INT64_MAX: Final = 2**63 - 1

_SKIPPED: Final = 2**32
"""How far above the largest id seen the store's end is raised: the store may have given out ids
there whose producers wrote nothing that is read here.  More than an agent gives out in an hour at a
million a second; the id space has 2^31 times as many."""

_RANGE_BITS: Final = 40
"""Ids are judged by ranges of 2^40.  Only ids up to the range after the one of the store's end are
credible: clients choose what they send, and a client that sends 2^63 − 1 must not use up all ids.
A range has more ids than a store can be behind by."""

_RANGES: Final = 1_000
"""Ranges of which the largest id is kept: those nearest to the store's end."""


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
        await _take(session, node_id, _SKIPPED)
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
        end = 0 if kv is None else _end(kv)
        first = -(-end // BLOCK_SIZE) * BLOCK_SIZE
        if first > _INT64_MAX - size:
            raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
        block = ProducerIdBlock(first_producer_id=first, size=size, node_id=node_id)
        result = await session.transact(_replace(kv, block))
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
    """The largest producer id that a session has seen in the log: new ids are above it.

    An id that the store has not given out came from a store that was lost.  If a new producer got
    that id again, its batches would count as duplicates of the old producer's.  Other signs of a
    lost store raise the store's end as well: ids were given out that no log shows here (yet).

    An id that is not credible hides no credible one: the largest id of each range is kept.  Such an
    id costs no read either: the end that was read last shows that it is not credible.  Each read of
    the end judges it again.
    """

    def __init__(self, session: Session, node_id: int) -> None:
        self._session = session
        self._node_id = node_id
        self._above: dict[int, int] = {}
        """Range → the largest id seen in it, unless it is below the end."""
        self._end = 0
        """The store's end, when it was read last."""
        self._was_read = False
        self._went_back = False
        self._lock = asyncio.Lock()
        self._told = False
        self.settled = True
        """Nothing was seen that may require a raise of the store's end."""
        self.raised = 0
        """How often this session raised the store's end: blocks from before are below an id
        seen."""
        self._log = structlog.get_logger()

    def saw(self, producer_id: int) -> None:
        """Note an id in the log; −1: none.  Call `settle` before an id is given out."""
        if producer_id < self._end or producer_id < 0:
            return
        kind = producer_id >> _RANGE_BITS
        if producer_id <= self._above.get(kind, -1):
            return
        self._above[kind] = producer_id
        if len(self._above) > _RANGES:
            del self._above[max(self._above)]
        if not self._was_read or self._is_credible(producer_id):
            self.settled = False

    def saw_states(self, states: ProducerStates) -> None:
        """As `saw`, for each id of *states*."""
        for producer_id in states.ids_from(self._end):
            self.saw(producer_id)

    def saw_a_lost_store(self) -> None:
        """Note that the bucket has more than the metadata store knows; as `saw`, for unknown ids.

        Counts once per session: later signs are of the same store.
        """
        if not self._went_back:
            self._went_back = True
            self.settled = False

    async def settle(self) -> None:
        """Raise the store's end above the ids seen, if it is not above them.

        One read per session, and more when ids of later blocks were seen.

        Raises:
            FencedError: the session ended first.
        """
        async with self._lock:
            while not self.settled:
                kv = await self._session.read(PRODUCER_IDS_KEY)
                try:
                    self._judge(0 if kv is None else _end(kv))
                except CorruptError as error:
                    self._log.error(
                        "producer_ids_unreadable",
                        error=str(error),
                        advice="restore that key; until then no producer id is given out",
                    )
                    return
                seen = max(filter(self._is_credible, self._above.values()), default=-1)
                if self._went_back and not self.raised and self._end < _INT64_MAX - _SKIPPED:
                    seen = max(seen, self._end)
                if seen < 0:
                    self.settled = True
                else:
                    await self._raise(kv, seen)

    def _judge(self, end: int) -> None:
        self._was_read, self._end = True, end
        self._above = {kind: seen for kind, seen in self._above.items() if seen >= end}
        strange = [seen for seen in self._above.values() if not self._is_credible(seen)]
        if strange and not self._told:
            self._told = True
            self._log.warning(
                "producer_ids_not_believed",
                smallest=min(strange),
                store=end,
                advice="a client makes up its producer ids; another producer may get the same id",
            )

    def _is_credible(self, producer_id: int) -> bool:
        near = producer_id >> _RANGE_BITS <= (self._end >> _RANGE_BITS) + 1
        return near and producer_id < _INT64_MAX - _SKIPPED

    async def _raise(self, kv: KeyValue | None, seen: int) -> None:
        skipped = ProducerIdBlock(first_producer_id=seen, size=_SKIPPED, node_id=self._node_id)
        result = await self._session.transact(_replace(kv, skipped))
        if result.succeeded:
            self.raised += 1
            self._log.warning(
                "producer_ids_raised",
                seen=seen,
                store=self._end,
                advice="the log has producer ids that the metadata store has not given out, or "
                "more than that store knows: it is older than the bucket, or a client makes up "
                "its ids",
            )


def _end(kv: KeyValue) -> int:
    last = decode_at(kv.key, kv.value, decode_producer_id_block)
    return last.first_producer_id + last.size


def _replace(kv: KeyValue | None, block: ProducerIdBlock) -> Txn:
    """If the key has changed, the transaction reads it."""
    return Txn(
        compares=(ModRevisionIs(PRODUCER_IDS_KEY, kv.mod_revision if kv else 0),),
        then=(Put(PRODUCER_IDS_KEY, encode_producer_id_block(block)),),
        otherwise=(Get(PRODUCER_IDS_KEY),),
    )
