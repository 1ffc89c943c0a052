"""DescribeProducers names what a partition remembers, and holds up no other request for it."""

import asyncio
from dataclasses import replace
from pathlib import Path

from driftlog_agents.handlers.api import describe_producers
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from tests.agents.handlers.asking import create, new
from tests.support.engine import RunningAgent

PRODUCERS = 100_000


async def test_many_producers_are_described_in_slices_and_in_the_memory_that_there_is(
    tmp_path: Path,
) -> None:
    """
    Others run meanwhile: 645,000 took half a second at once.  Who is forgotten meanwhile is left
    out; a partition that is named twice is described once.
    """
    request = DescribeProducersRequest(
        topics=[TopicRequest(name="t", partition_indexes=[0, 0, 1])],
    )
    claimed: list[int] = []
    claim, free = asyncio.Event(), asyncio.Event()
    turns = 0

    async def room(size_bytes: int) -> None:
        claimed.append(size_bytes)
        claim.set()
        await free.wait()

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await agent.engine.loaded(agent.log("t", 0))
        producers = agent.log("t", 0).producers
        for producer_id in range(PRODUCERS):
            producers.append(producer_id, 3, 0, 2, 2 * producer_id, float(producer_id))
        other = asyncio.create_task(others())
        asking = asyncio.create_task(
            describe_producers.handle(agent.broker, request, replace(agent.context(0), room=room))
        )
        await claim.wait()
        producers.age(float(PRODUCERS), 1.0, 1_000)
        turns = 0
        free.set()
        response = await asking
        other.cancel()

    first, again, wrong = response.topics[0].partitions
    described = [(p.producer_id, p.producer_epoch, p.last_sequence) for p in first.active_producers]
    forgotten = PRODUCERS - len(described)
    assert 1_000 == forgotten
    assert [(n, 3, 1) for n in range(PRODUCERS)][forgotten:] == described
    assert first is again
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == wrong.error_code
    assert [250 * PRODUCERS, 0] == claimed
    assert turns > 5
