"""Producer ids, unique in the cluster: blocks from the metadata store, handed out in memory.

    next ──▶ one of the block ──none left──▶ /producer_ids: its end becomes our block's start

What is left of a block when the agent ends is lost; there are 2^63.
Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

import asyncio
from typing import Final

from driftlog_agents.broker import Broker
from driftlog_agents.log.id_blocks import next_block
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.errors import FencedError

BLOCK_SIZE: Final = 1_000
"""Ids to a write: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""


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
            block = await next_block(session, self._broker.node_id, BLOCK_SIZE)
        except (RefusedError, FencedError) as error:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.size
