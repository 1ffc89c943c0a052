"""The sealed part of topics, as the newest manifest of each partition names it.

    topics/NAME/ID/…  ──▶  live topics  ──▶  newest manifest of each partition  ──▶  its segments

Each partition is of one manifest version: it never has a rewritten file beside the replaced ones.
Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

from driftlog.common.similar_names import similar
from driftlog.errors import DriftlogError, UnknownTopicError
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, StoreError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import decode_topic
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.manifests import iter_segments, load_newest
from driftlog_tiering.stores.locations import open_object_store
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_AT_ONCE: Final = 16
"""Partitions whose manifests are read at a time."""


@dataclass(frozen=True, slots=True)
class SealedPartition:
    """The segments of one manifest version; *manifest* None: nothing is sealed yet."""

    partition: int
    log_start: int
    sealed_end: int
    manifest: str | None
    segments: tuple[SegmentRef, ...]


@dataclass(frozen=True, slots=True)
class SealedTopic:
    """A live topic, with all of its partitions."""

    name: str
    topic_id: UUID
    partitions: tuple[SealedPartition, ...]


async def read_topics(
    location: str, names: Sequence[str], begins: Callable[[str], object] = lambda _: None
) -> list[SealedTopic]:
    """The topics of *names*, or all if it is empty.

    Args:
        begins: called with each topic before its manifests are read.

    Raises:
        ValueError: *location* is no location.
        UnknownTopicError: a topic does not exist.
        DriftlogError: there is no driftlog bucket, or an object is missing or damaged.
    """
    async with open_bucket(location) as store:
        found = []
        for folder in await topic_folders(store, location, names):
            if folder.is_deleted or not folder.files:
                continue
            topic = await _newest(store, folder)
            begins(topic.name)
            gate = asyncio.Semaphore(_AT_ONCE)
            partitions = await asyncio.gather(
                *(_partition(store, topic, id_, gate) for id_ in range(topic.partitions))
            )
            found.append(SealedTopic(topic.name, topic.topic_id, tuple(partitions)))
        return found


@asynccontextmanager
async def open_bucket(location: str) -> AsyncIterator[ObjectStore]:
    """The store at *location*, which has a driftlog log.

    Raises:
        ValueError: *location* is no location.
        DriftlogError: there is no driftlog bucket; and for what the body raises of the store.
    """
    if ":" not in location.partition("/")[0] and not Path(location).is_dir():
        raise DriftlogError(f"directory {location} does not exist")
    store = open_object_store(location)
    try:
        try:
            await store.get(layout.CLUSTER_KEY)
        except NotFoundError as error:
            raise DriftlogError(
                f"{location} is no driftlog bucket: {layout.CLUSTER_KEY} is missing; give "
                "the location where the agents store their objects"
            ) from error
        yield store
    except (StoreError, CorruptError, TimeoutError) as error:
        raise DriftlogError(f"{location}: {error or 'no answer in time'}") from error
    finally:
        await store.close()


def full_location(location: str, key: str) -> str:
    """The location of the object of *key*: an absolute path, or a URL such as *location*."""
    if location.startswith("file:"):
        return str(Path(unquote(urlsplit(location).path)) / key)
    if "://" in location:
        return f"{location.rstrip('/')}/{key}"
    return str(Path(location).absolute() / key)


@dataclass(frozen=True, slots=True)
class TopicFolder:
    """What the bucket has of one topic."""

    name: str
    topic_id: UUID
    files: tuple[str, ...]
    """Keys of the versions of its file, oldest first."""
    is_deleted: bool
    """Also where a bulk import has not ended, or never will."""


async def topic_folders(
    store: ObjectStore, location: str, names: Sequence[str]
) -> list[TopicFolder]:
    """The folders of the topics of *names*, or of all, also of deleted ones.

    Raises:
        UnknownTopicError: a topic does not exist.
        StoreError: the store failed.
    """
    there = await folders(store, layout.TOPICS_PREFIX)
    for name in names:
        if name not in there:
            raise UnknownTopicError(
                f"topic {name!r} does not exist at {location}{similar(name, there)}"
            )
    found = []
    for name in names or there:
        if not layout.is_topic_name(name):
            continue  # a folder that is not driftlog's
        of_name = []
        for id_ in await folders(store, layout.topic_name_prefix(name)):
            topic_id = _uuid(id_)
            if topic_id is not None:
                of_name.append(await topic_folder(store, name, topic_id))
        if names and all(folder.is_deleted for folder in of_name):
            raise UnknownTopicError(
                f"topic {name!r} at {location} is deleted, and the agents delete its objects"
            )
        found += of_name
    return found


async def topic_folder(store: ObjectStore, name: str, topic_id: UUID) -> TopicFolder:
    """The folder of one topic.

    Raises:
        StoreError: the store failed.
    """
    files = layout.topic_file_prefix(name, topic_id)
    keys = [info.key async for page in store.list(files) for info in page.objects]
    versions = tuple(sorted(key for key in keys if _is_topic_file(key)))
    is_deleted = layout.deleted_key(name, topic_id) in keys
    if not is_deleted and not versions and layout.import_key(name, topic_id) in keys:
        is_deleted = not await _was_led(store, name, topic_id)
    return TopicFolder(name, topic_id, versions, is_deleted)


async def _was_led(store: ObjectStore, name: str, topic_id: UUID) -> bool:
    """Whether agents have sealed records of the topic: it was published, and its file is lost."""
    async for page in store.list(layout.topic_prefix(name, topic_id)):
        for info in page.objects:
            with suppress(ValueError):  # not driftlog's
                if layout.is_of_agent(layout.parse_key(info.key)):
                    return True
    return False


def _uuid(text: str) -> UUID | None:
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None


def _is_topic_file(key: str) -> bool:
    try:
        layout.parse_topic_key(key)
    except ValueError:
        return False
    return True


async def folders(
    store: ObjectStore, prefix: str, after: str = "", until: str | None = None
) -> list[str]:
    """The names between *prefix* and the next slash, a request for each.

    An object directly under *prefix* is not driftlog's.  Only of keys behind *after*, and of names
    before *until*.
    """
    found: list[str] = []
    while True:
        keys: list[str] = []
        async for page in store.list(prefix, start_after=after, page_size=1):
            keys = [info.key for info in page.objects]
            break
        if not keys:
            return found
        name, slash, _ = keys[0].removeprefix(prefix).partition("/")
        if until is not None and name >= until:
            return found
        if slash:
            found.append(name)
        after = f"{prefix}{name}0" if slash else keys[0]  # 0: the character behind the slash


async def _newest(store: ObjectStore, folder: TopicFolder) -> Topic:
    """The topic by its newest version, which agents may delete behind the listing once they have
    written newer ones."""
    while True:
        try:
            return decode_topic(await store.get(folder.files[-1])).topic
        except NotFoundError:
            again = await topic_folder(store, folder.name, folder.topic_id)
            if again.files[-1:] <= folder.files[-1:]:
                raise
            folder = again


async def _partition(
    store: ObjectStore, topic: Topic, id_: int, gate: asyncio.Semaphore
) -> SealedPartition:
    async with gate:
        manifest = await load_newest(store, topic.name, TopicPartition(topic.topic_id, id_))
        if manifest is None:
            return SealedPartition(id_, 0, 0, None, ())
        segments = [s async for s in iter_segments(store, manifest)]
        return SealedPartition(id_, manifest.log_start, manifest.end, manifest.key, tuple(segments))
