"""Topics take what they inherit of the agent's settings, however many they are."""

from uuid import UUID

from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_metadata.schema.model import Topic


def test_new_settings_are_inherited_in_one_step() -> None:
    """
    Upkeep begins when the view has a change: with some topics behind it, records would expire by
    the retention before the change.
    """
    catalog = TopicCatalog({"log.retention.ms": "10"}, 1.0)
    for i in range(20):
        configs = {"segment.ms": str(10_000 + i)}
        catalog.know(Topic(name=f"t{i}", topic_id=UUID(int=i + 1), partitions=1, configs=configs))
    catalog.inherit({"log.retention.ms": "20"})

    assert {20} == {policy.ms for policy in catalog.retention.values()}
