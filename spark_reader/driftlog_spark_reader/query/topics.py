"""The topics and partitions that a selection names, as they are in the bucket now.

Shell.
"""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from uuid import UUID

from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.bucket.catalog import find_topic, topic_names
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.common.errors import DeletedTopicError, UnknownTopicError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.source_options import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
)
from driftlog_tiering.formats.layout import is_topic_name


def select_partitions(
    files: Files,
    selection: Selection,
    pool: Executor,
    topic_id: UUID | None = None,
    *,
    strict: bool = True,
) -> dict[NamedPartition, Topic]:
    """The partitions that are read, each with its topic, by name and number.

    Args:
        strict: False: leave out named topics and partitions that are not there.

    Raises:
        ValueError: a name cannot be a topic's, or a topic has no such partition.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic; of a
            pattern, topics that go meanwhile are left out.
        DamagedTopicError: a topic's file is damaged.
        StorageError: the location cannot be read.
    """
    match selection:
        case Subscribe(names):
            return _all_partitions(_topics(files, names, pool, topic_id, strict=strict))
        case SubscribePattern(pattern):
            matches = re.compile(pattern).search  # anywhere in the name, as Spark's source
            names = tuple(filter(matches, topic_names(files)))
            return _all_partitions(_topics(files, names, pool, None, strict=False))
        case Assign(partitions):
            names = tuple(sorted({named.topic for named in partitions}))
            topics = _topics(files, names, pool, topic_id, strict=strict)
            by_name = {topic.name: topic for topic in topics}
            found = {}
            for named in (named for named in partitions if named.topic in by_name):
                topic = by_name[named.topic]
                if named.partition < topic.partitions:
                    found[named] = topic
                elif strict:
                    raise ValueError(
                        f"topic {named.topic} has partitions 0 to {topic.partitions - 1}, not "
                        f"{named.partition}"
                    )
            return found


def _topics(
    files: Files, names: Sequence[str], pool: Executor, topic_id: UUID | None, *, strict: bool
) -> list[Topic]:
    for name in names:
        if not is_topic_name(name):
            raise ValueError(f"{name!r} cannot be a topic's name")

    def find(name: str) -> Topic | None:
        try:
            return find_topic(files, name, topic_id)
        except (UnknownTopicError, DeletedTopicError):
            if strict:
                raise
            return None

    return [topic for topic in pool.map(find, names) if topic is not None]


def _all_partitions(topics: Iterable[Topic]) -> dict[NamedPartition, Topic]:
    return {
        NamedPartition(topic.name, partition): topic
        for topic in topics
        for partition in range(topic.partitions)
    }
