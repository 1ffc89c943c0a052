"""Producer ids, unique in the cluster: blocks from the metadata store, handed out in memory.

    next ──▶ one of the block ──none left──▶ /producer_ids: its end becomes our block's start

What is left of a block when the agent ends is lost; there are 2^63.
Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

import asyncio
from typing import Final

from driftlog_agents.broker import Broker
from driftlog_agents.log.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.codec import (
    decode_at,
    decode_producer_id_block,
    encode_producer_id_block,
)
from driftlog_metadata.errors import FencedError
from driftlog_metadata.keys import PRODUCER_IDS_KEY
from driftlog_metadata.model import ProducerIdBlock
from driftlog_metadata.store import Get, ModRevisionIs, Put
from driftlog_metadata.transactions import Txn

BLOCK_SIZE: Final = 1_000
"""Ids to a write: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""

_INT64_MAX: Final = 2**63 - 1


class ProducerIds:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = asyncio.Lock()
        self._next = 0
        self._end = 0

    async def next(self) -> int:
        """An id that nobody ever had.

        Raises:
            RefusedError: COORDINATOR_LOAD_IN_PROGRESS: there is no session now; clients retry.
        """
        while self._next >= self._end:
            async with self._lock:
                if self._next >= self._end:
                    await self._allocate()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _allocate(self) -> None:
        try:
            session = self._broker.led().session
            block = await self._block(session)
        except (RefusedError, FencedError) as error:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.size

    async def _block(self, session: Session) -> ProducerIdBlock:
        """The next block.  After a lost answer one may be skipped, and none is taken twice."""
        kv = await session.read(PRODUCER_IDS_KEY)
        while True:
            first = 0
            if kv is not None:
                last = decode_at(kv.key, kv.value, decode_producer_id_block)
                first = last.first_producer_id + last.size
            if first > _INT64_MAX - BLOCK_SIZE:
                raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
            block = ProducerIdBlock(
                first_producer_id=first, size=BLOCK_SIZE, node_id=self._broker.node_id
            )
            result = await session.transact(
                Txn(
                    compares=(ModRevisionIs(PRODUCER_IDS_KEY, kv.mod_revision if kv else 0),),
                    then=(Put(PRODUCER_IDS_KEY, encode_producer_id_block(block)),),
                    otherwise=(Get(PRODUCER_IDS_KEY),),
                )
            )
            if result.succeeded:
                return block
            kv = result.reads[0][0] if result.reads[0] else None
