"""Topic files in the bucket: copies of a topic's key in the metadata store.

    key ──▶ topic/{n+1}.json, unless topic/{n}.json is equal ──▶ read the key again: unchanged?

The writer of a file reads the key again after the write, and repeats both until they agree.  So
the newest file is correct, whichever agent changed the topic last.  Requests are repeated while the
session lives.

Each write waits until the bucket is known to be the cluster's (`cluster/cluster_file`): after a
restore, files of the old cluster would delete or change topics at the next one.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.recovery.flush_object_ends import READS_AT_ONCE, do_all
from driftlog_agents.topics.host import TopicHost
from driftlog_metadata.schema.codec import decode_at, decode_topic
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.bucket_files import DeletedTopic, TopicFile
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_newest
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=5.0, timeout_s=10.0)

T = TypeVar("T")


class TopicBucketFiles:
    """See the module.

    Every method raises `FencedError` when the session ended first; the next session writes the
    missing files.  `OtherClusterError`: the bucket is another cluster's.
    """

    def __init__(self, host: TopicHost) -> None:
        self._host = host
        self._log = structlog.get_logger()

    async def create(self, engine: Engine, topic: Topic) -> None:
        """Write version 1 for a new topic."""
        body = bucket_files.encode_topic(TopicFile(1, topic))
        where = layout.topic_key(topic.name, topic.topic_id, 1)
        await self._repeat(engine, lambda: self._create_object(engine, where, body))

    async def update(self, engine: Engine, topic: Topic) -> None:
        """Write a new version unless the newest file equals the topic's key."""
        key = topic_key(topic.name)
        while True:
            kv = await engine.session.read(key)
            now = None if kv is None else topic_of(kv)
            if now is None or now.topic_id != topic.topic_id:
                return  # The topic was deleted meanwhile.
            newest = await self._repeat(engine, lambda: self._newest(topic))
            if newest is not None and newest.topic == now:
                return
            version = 1 if newest is None else newest.version + 1
            body = bucket_files.encode_topic(TopicFile(version, now))
            where = layout.topic_key(topic.name, topic.topic_id, version)
            if not await self._repeat(
                engine,
                lambda w=where, b=body: self._create_object(engine, w, b),  # type: ignore[misc]
            ):
                await asyncio.sleep(_RETRY.wait_s)  # the listing does not show that version yet

    async def mark_deleted(self, engine: Engine, topic: Topic) -> None:
        """Write ``deleted.json``; an existing one is kept."""
        mark = DeletedTopic(topic.name, topic.topic_id, self._host.wall_ms())
        body = bucket_files.encode_deleted(mark)
        where = layout.deleted_key(topic.name, topic.topic_id)
        await self._repeat(engine, lambda: self._create_object(engine, where, body))

    async def mark_import(self, engine: Engine, topic: Topic) -> None:
        """Write ``import.json``; an existing one is kept."""
        body = bucket_files.encode_import(topic)
        where = layout.import_key(topic.name, topic.topic_id)
        await self._repeat(engine, lambda: self._create_object(engine, where, body))

    async def manifests(self, engine: Engine, topic: Topic) -> list[Manifest | None]:
        """The newest manifest of each partition; None: it has none.

        Raises:
            CorruptError: one is damaged or missing.
        """
        found: list[Manifest | None] = [None] * topic.partitions
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(partition: int) -> None:
            tp = TopicPartition(topic.topic_id, partition)
            async with limit:
                found[partition] = await self._repeat(
                    engine, lambda: load_newest(self._host.objects, topic.name, tp)
                )

        await do_all(read(number) for number in range(topic.partitions))
        return found

    async def _newest(self, topic: Topic) -> TopicFile | None:
        mark = layout.deleted_key(topic.name, topic.topic_id)
        newest: str | None = None
        prefix = layout.topic_file_prefix(topic.name, topic.topic_id)
        async for page in self._host.objects.list(prefix):
            for info in page.objects:
                with suppress(ValueError):  # an unrecognised object: no version of the topic
                    if info.key != mark:
                        layout.parse_topic_key(info.key)
                        newest = info.key
        if newest is None:
            return None
        try:
            return bucket_files.decode_topic(await self._host.objects.get(newest))
        except (CorruptError, NotFoundError) as error:
            # The caller writes a newer version.
            self._log.error("topic_file_damaged", object=newest, error=str(error))
            version = layout.parse_topic_key(newest).version
            return TopicFile(version, replace(topic, partitions=0))

    async def _create_object(self, engine: Engine, key: str, body: bytes) -> bool:
        """Create the object; False: one exists and is kept.  Callers read it back and compare."""
        await engine.session.ownership.hold()
        try:
            await self._host.objects.create(key, [body])
        except AlreadyExistsError:
            return False
        return True

    async def _repeat(self, engine: Engine, request: Callable[[], Awaitable[T]]) -> T:
        async def failed(error: Exception) -> None:
            self._log.warning("topic_file_request_repeated", error=repr(error))
            if not engine.session.alive or self._host.engine is not engine:
                raise FencedError("the session ended while the bucket did not answer") from error

        return await _RETRY.run(request, failed)


def topic_of(kv: KeyValue) -> Topic:
    """Decode the topic in the value of a topic's key or of a tombstone.

    Raises:
        CorruptError: the value is damaged or has a newer format; the message names the key.
    """
    return decode_at(kv.key, kv.value, decode_topic)
