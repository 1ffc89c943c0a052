"""Has an agent with the role ``seal`` write the segment of a range.

    range ──▶ an agent (`agent_choice`), its secret ──▶ batches, sent as they are read ──▶
        reference of its segment; the leader commits it
        ╳ no answer, it left the cluster, or all are busy: another one, or the leader itself
        ╳ a batch cannot be decoded: the leader itself

The other agent decides nothing: it makes an object that no manifest names.  An answer that is lost
leaves an object for the collector.

Shell.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import structlog

from driftlog_agents.foundation.histogram import FAILED, OK, REFUSED, OperationTimes
from driftlog_agents.log.segments.agent_choice import (
    PATIENCE_MS,
    PAUSES_S,
    FailedAgents,
    Questions,
    is_there,
)
from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.sealed_range import batch_headers
from driftlog_agents.log.segments.segment_request import (
    BusyError,
    CorruptAnswerError,
    RemoteError,
    SegmentRequest,
    UndecodableError,
    written,
)
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import decode_secret
from driftlog_metadata.schema.keys import secret_key
from driftlog_metadata.schema.model import Agent, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.foundation.types import Buffer, Offload

_LOOK_S: Final = 0.5
"""Between two looks whether the agent that is asked is still there."""


class SegmentTransport(Protocol):
    """Requests to other agents."""

    async def write(
        self, agent: Agent, request: SegmentRequest, chunks: AsyncIterator[list[Buffer]]
    ) -> Buffer:
        """The answer of *agent* to *request* with the batches of *chunks*.

        Raises:
            BusyError, RemoteError, UndecodableError: see there.
            What *chunks* raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class SealAgents:
    """The agents that write segments for a leader: how they are reached, and those of a partition,
    the best first.  Where there is none, the leader writes its segments itself."""

    transport: SegmentTransport
    of: Callable[[TopicPartition], list[Agent]]


class RangeSource(NamedTuple):
    """A range of the leader.

    Args:
        chunks: reads its batches from the beginning.
        is_served: whether the leader still leads the partition.
    """

    named: PartitionRange
    chunks: Callable[[], AsyncGenerator[list[Buffer]]]
    is_served: Callable[[], bool]


class RemoteSegments:
    """See the module.

    Args:
        session: the leader's.
        requests: counts them.
        pauses_s: between two rounds of questions while all agents are busy.
        is_behind: whether unsealed data is over its bounds.
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
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._pauses_s = pauses_s
        self._agents = agents
        self._session = session
        self._offload = offload
        self._now_ms = now_ms
        self._is_behind = is_behind
        self._requests = requests
        self._failed = FailedAgents()
        self._log = structlog.get_logger()

    async def write(self, source: RangeSource, headers: list[BatchHeader]) -> SegmentRef | None:
        """The segment that another agent wrote of *source*; None: this one is to write it.

        *headers* gets the headers of its batches, if another agent wrote it.

        Raises:
            UnavailableError: the partition is not led here any more.
            FencedError: the session ended.
            What the source's chunks raise.
        """
        named, questions = source.named, Questions(self._pauses_s)
        while True:
            for agent in self._failed.asked(self._agents.of(named.tp), self._now_ms()):
                sent_ms, found = self._now_ms(), list[BatchHeader]()
                try:
                    segment = await self._write(agent, source, found)
                except BusyError:
                    outcome = REFUSED
                    questions.refused()
                except UndecodableError:
                    return None
                except (RemoteError, CorruptAnswerError) as error:
                    outcome = FAILED
                    self._note_failure(agent, named, error)
                else:
                    self._requests.ended(OK, self._now_ms() - sent_ms)
                    self._failed.answered(agent)
                    headers += found
                    return segment
                self._requests.ended(outcome, self._now_ms() - sent_ms)
            pause_s = questions.pause_s(behind=self._is_behind())
            if pause_s is None:
                return None
            await asyncio.sleep(pause_s)
            if not source.is_served():
                raise UnavailableError(f"{named.name} is not led here any more")

    def _note_failure(self, agent: Agent, named: PartitionRange, error: Exception) -> None:
        self._failed.failed(agent, self._now_ms())
        self._log.warning(
            "seal_agent_failed",
            node=agent.node_id,
            http=agent.http_address,
            partition=named.name,
            error=str(error),
            advice="another agent, or this one, writes the segment.  If it goes on: leaders must "
            "reach the HTTP port of agents with the role seal (--http-listener)",
        )

    async def _write(
        self, agent: Agent, source: RangeSource, headers: list[BatchHeader]
    ) -> SegmentRef:
        request = SegmentRequest(
            self._session.author.cluster_id,
            agent.session_id,
            source.named,
            await self._secret_of(agent),
        )
        async with aclosing(self._checked(source, headers)) as sent:
            sent_ms = self._now_ms()
            asking = asyncio.create_task(self._agents.transport.write(agent, request, sent))
            try:
                while not (await asyncio.wait([asking], timeout=_LOOK_S))[0]:
                    if not source.is_served():
                        raise UnavailableError(f"{source.named.name} is not led here any more")
                    if not is_there(agent, self._agents.of(source.named.tp)):
                        raise RemoteError("it left the cluster")
                    if self._is_behind() and self._now_ms() - sent_ms > PATIENCE_MS:
                        raise RemoteError(f"no answer in {PATIENCE_MS / 1000:.0f} s")
                answer = asking.result()
            finally:
                await ended(asking)  # no reader is left when the chunks are closed
        return written(answer, source.named, headers)

    async def _secret_of(self, agent: Agent) -> str:
        """The secret of the session of *agent*; empty: it is over, or of an older build."""
        kv = await self._session.read(secret_key(agent.session_id))
        try:
            return "" if kv is None else decode_secret(kv.value)
        except CorruptError as error:
            raise RemoteError(str(error)) from error

    async def _checked(
        self, source: RangeSource, headers: list[BatchHeader]
    ) -> AsyncGenerator[list[Buffer]]:
        """The chunks, checked here: *headers* gets the headers of their batches."""
        async with aclosing(source.chunks()) as read:
            async for batches in read:
                headers += await self._offload(batch_headers, batches)
                yield batches


async def ended(task: asyncio.Task[Any]) -> None:
    """Ends *task*, however often the caller is cancelled; what it raised was raised by its caller,
    or does not matter any more."""
    task.cancel()
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()
    if cancelled is not None:
        raise cancelled
