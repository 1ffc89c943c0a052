"""Topic files in the bucket: copies of a topic's key in the metadata store.

    key is put ──▶ list: newest is n ──▶ read the key ──▶ create topic/{n+1}.json ──▶ old ones go
                    ▲                                       │ another agent has created it
                    └───────────────────────────────────────┘

1. The newest file has every change that was answered, at every moment.  A writer reads the key
   behind its listing, so a version that it creates has all changes of the versions before it.
   Each change writes a version, also where the newest is equal: a writer that was held up before
   its create finds its number taken, or creates a version that is not the newest.  Nor does an
   equal one say that it is the newest: a listing may lack the one that was put last.
2. Who writes or checks a topic's file deletes old versions, not the collector: each change writes
   one, so they are bounded by count, and a grace could not bound them.  A version goes only behind
   newer ones in a listing, so nothing ever deletes the newest.  One of these is a minute old: also
   a listing that lacks what was just put shows it.  So a writer takes the number of a deleted
   version only if it listed before the deletion, and its version is then not the newest.
3. The oldest version with the policy ``compact`` stays: it explains to `driftlog verify` the gaps
   of a compaction that ended half-way (`verification/partition_verifier`).

Requests are repeated while the session lives, but deletions: the next change deletes what is left.

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

from driftlog_agents.foundation.retry import NO_ANSWER, Retry
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

KEPT: Final = 8
"""Newest versions that stay.  More: a reader may be slower between its listing and its read, and a
restore has more to fall back on where files are damaged."""

SETTLED_MS: Final = 60_000
"""Age from which each listing shows an object.  Larger: a topic that is altered often has more
files."""

_FEWEST_DELETED, _MOST_DELETED = 8, 32
"""Versions that one change or check deletes, after it has read them, and before it is answered.
More: fewer changes have to."""

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
        """Write a new version: the topic's key was put."""
        await self._write(engine, topic, is_put=True)

    async def repair(self, engine: Engine, topic: Topic) -> None:
        """Write a new version unless the newest file equals the topic's key."""
        await self._write(engine, topic, is_put=False)

    async def _write(self, engine: Engine, topic: Topic, *, is_put: bool) -> None:
        while True:
            old, newest = await self._repeat(engine, lambda: self._newest(topic))
            kv = await engine.session.read(topic_key(topic.name))  # behind the listing
            now = None if kv is None else topic_of(kv)
            if now is None or now.topic_id != topic.topic_id:
                return  # The topic was deleted meanwhile.
            if newest is not None and newest.topic == now and not is_put:
                break
            version = 1 if newest is None else newest.version + 1
            body = bucket_files.encode_topic(TopicFile(version, now))
            where = layout.topic_key(topic.name, topic.topic_id, version)
            if await self._repeat(
                engine,
                lambda w=where, b=body: self._create_object(engine, w, b),  # type: ignore[misc]
            ):
                break
            await asyncio.sleep(_RETRY.wait_s)  # the listing may not show that version yet
        await self._delete_old(engine, old)

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

    async def _newest(self, topic: Topic) -> tuple[list[str], TopicFile | None]:
        """The keys of the topic's old versions, ascending, and the newest version."""
        keys, old = await self._keys(topic)
        while keys:
            newest = keys[-1]
            try:
                return old, bucket_files.decode_topic(await self._host.objects.get(newest))
            except (CorruptError, NotFoundError) as error:
                keys, old = await self._keys(topic)
                if keys[-1:] > [newest]:
                    continue  # other agents have written newer ones, and may have deleted this one
                # The caller writes a newer version.
                self._log.error("topic_file_damaged", object=newest, error=str(error))
                version = layout.parse_topic_key(newest).version
                return old, TopicFile(version, replace(topic, partitions=0))
        return [], None

    async def _keys(self, topic: Topic) -> tuple[list[str], list[str]]:
        """The keys of the topic's versions, ascending; and those of them that are old."""
        keys: list[str] = []
        settled: list[str] = []
        async for page in self._host.objects.list(
            layout.topic_file_prefix(topic.name, topic.topic_id)
        ):
            for info in page.objects:
                with suppress(ValueError):  # a mark, or an unrecognised object
                    layout.parse_topic_key(info.key)
                    keys.append(info.key)
                    if page.store_now_ms - info.modified_ms >= SETTLED_MS:
                        settled.append(info.key)
        kept = {*keys[-KEPT:], *settled[-1:]}
        return keys, [key for key in settled if key not in kept]

    async def _delete_old(self, engine: Engine, old: list[str]) -> None:
        if len(old) < _FEWEST_DELETED:
            return
        try:
            async with asyncio.timeout(_RETRY.timeout_s):
                superseded = await self._superseded(old[:_MOST_DELETED])
                await engine.session.ownership.hold()
                if superseded:
                    await self._host.objects.delete(superseded)
        except NO_ANSWER as error:
            self._log.warning(
                "old_topic_files_left",
                object=old[0],
                error=repr(error),
                advice="no action needed if the bucket is away: the topic's next change deletes "
                "them.  Else allow the agent to delete objects under topics/",
            )

    async def _superseded(self, keys: list[str]) -> list[str]:
        """Those of *keys*, ascending, that may go: not the oldest with ``compact``, and none that
        cannot be read."""
        policies: list[str | None] = [None] * len(keys)

        async def read(at: int) -> None:
            with suppress(CorruptError, NotFoundError):
                file = bucket_files.decode_topic(await self._host.objects.get(keys[at]))
                policies[at] = file.topic.configs.get("cleanup.policy", "")

        await do_all(read(at) for at in range(len(keys)))
        compacts = [at for at, policy in enumerate(policies) if policy and "compact" in policy]
        return [
            key
            for at, key in enumerate(keys)
            if policies[at] is not None and at not in compacts[:1]
        ]

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
            self._log.warning(
                "topic_file_request_repeated",
                error=repr(error),
                advice="the change of a topic waits for the bucket: repair the bucket, or the "
                "agent's access to topics/ in it",
            )
            if not engine.session.alive or self._host.engine is not engine:
                raise FencedError("the session ended while the bucket did not answer") from error

        return await _RETRY.run(request, failed)


def topic_of(kv: KeyValue) -> Topic:
    """Decode the topic in the value of a topic's key or of a tombstone.

    Raises:
        CorruptError: the value is damaged or has a newer format; the message names the key.
    """
    return decode_at(kv.key, kv.value, decode_topic)
