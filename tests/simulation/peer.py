"""One agent asks another, over the network between them: a `Leader` of `driftlog_agents.log`."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_agents.log.recovery.leader_client import (
    Answer,
    EpochEndQuery,
    LocalLeaderClient,
    NamedPartition,
)
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from tests.simulation.faults import Process
from tests.simulation.loop import NOBODY

if TYPE_CHECKING:
    from tests.simulation.agent import SimulatedAgent
    from tests.simulation.node import Node

_DEADLINE_S: Final = 10.0
_LOST: Final = 0.05
"""Of requests, and as many of the answers, while machines are cut off now and then."""


class Peer:
    """See the module.

    Args:
        asking: nothing of what it asks begins when it is dead.
        node: the other agent.
    """

    def __init__(self, asking: Process, node: "Node", rng: Random) -> None:
        self._asking = asking
        self._node = node
        self._rng = rng

    @property
    def node_id(self) -> int:
        return self._node.number

    async def ends(self, asked: Sequence[EpochEndQuery]) -> list[Answer]:
        return await self._ask(lambda leader: leader.ends(asked))

    async def append(self, batches: Sequence[tuple[NamedPartition, bytearray]]) -> list[Answer]:
        copies = [(place, bytearray(batch)) for place, batch in batches]
        return await self._ask(lambda leader: leader.append(copies))

    async def _ask(
        self, ask: Callable[[LocalLeaderClient], Coroutine[None, None, list[Answer]]]
    ) -> list[Answer]:
        await asyncio.sleep(self._rng.uniform(0.001, 0.02))
        process = self._node.process
        if self._asking.dead:
            raise asyncio.CancelledError
        if not process.listening or self._lost():
            raise UnavailableError(f"{process.name} does not answer")
        answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        work = process.do(self._answer(process, ask, answer))
        request = asyncio.get_running_loop().create_task(work, context=NOBODY.copy())
        either: list[asyncio.Future[Any]] = [answer, request]
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        if not answer.done() or self._lost():
            answer.cancel()
            raise OutcomeUnknownError(f"{process.name} did not answer")
        return answer.result()

    async def _answer(
        self,
        process: "SimulatedAgent",
        ask: Callable[[LocalLeaderClient], Coroutine[None, None, list[Answer]]],
        answer: "asyncio.Future[list[Answer]]",
    ) -> None:
        engine = process.engine
        if engine is None or not engine.ready.is_set():
            return
        answers = await ask(engine.own_leader())
        if not answer.done():
            answer.set_result(answers)

    def _lost(self) -> bool:
        return not self._node.world.calm and self._rng.random() < _LOST

    async def close(self) -> None:
        """Nothing is open."""
