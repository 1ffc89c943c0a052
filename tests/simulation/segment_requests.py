"""Requests for segments between two simulated agents.

    leader ──batches──▶ the other's `segment_service` ──▶ (travels) ──▶ answer, or silence

The other agent works in its own life: it may be frozen or killed meanwhile, as the leader may.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.log.segments.segment_request import (
    BusyError,
    RemoteError,
    SegmentRequest,
    UndecodableError,
    batches_from,
    decode_request,
    encode_request,
)
from driftlog_metadata.schema.model import Agent
from driftlog_metadata.stores.errors import CorruptError, StoreError, UnavailableError
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.loop import NOBODY

if TYPE_CHECKING:
    from tests.simulation.agent import SimulatedAgent
    from tests.simulation.world import World

_REFUSED: Final = 0.02
_LOST: Final = 0.04
"""Shares of requests: no connection, and no answer to what was done."""

_DEADLINE_S: Final = 6.0
"""How long a leader waits.  Shorter than between real agents, as all times here are."""

_SILENT_S: Final = 4.0
"""How long the other waits for the next batches."""


class SimSegmentTransport:
    """A `SegmentTransport` of one life of an agent."""

    def __init__(self, world: "World", process: "SimulatedAgent") -> None:
        self._world = world
        self._process = process
        self._rng = Random(f"segments {process.name} {world.seed}")

    async def write(
        self, agent: Agent, request: SegmentRequest, chunks: AsyncIterator[list[Buffer]]
    ) -> Buffer:
        """As `SegmentTransport.write`."""
        other = self._reached(agent)
        sent: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        lost = self._rng.random() < _LOST
        self._world.trace(self._process.name, other.name, "segments", request.named.name)

        def settle(result: bytes | None, error: Exception | None) -> None:
            if answer.done() or lost:
                return
            if result is not None:
                answer.set_result(result)
            elif error is not None:
                answer.set_exception(error)

        async def serve() -> None:
            engine = other.engine
            try:
                if engine is None:
                    raise RemoteError("it is between two sessions")
                asked = decode_request(encode_request(request))
                written = await engine.segment_service.write(asked, _batches(sent, asked))
            except (BusyError, RemoteError, UndecodableError) as error:
                failure: Exception = error
            except (CorruptError, StoreError, TimeoutError) as error:
                failure = RemoteError(repr(error))
            else:
                loop.call_soon(settle, written, None, context=NOBODY)
                return
            loop.call_soon(settle, None, failure, context=NOBODY)

        other.receive(lambda: other.begin(serve()))
        async for batches in chunks:
            await self._travel()
            sent.put_nowait(b"".join(batches))
        await self._travel()
        sent.put_nowait(b"")
        try:
            async with asyncio.timeout(_DEADLINE_S):
                written = await answer
        except TimeoutError as error:
            self._world.count("segments not answered")
            raise RemoteError("no answer in time") from error
        await self._travel()
        self._world.count("segments written elsewhere")
        return written

    def _reached(self, agent: Agent) -> "SimulatedAgent":
        """The other's process, if it listens."""
        for node in self._world.nodes:
            if node.number == agent.node_id and node.process.serving:
                engine = node.process.engine
                if self._rng.random() < _REFUSED or engine is None:
                    break
                engine.segment_service.turns.check()
                return node.process
        raise RemoteError("no connection")

    async def _travel(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.001, 0.05))


async def _batches(
    sent: asyncio.Queue[bytes], asked: SegmentRequest
) -> AsyncGenerator[list[Buffer]]:
    next_offset = asked.named.base
    while True:
        try:
            async with asyncio.timeout(_SILENT_S):
                content = await sent.get()
        except TimeoutError as error:
            raise UnavailableError("the leader is silent") from error
        if not content:
            return
        batches, next_offset = batches_from(content, asked.named, next_offset)
        yield batches
