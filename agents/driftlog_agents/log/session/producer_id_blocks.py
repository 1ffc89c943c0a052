"""Blocks of producer ids, unique in the cluster, from the metadata store and the bucket.

    /producer_ids: its end ──▶ our block's start ──▶ create producer-ids/{start} in the bucket
                  ▲                                    │ created: the block is ours, and no other
                  │                                    │          agent's, ever
                  └── raised by 2^32, and again ◀──────┤ exists: an older store gave it out again
                                                       └ no answer: the block is not used

    an id in a footer or snapshot ──at or above that end──▶ the store went back: its end is raised
    a manifest that is ahead of the log ──────────────────▶ as well

A block is a thousand ids that begin at a multiple of a thousand, so two blocks overlap only if they
have one name, and one name is created once: a metadata store that went back gives nothing out
again, also where no log shows an id.  The marks stay for ever: one small object per block.

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
"""Ids to a write: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE.  Never changed: see the module."""

_CREATE_S: Final = 5.0
"""How long the bucket may take.  Longer: a client waits longer for a new id; shorter: a slow bucket
costs more ids and answers."""

_INT64_MAX: Final = 2**63 - 1

_SKIPPED: Final = 2**32
"""How far above the largest id that was seen the store is raised: ids that were given out, and
whose producers have written nothing that is read here, lie there.  More than an agent that gives
out a million a second does in an hour; 2^31 times as many are left."""

_RANGE_BITS: Final = 40
"""Ids are judged by ranges of 2^40.  The range of the store's end and the next one are believed,
and no others: clients choose what they send, and one that sends 2^63 − 1 must not use up all ids.
More than a store can be behind by what was given out."""

_RANGES: Final = 1_000
"""Of so many the largest id is kept, of those nearest to the store's end."""


async def next_block(session: Session, objects: ObjectStore, node_id: int) -> ProducerIdBlock:
    """The next thousand ids.  After a lost answer some are skipped, and none is taken twice.

    Raises:
        RefusedError: UNKNOWN_SERVER_ERROR: all 2^63 are used up.
        UnavailableError: the bucket does not take the block's mark, for now.
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
            advice="the bucket says that these producer ids were given out, and the metadata store "
            "does not know it: it is older than the bucket",
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
    """Create the block's mark, in one attempt; False: there is one.

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
    """The largest producer id that a session has seen in the log: none up to it is new.

    One that the store has not given out was given out by a store that was lost: a producer that got
    it again would have its batches taken for duplicates of another one's.  What else says that a
    store was lost raises its end as well: ids were given out that nothing shows here (yet).

    An id that is not credible hides none that is: the largest one is kept of each range.  It costs
    no read either: the end that was read last says that it is not credible.  It is judged again
    whenever the end is read.
    """

    def __init__(self, session: Session, node_id: int) -> None:
        self._session = session
        self._node_id = node_id
        self._above: dict[int, int] = {}
        """Of each range the largest id that was seen, and is not below the end."""
        self._end = 0
        """The store's, when it was read last."""
        self._was_read = False
        self._went_back = False
        self._lock = asyncio.Lock()
        self._told = False
        self.settled = True
        """Nothing was seen that the store's end may have to be raised for."""
        self.raised = 0
        """How often the store's end was, here: blocks from before are below what was seen."""
        self._log = structlog.get_logger()

    def saw(self, producer_id: int) -> None:
        """An id in the log; −1: none.  `settle` before one is given out."""
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
        """As `saw`, all of them."""
        for producer_id in states.ids_from(self._end):
            self.saw(producer_id)

    def saw_a_lost_store(self) -> None:
        """The bucket has more than the metadata store knows; as `saw`, of ids that are not known.

        Once per session: the next ones of it tell of the same store.
        """
        if not self._went_back:
            self._went_back = True
            self.settled = False

    async def settle(self) -> None:
        """Raise the store's end above what was seen, if it is not.

        One read per session, and more when producers of later blocks were seen.

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
                        advice="no producer id is given out until that key is what it was",
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
                advice="a client makes up its producer ids, and may be given another one's",
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
    """Otherwise-reads: the key."""
    return Txn(
        compares=(ModRevisionIs(PRODUCER_IDS_KEY, kv.mod_revision if kv else 0),),
        then=(Put(PRODUCER_IDS_KEY, encode_producer_id_block(block)),),
        otherwise=(Get(PRODUCER_IDS_KEY),),
    )
