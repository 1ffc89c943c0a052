"""Parts of an agent wait for each other where neither needs the other."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.process.composition.agent import AgentPorts, AgentProcess, AgentSettings
from driftlog_agents.process.composition.allocator import give_back
from tests.agents.log.lives import now_ms
from tests.support.memory_store import MemoryMetadataStore


async def test_large_batches_do_not_wait_for_the_threads_of_reads() -> None:
    """
    They are busy for ever: what the allocator kept after a large batch is returned all the same,
    and the next one is decoded.
    """

    async def busy(*_: Any) -> None:
        await asyncio.Event().wait()

    returned: list[Any] = []

    async def large(fn: Any) -> None:
        returned.append(fn)

    ports = SimpleNamespace(
        metadata=MemoryMetadataStore(lambda: 0),
        now_ms=now_ms,
        offload_read=busy,
        offload_seal=busy,
        offload_large=large,
        read_cache=None,
        refusals=Refusals(),
    )
    agent = AgentProcess(AgentSettings(), cast("AgentPorts", ports))
    async with asyncio.timeout(10):
        for _ in range(2):
            async with agent.decoding.large():
                pass

    assert [give_back, give_back] == returned
