"""Tests that Metadata gives way while it names the partitions of a topic."""

import asyncio
from pathlib import Path

from driftlog_agents.protocol.messages import metadata
from driftlog_agents.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.agents.network.serving import Serving, one_in_a_slice


async def test_one_topic_of_many_partitions_is_described_in_slices(tmp_path: Path) -> None:
    """
    Otherwise Metadata of a topic of 10,000 partitions stalls the event loop for 285 ms.
    """
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("wide", 300)
        one_in_a_slice()
        counter = asyncio.create_task(count())
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="wide")])
        answer = await client.call(metadata.API, 8, asked)
        counter.cancel()

    assert 300 == len(answer.topics[0].partitions)
    assert iterations >= 300
