"""If it failed: a job would compact by configs that its topic no longer has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
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
from driftlog_tiering.stores.object_store import AlreadyExistsError, Listing
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


def test_a_version_that_goes_between_listing_and_read_is_no_deleted_topic() -> None:
    """
    Agents have written newer ones meanwhile: the topic would not be compacted.
    """

    class Altered(MemoryObjectStore):
        """Agents alter the topic behind the first listing."""

        async def list(self, prefix: str, **which: Any) -> AsyncIterator[Listing]:
            async for page in super().list(prefix, **which):
                yield page
            for version in range(2, 5):
                await put(version)
            await self.delete([layout.topic_key("t", TOPIC.topic_id, 1)])

    store = Altered(lambda: 0)

    async def put(version: int) -> None:
        topic = replace(TOPIC, configs={"segment.ms": str(version)})
        key = layout.topic_key("t", TOPIC.topic_id, version)
        with suppress(AlreadyExistsError):
            await store.create(key, [encode_topic(TopicFile(version, topic))])

    async def main() -> None:
        await put(1)
        found = await newest_topic(store, "t", TOPIC.topic_id)
        assert found is not None
        assert {"segment.ms": "4"} == found.configs

    asyncio.run(main())
