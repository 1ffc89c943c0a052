"""Requests of the handlers' tests, in few words.

Shell.
"""

from driftlog_agents.handlers.api import create_topics, metadata
from driftlog_agents.protocol.messages.create_topics import (
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
from tests.support.engine import RunningAgent


def new(
    name: str, partitions: int = 1, replicas: int = -1, **configs: str | None
) -> CreatableTopic:
    """A topic to be made; configs with ``_`` where Kafka has a dot."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


async def create(
    agent: RunningAgent,
    *topics: CreatableTopic,
    validate_only: bool = False,
    timeout_ms: int = 30_000,
) -> dict[str, CreatableTopicResult]:
    """CreateTopics; the results by name."""
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only
    )
    response = await create_topics.handle(agent.broker, request, agent.context(7))
    return {topic.name: topic for topic in response.topics}


async def describe(
    agent: RunningAgent, *names: str, version: int = 12, auto: bool = False
) -> list[MetadataResponseTopic]:
    """Metadata of topics by name."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=auto,
    )
    return (await metadata.handle(agent.broker, request, agent.context(version))).topics
