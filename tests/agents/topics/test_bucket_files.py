"""An agent of a restored cluster writes no topic file: the next restore, and readers of the bucket,
would take a topic for deleted, or give it configs of the old cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.log_session import Engine
from driftlog_agents.topics.bucket_files import TopicBucketFiles
from driftlog_agents.topics.host import TopicHost
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import Cluster, Topic
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.stores.object_store import ObjectStore
from tests.agents.log.lives import Life, World, now_ms, on_virtual_time
from tests.support.clusters import AUTHOR


@dataclass
class Host:
    """What topic files use of an agent."""

    objects: ObjectStore
    engine: Engine
    wall_ms: Callable[[], int]


async def begin() -> tuple[World, Life, TopicBucketFiles]:
    """A cluster with a topic that has a file, whose agent looks at the newest cluster file."""
    world = World()
    await world.bucket.put(layout.CLUSTER_KEY, [encode_cluster(AUTHOR)])
    world.ownership = lambda: ClusterFile(world.bucket, AUTHOR.cluster_id, Grace(), now_ms)
    life = await world.start()
    host = Host(world.bucket, life.engine, world.wall_ms)
    files = TopicBucketFiles(cast(TopicHost, host))
    await files.create(life.engine, world.topics["t"])
    return world, life, files


Change = Callable[[TopicBucketFiles, Engine, Topic], Awaitable[None]]


@pytest.mark.parametrize(
    "change",
    [
        TopicBucketFiles.mark_deleted,
        TopicBucketFiles.update,
        lambda files, engine, topic: files.create(engine, replace(topic, name="new")),
    ],
    ids=["delete", "alter", "create"],
)
def test_an_agent_of_a_restored_cluster_writes_no_topic_file(change: Change) -> None:
    """
    It has flushed nothing since, so the write of the file is its first look.
    """

    @on_virtual_time
    async def run() -> None:
        world, life, files = await begin()
        topic = replace(world.topics["t"], configs={"retention.ms": "1000"})
        await world.metadata.txn((), [Put(topic_key("t"), encode_topic(topic))])
        await world.bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("restored"))])
        await asyncio.sleep(61)
        before = world.bucket.keys("topics/")

        with pytest.raises(OtherClusterError):
            await change(files, life.engine, topic)

        assert before == world.bucket.keys("topics/")

    run()


@on_virtual_time
async def test_a_topic_file_waits_for_the_look() -> None:
    """
    It is written when the bucket gives the cluster file.
    """
    world, life, files = await begin()
    await asyncio.sleep(61)
    world.bucket.manifests.clear()  # reads of anything but flush objects are refused
    marking = asyncio.get_running_loop().create_task(
        files.mark_deleted(life.engine, world.topics["t"])
    )
    await asyncio.sleep(100)
    before = world.bucket.keys("deleted.json")
    world.bucket.manifests.set()
    await marking

    assert not before
    assert 1 == len(world.bucket.keys("deleted.json"))
