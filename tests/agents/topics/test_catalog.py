"""Topics take what they inherit of the agent's settings, however many they are."""

import asyncio
from uuid import UUID

from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_metadata.schema.model import Topic
from tests.agents.network.serving import eventually, one_in_a_slice

N = 20


def catalog_of(n: int) -> TopicCatalog:
    """Topics that share no computation: each has a config of its own."""
    catalog = TopicCatalog({"log.retention.ms": "10"}, 1.0)
    for i in range(n):
        configs = {"segment.ms": str(10_000 + i)}
        catalog.know(Topic(name=f"t{i}", topic_id=UUID(int=i + 1), partitions=1, configs=configs))
    return catalog


async def test_new_settings_are_inherited_in_slices() -> None:
    """
    Ten thousand topics with configs of their own took the loop for 600 ms.  Whoever waits is told
    of the end once, and what is deleted or made meanwhile is left alone.
    """
    catalog = catalog_of(N)
    told: list[set[int | None]] = []
    one_in_a_slice()
    catalog.inherit({"log.retention.ms": "20"}, lambda: told.append(retention(catalog)))
    await asyncio.sleep(0)
    assert (True, {10, 20}) == (catalog.inherits, retention(catalog))
    catalog.forget(catalog.by_name["t9"])
    await eventually(lambda: not catalog.inherits and bool(told))

    assert [{20}] == told
    assert "t9" not in catalog.retention


async def test_the_newest_settings_hold_when_they_change_twice() -> None:
    """
    The first change is still being inherited, and must not come after the second.
    """
    catalog = catalog_of(N)
    told: list[int] = []
    one_in_a_slice()
    catalog.inherit({"log.retention.ms": "20"}, lambda: told.append(20))
    await asyncio.sleep(0)
    catalog.inherit({"log.retention.ms": "30"}, lambda: told.append(30))
    await eventually(lambda: bool(told))

    assert ([30], {30}, False) == (told, retention(catalog), catalog.inherits)


def retention(catalog: TopicCatalog) -> set[int | None]:
    """That topics have."""
    return {policy.ms for policy in catalog.retention.values()}
