"""Producer ids, unique in the cluster: blocks from the metadata store, handed out in memory.

    next ──▶ one of the block ──none left──▶ /producer_ids: its end becomes our block's start,
                                             and the bucket has a mark of it
                                             (`session/producer_id_blocks`)

What is left of a block when its session ends is lost; there are 2^63.

A block whose mark the bucket has is given out by no metadata store again.  Ids may stand in the log
that no block had: a client may make them up.  What a session sees in the log raises the store's end
(`session/producer_id_blocks.ProducerIdFloor`):

1. A block is taken when the producers of all that is led here are known.  Those that cannot be
   read delay the first block for ten seconds, and not for ever: one unreadable object does not
   stop new producers in a healthy cluster.
2. A block that was taken before the end was raised here is not used any more.
3. A manifest that is ahead of the log raises the end whatever else can be read.

Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

import asyncio
from typing import Final, Protocol

import structlog

from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor, next_block
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import Agent
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError

_PAUSE_MS: Final = 1_000.0
"""After a block that the stores do not give all are refused for so long.  Longer: new producers
wait longer after an outage; shorter: more attempts, and each may cost a block."""


class ProducerIdHost(Protocol):
    """The agent that gives the ids out."""

    @property
    def agent(self) -> Agent:
        """In its present session."""
        ...

    @property
    def node_id(self) -> int:
        """Kafka's broker id of this agent."""
        ...

    def led(self) -> Engine:
        """The engine, while it is ready to serve.

        Raises:
            RefusedError: between two sessions; retriable.
        """
        ...


class ProducerIds:
    """See the module."""

    def __init__(self, host: ProducerIdHost) -> None:
        self._host = host
        self._lock = asyncio.Lock()
        self._session_id = ""
        """Whose block it is: the metadata store may have gone back between two sessions."""
        self._floor: ProducerIdFloor | None = None
        self._raised = 0
        """As the session's floor said when the block was taken."""
        self._next = 0
        self._end = 0
        self._failed = float("-inf"), ""
        """When the stores did not give a block, in ms, and why."""
        self._log = structlog.get_logger()

    async def next(self) -> int:
        """An id that was never given out before.

        Raises:
            RefusedError: COORDINATOR_LOAD_IN_PROGRESS: there is no session now, it is not known
                yet which producers there are, the store's key cannot be read, or the bucket takes
                no mark; clients retry.
        """
        while not self._has_one():
            async with self._lock:
                if not self._has_one():
                    await self._allocate()
        producer_id = self._next
        self._next += 1
        return producer_id

    def _has_one(self) -> bool:
        floor = self._floor
        return (
            self._next < self._end
            and self._session_id == self._host.agent.session_id
            and floor is not None
            and floor.settled
            and floor.raised == self._raised
        )

    async def _allocate(self) -> None:
        try:
            engine = self._host.led()
            floor = engine.producer_ids
            await floor.settle()
            if self._has_one():
                return  # what was seen since is below the store's end
            unknown = engine.unknown_producers
            if unknown:
                raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown)
            session, raised = engine.session, floor.raised
            failed_ms, why = self._failed
            if engine.ports.now_ms() < failed_ms + _PAUSE_MS:
                raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, why)
            try:
                block = await next_block(session, engine.ports.objects, self._host.node_id)
            except UnavailableError as error:
                # Also for all that wait behind this: they come one by one.
                self._failed = engine.ports.now_ms(), str(error)
                raise
        except (RefusedError, FencedError, UnavailableError) as error:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        except CorruptError as error:
            self._log.error(
                "producer_ids_unreadable",
                error=str(error),
                advice="no producer id is given out until that key is what it was",
            )
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        self._floor, self._raised = floor, raised
        self._session_id = session.session_id
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.size
