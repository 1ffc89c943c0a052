"""A topic in the bucket: its id, its partitions, and each one's newest manifest.

The answers are those of `formats/manifests` to agents, through the file system of a Spark session
instead of an object store.  This module only reads.

Shell.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.common.errors import (
    AmbiguousTopicError,
    DamagedTopicError,
    DeletedTopicError,
    UnknownTopicError,
)
from driftlog_spark_reader.options.time_range import ALL_TIMES, TimeRange
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import decode_topic
from driftlog_tiering.formats.manifest import (
    Manifest,
    SegmentListRef,
    SegmentRef,
    empty_manifest,
    overlaps,
)
from driftlog_tiering.formats.manifest_codec import decode_manifest, decode_segment_list
from driftlog_tiering.foundation.types import Buffer

SEGMENT_FORMAT: Final = 1
"""The newest format of Parquet segments that this reader knows."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_VERSION: Final = re.compile(r"[0-9]{20}\.json")
DAMAGED: Final = "restore it from a copy of the bucket, or leave the partition out"
MISSING: Final = (
    "missing: call load() again if the DataFrame or view is older than 12 h, since replaced and "
    f"expired files go then; else {DAMAGED}"
)
"""Of a segment that a plan names."""
"""What to do about a damaged or missing object."""


def find_topic(files: Files, name: str, topic_id: UUID | None) -> Topic:
    """The live topic of that name.

    Of several, one that has a file: objects without one are perhaps no topic's.

    Raises:
        UnknownTopicError: the location has no such topic.
        DeletedTopicError: the topic is deleted.
        AmbiguousTopicError: several topics have the name, and *topic_id* is None.
        DamagedTopicError: the topic's file is damaged or missing.
    """
    folder = layout.topic_name_prefix(name)
    ids = [UUID(found) for found in files.names(folder) if _UUID.fullmatch(found)]
    if topic_id is not None and ids:
        ids = [found for found in ids if found == topic_id]
    if not ids:
        raise _unknown(files, name, topic_id)
    versions = {found: files.names(layout.topic_file_prefix(name, found)) for found in ids}
    live = sorted(
        found for found, names in versions.items() if not _is_none(files, name, found, names)
    )
    with_file = [found for found in live if any(map(_VERSION.fullmatch, versions[found]))]
    match with_file or live:
        case []:
            raise DeletedTopicError(
                f"topic {name!r} ({', '.join(map(str, ids))}) is deleted, and the agents delete "
                "its objects, or its import has not ended; a new topic of this name appears here "
                "once it is created"
            )
        case [found]:
            return _topic(files, name, found, versions[found])
        case _:
            raise AmbiguousTopicError(
                f"several topics have the name {name!r}; choose one with topic_id: "
                f"{', '.join(map(str, with_file or live))}"
            )


def topic_names(files: Files) -> list[str]:
    """The names of all topics, also of deleted ones.

    Raises:
        StorageError: the location cannot be read.
        UnknownTopicError: it is no driftlog bucket.
    """
    names = [name for name in files.names(layout.TOPICS_PREFIX) if layout.is_topic_name(name)]
    if not names and files.read(layout.CLUSTER_KEY) is None:
        raise _no_bucket(files)
    return sorted(names)


def _no_bucket(files: Files) -> UnknownTopicError:
    return UnknownTopicError(
        f"{files.root} is no driftlog bucket: {layout.CLUSTER_KEY} is missing; give "
        "the location where the agents store their objects"
    )


def _is_none(files: Files, name: str, topic_id: UUID, names: list[str]) -> bool:
    """Whether a folder with these files is no topic: deleted, or a bulk import that has not ended
    or never will."""
    begun = "import.json" in names and not any(_VERSION.fullmatch(one) for one in names)
    return "deleted.json" in names or (begun and not _was_led(files, name, topic_id))


def _was_led(files: Files, name: str, topic_id: UUID) -> bool:
    """Whether agents have sealed records of the topic: it was published, and its file is lost."""
    folder = layout.topic_prefix(name, topic_id)
    for partition in files.names(folder):
        for kind in ("manifest", "producers"):
            for found in files.names(f"{folder}{partition}/{kind}/"):
                with suppress(ValueError):  # not driftlog's
                    if layout.is_of_agent(layout.parse_key(f"{folder}{partition}/{kind}/{found}")):
                        return True
    return False


