"""CreateTopics, Metadata and the topics behind them, on a real engine."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from driftlog_agents.handlers import create_topics, metadata
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from driftlog_agents.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from tests.support.engine import NODE_ID, RunningAgent


async def create(
    agent: RunningAgent, *topics: CreatableTopic, validate_only: bool = False
) -> dict[str, CreatableTopicResult]:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=30_000, validate_only=validate_only
    )
    response = await create_topics.handle(agent.broker, request, agent.context(7))
    return {topic.name: topic for topic in response.topics}


def topic(
    name: str, partitions: int = 1, replicas: int = -1, **configs: str | None
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


async def describe(
    agent: RunningAgent, *names: str, version: int = 12, create: bool = False
) -> list[MetadataResponseTopic]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
    )
    return (await metadata.handle(agent.broker, request, agent.context(version))).topics


async def test_a_created_topic_is_led_when_that_is_said(tmp_path: Path) -> None:
    """
    Metadata, asked at once, names this agent as leader of each partition.
    """
    async with RunningAgent(tmp_path) as agent:
        made = await create(agent, topic("flights", 3, 3))
        (seen,) = await describe(agent, "flights")

    assert made["flights"].error_code == 0
    assert made["flights"].topic_id == seen.topic_id != UUID(int=0)
    assert made["flights"].topic_id.version == 4
    assert [NODE_ID] * 3 == [p.leader_id for p in seen.partitions]
    assert [[NODE_ID]] * 3 == [p.isr_nodes for p in seen.partitions]


async def test_ten_thousand_partitions_in_one_request(tmp_path: Path) -> None:
    """
    They are all led when the answer comes, in seconds.
    """
    async with RunningAgent(tmp_path) as agent:
        loop = asyncio.get_running_loop()
        began = loop.time()
        made = await create(agent, topic("wide", 10_000))
        took = loop.time() - began
        (seen,) = await describe(agent, "wide")

    assert made["wide"].error_code == 0, made["wide"].error_message
    assert 10_000 == sum(p.leader_id == NODE_ID for p in seen.partitions)
    assert took < 60
    print(f"10,000 partitions in {took:.1f} s")
