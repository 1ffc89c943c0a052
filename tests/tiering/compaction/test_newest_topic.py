"""If it failed: a job would compact by configs that its topic no longer has."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.compaction.newest_topic import newest_topic
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import (
    DeletedTopic,
    TopicFile,
    encode_deleted,
    encode_topic,
)
from tests.support.memory_object_store import MemoryObjectStore

TOPIC = Topic(name="t", topic_id=UUID(int=7), partitions=1)


def test_the_newest_version_counts_and_a_deleted_topic_has_none() -> None:
    """
    A damaged version is not replaced by an older one; other topics do not count.
    """

    async def main() -> None:
        store = MemoryObjectStore(lambda: 0)

        async def newest() -> Topic | None:
            return await newest_topic(store, "t", TOPIC.topic_id)

        assert await newest() is None
        for version in range(1, 12):
            topic = replace(TOPIC, configs={"segment.ms": str(version)})
            key = layout.topic_key("t", TOPIC.topic_id, version)
            await store.put(key, [encode_topic(TopicFile(version, topic))])
            assert topic == await newest()
        await store.put(layout.deleted_key("t", UUID(int=8)), [b""])
        assert topic == await newest()
        await store.put(layout.topic_key("t", TOPIC.topic_id, 12), [b"{}"])
        with pytest.raises(CorruptError):
            await newest()
        mark = encode_deleted(DeletedTopic("t", TOPIC.topic_id, 0))
        await store.put(layout.deleted_key("t", TOPIC.topic_id), [mark])
        assert await newest() is None

    asyncio.run(main())