def _unknown(files: Files, name: str, topic_id: UUID | None) -> UnknownTopicError:
    if files.read(layout.CLUSTER_KEY) is None:
        return _no_bucket(files)
    known = sorted(files.names(layout.TOPICS_PREFIX))
    listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    which = name if topic_id is None else f"{name} with the id {topic_id}"
    return UnknownTopicError(f"no topic {which} at {files.root}; there are: {listed or 'none'}")


def _topic(files: Files, name: str, topic_id: UUID, names: list[str]) -> Topic:
    versions = sorted(found for found in names if _VERSION.fullmatch(found))
    if not versions:
        folder = layout.topic_file_prefix(name, topic_id)
        raise DamagedTopicError(f"{files.path(folder)}: the topic's file is missing; {DAMAGED}")
    key = layout.topic_key(name, topic_id, int(versions[-1].removesuffix(".json")))
    body = files.read(key)
    if body is None:
        again = files.names(layout.topic_file_prefix(name, topic_id))
        if max(filter(_VERSION.fullmatch, again), default="") > versions[-1]:
            return _topic(files, name, topic_id, again)  # agents have written newer ones
    try:
        topic = decode_topic(_present(files, key) if body is None else body).topic
    except CorruptError as error:
        raise DamagedTopicError(f"{files.path(key)}: {error}; {DAMAGED}") from error
    if (topic.name, topic.topic_id) != (name, topic_id):
        raise DamagedTopicError(f"{files.path(key)}: it is of topic {topic.name}; {DAMAGED}")
    return topic


def newest_manifest(
    files: Files, topic: str, tp: TopicPartition, known: Manifest | None = None
) -> Manifest:
    """The partition's newest manifest; the empty one when there is none.

    *known* is returned if it still is the newest: it is not read again.

    Raises:
        DamagedTopicError: the manifest is damaged.
    """
    folder = layout.manifest_prefix(topic, tp)
    names = [found for found in files.names(folder) if _VERSION.fullmatch(found)]
    if not names:
        return empty_manifest(topic, tp)
    key = f"{folder}{min(names)}"
    if known is not None and known.tp == tp and known.key == key:
        return known
    try:
        manifest = decode_manifest(_present(files, key))
    except CorruptError as error:
        raise DamagedTopicError(f"{files.path(key)}: {error}; {DAMAGED}") from error
    if manifest.key != key:
        raise DamagedTopicError(f"{files.path(key)}: it is {manifest.key}; {DAMAGED}")
    return manifest


def segments(
    files: Files, manifest: Manifest, start: int, end: int, time: TimeRange = ALL_TIMES
) -> Iterator[SegmentRef]:
    """The segments with offsets in ``[start, end)`` that may hold such times, ascending.

    Raises:
        DamagedTopicError: a list is damaged or missing, or a newer driftlog wrote a segment.
    """

    def opens(entry: SegmentListRef) -> bool:
        return time.overlaps(entry.min_timestamp_ms, entry.max_timestamp_ms)

    for entry in entries(files, manifest, start, end, opens):
        if isinstance(entry, SegmentRef):
            if entry.format_version > SEGMENT_FORMAT:
                raise DamagedTopicError(
                    f"{files.path(entry.key)}: a newer driftlog wrote it (format "
                    f"{entry.format_version}); upgrade driftlog in this Spark job"
                )
            yield entry


def entries(
    files: Files,
    manifest: Manifest,
    start: int,
    end: int,
    opens: Callable[[SegmentListRef], bool],
) -> Iterator[SegmentRef | SegmentListRef]:
    """The entries with offsets in ``[start, end)``, ascending; lists that *opens* are replaced by
    what is in them.

    Raises:
        DamagedTopicError: a segment list is damaged or missing.
    """
    pending: list[SegmentRef | SegmentListRef] = [*manifest.lists, *manifest.segments]
    pending.reverse()
    while pending:
        entry = pending.pop()
        if not overlaps(entry, start, end):
            continue
        if isinstance(entry, SegmentRef) or not opens(entry):
            yield entry
            continue
        try:
            content = decode_segment_list(_present(files, entry.key), entry)
        except CorruptError as error:
            raise DamagedTopicError(f"{files.root}: {error}; {DAMAGED}") from error
        pending.extend(reversed((*content.lists, *content.segments)))


def _present(files: Files, key: str) -> Buffer:
    body = files.read(key)
    if body is None:
        raise DamagedTopicError(f"{files.path(key)}: missing; {DAMAGED}")
    return body
