"""Has an agent with the role ``seal`` write the segments of a range.

    range ──▶ agents for its partition, the best first ──▶ batches, sent as they are read
        ──▶ references of its segments; the leader commits them
        ╳ no answer, or damaged: the next agent, else the leader writes the range itself
        ╳ all have enough to do: asked again, until producers here would soon have to wait

The other agent decides nothing: it makes objects that no manifest names.  An answer that is lost
leaves objects for the collector.

Shell.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from driftlog_agents.foundation.histogram import FAILED, OK, REFUSED, OperationTimes
from driftlog_agents.foundation.offload import Offload
from driftlog_agents.log.sealing.partition_range import PartitionRange
from driftlog_agents.log.sealing.sealed_range import batch_headers
from driftlog_agents.log.sealing.segment_request import (
    CorruptAnswerError,
    SegmentRequest,
    WrittenRange,
    written,
)
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.model import Agent, TopicPartition
from driftlog_tiering.batches.batch import BatchHeader, Buffer

_ASK_AGAIN_S: Final = 0.5
"""Between two questions while all agents are busy: a segment takes them a second or two."""

_LEFT_ALONE_MS: Final = 10_000.0
"""How long an agent that failed is not asked.  Longer: leaders seal for longer after it is back;
shorter: a frozen agent costs more attempts."""


class BusyError(Exception):
    """The other agent writes as many segments as it can."""


class RemoteError(Exception):
    """The other agent gave no answer, or refused."""


class SegmentTransport(Protocol):
    """Requests to other agents."""

    async def write(
        self, agent: Agent, request: SegmentRequest, chunks: AsyncIterator[list[Buffer]]
    ) -> Buffer:
        """The answer of *agent* to *request* with the batches of *chunks*.

        Raises:
            BusyError, RemoteError: see there.
            What *chunks* raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class SealAgents:
    """The agents that write segments for a leader: how they are reached, and those of a partition,
    the best first.  Where there is none, the leader writes its segments itself."""

    transport: SegmentTransport
    of: Callable[[TopicPartition], list[Agent]]


class RemoteSegments:
    """See the module.

    Args:
        session: the leader's.
        requests: counts them.
        is_behind: whether unsealed data is over its bounds: this agent then writes segments, too.
    """

    def __init__(
        self,
        *,
        agents: SealAgents,
        session: Session,
        offload: Offload,
        now_ms: Callable[[], float],
        is_behind: Callable[[], bool],
        requests: OperationTimes,
    ) -> None:
        self._agents = agents
        self._session = session
        self._offload = offload
        self._now_ms = now_ms
        self._is_behind = is_behind
        self._requests = requests
        self._failed_ms: dict[int, float] = {}
        """When agents failed, by node id."""
        self._log = structlog.get_logger()

    async def write(
        self, named: PartitionRange, chunks: Callable[[], AsyncGenerator[list[Buffer]]]
    ) -> WrittenRange | None:
        """What another agent wrote of the range *named*; None: this one is to write it.

        Args:
            chunks: reads the range from its beginning.

        Raises:
            What *chunks* raises.
        """
        while True:
            outcomes: set[str] = set()
            for agent in self._asked(named.tp):
                sent_ms = self._now_ms()
                try:
                    found = await self._write(agent, named, chunks)
                except BusyError:
                    outcome = REFUSED
                except (RemoteError, CorruptAnswerError) as error:
                    outcome = FAILED
                    self._failed(agent, named, error)
                else:
                    self._requests.ended(OK, self._now_ms() - sent_ms)
                    return found
                self._requests.ended(outcome, self._now_ms() - sent_ms)
                outcomes.add(outcome)
            if REFUSED not in outcomes or self._is_behind():
                return None
            await asyncio.sleep(_ASK_AGAIN_S)

    def _failed(self, agent: Agent, named: PartitionRange, error: Exception) -> None:
        self._failed_ms[agent.node_id] = self._now_ms()
        self._log.warning(
            "seal_agent_failed",
            node=agent.node_id,
            partition=named.name,
            error=str(error),
            advice="another agent, or this one, writes the segment; no record is affected",
        )

    def _asked(self, tp: TopicPartition) -> list[Agent]:
        before_ms = self._now_ms() - _LEFT_ALONE_MS
        return [
            agent
            for agent in self._agents.of(tp)
            if self._failed_ms.get(agent.node_id, before_ms) <= before_ms
        ]

    async def _write(
        self,
        agent: Agent,
        named: PartitionRange,
        chunks: Callable[[], AsyncGenerator[list[Buffer]]],
    ) -> WrittenRange | None:
        headers: list[BatchHeader] = []
        async with aclosing(self._checked(chunks, headers)) as sent:
            request = SegmentRequest(self._session.author.cluster_id, named)
            answer = await self._agents.transport.write(agent, request, sent)
        return written(answer, named, headers)

    async def _checked(
        self, chunks: Callable[[], AsyncGenerator[list[Buffer]]], headers: list[BatchHeader]
    ) -> AsyncGenerator[list[Buffer]]:
        """The chunks, checked here: *headers* gets the headers of their batches."""
        async with aclosing(chunks()) as read:
            async for batches in read:
                headers += await self._offload(batch_headers, batches)
                yield batches
