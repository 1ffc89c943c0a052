"""Producer ids, unique in the cluster: blocks from the metadata store, handed out in memory.

    next ──▶ one of the block ──none left──▶ /producer_ids: its end becomes the block's start,
                                             and the bucket has a mark of it
                                             (`session/producer_id_blocks`)

The rest of a block is lost when its session ends; there are 2^63 ids.

No metadata store gives out a block again whose mark is in the bucket.  The log may have ids of no
block: a client may invent them.  Ids that a session sees in the log raise the store's end
(`session/producer_id_blocks.ProducerIdFloor`):

1. A block is taken once the producers of all partitions led here are known.  Partitions that cannot
   be read delay the first block for ten seconds, and not for ever: one unreadable object does not
   stop new producers in a healthy cluster.
2. A block that was taken before this session raised the end is not used any more.
3. A manifest that is ahead of the log raises the end whatever else can be read.

Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

import asyncio
from typing import Final, Protocol

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor, next_block
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import Agent
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError

_PAUSE_MS: Final = 1_000.0
"""How long all requests are refused after the stores did not give a block.  Longer: new producers
wait longer after an outage; shorter: more attempts, and each may cost a block."""


class ProducerIdHost(Protocol):
    """The agent that gives the ids out."""

    @property
    def agent(self) -> Agent:
        """This agent, in its present session."""
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
    """The producer ids of one agent; see the module."""

    def __init__(self, host: ProducerIdHost) -> None:
        self._host = host
        self._lock = asyncio.Lock()
        self._session_id = ""
        """The session that took the block: the metadata store may have gone back between two
        sessions."""
        self._floor: ProducerIdFloor | None = None
        self._raised = 0
        """The floor's `raised` when the block was taken."""
        self._next = 0
        self._end = 0
        self._failed = float("-inf"), ""
        """(time in ms, reason) of the last block that the stores did not give."""
        self._outage = FailureTracker()
        self._log = structlog.get_logger()

    async def next(self) -> int:
        """An id that was never given out before.

        Raises:
            RefusedError: COORDINATOR_LOAD_IN_PROGRESS: there is no session, its producers are not
                known yet, the store's key cannot be read, or the bucket does not take a mark;
                clients retry.
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
                return  # the ids seen since are below the store's end
            unknown = engine.unknown_producers
            if unknown:
                raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown)
            session, raised = engine.session, floor.raised
            failed_ms, why = self._failed
            if engine.ports.now_ms() < failed_ms + _PAUSE_MS:
                raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, why)
            sent_ms = engine.ports.now_ms()
            try:
                block = await next_block(session, engine.ports.objects, self._host.node_id)
            except UnavailableError as error:
                # Also for all callers that wait for the lock: they come one by one.
                self._failed = now_ms, why = engine.ports.now_ms(), str(error)
                if self._outage.failed(why, sent_ms, now_ms):
                    self._log.warning(
                        "producer_ids_failed",
                        error=why,
                        failures=self._outage.failures,
                        advice="new idempotent producers wait until the bucket takes an object "
                        "under producer-ids/, and the metadata store answers",
                    )
                raise
            if self._outage.ended(engine.ports.now_ms()):
                self._log.info("producer_ids_resumed", failures=self._outage.failures)
        except (RefusedError, FencedError, UnavailableError) as error:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        except CorruptError as error:
            self._log.error(
                "producer_ids_unreadable",
                error=str(error),
                advice="no producer id is given out until that key is restored",
            )
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        self._floor, self._raised = floor, raised
        self._session_id = session.session_id
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.size


def log_transactional_id(transactional_id: str, context: RequestContext) -> None:
    """Log that a client asks for transactions: there are none."""
    structlog.get_logger().warning(
        "transactional_id_refused",
        client=context.client_host,
        transactional_id=transactional_id,
        client_id=context.client_id,
        advice="this version has no transactions: use an idempotent producer without an id",
    )
