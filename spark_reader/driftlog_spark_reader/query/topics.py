"""The topics and partitions that a selection names, as they are in the bucket now.

Shell.
"""

import re
from collections.abc import Iterable
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
    files: Files, selection: Selection, topic_id: UUID | None = None
) -> dict[NamedPartition, Topic]:
    """The partitions that are read, each with its topic, by name and number.

    Raises:
        ValueError: a name cannot be a topic's, or a topic has no such partition.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic; of a
            pattern, topics that go meanwhile are left out.
        DamagedTopicError: a topic's file is damaged.
        StorageError: the location cannot be read.
    """
    match selection:
        case Subscribe(names):
            return _all_partitions(_topics(files, names, topic_id))
        case SubscribePattern(pattern):
            matches = re.compile(pattern).search  # anywhere in the name, as Spark's source
            return _all_partitions(_live(files, filter(matches, topic_names(files))))
        case Assign(partitions):
            topics = _topics(files, {named.topic for named in partitions}, topic_id)
            by_name = {topic.name: topic for topic in topics}
            for named in partitions:
                count = by_name[named.topic].partitions
                if named.partition >= count:
                    raise ValueError(
                        f"topic {named.topic} has partitions 0 to {count - 1}, not "
                        f"{named.partition}"
                    )
            return {named: by_name[named.topic] for named in partitions}


def _topics(files: Files, names: Iterable[str], topic_id: UUID | None) -> list[Topic]:
    found = []
    for name in names:
        if not is_topic_name(name):
            raise ValueError(f"{name!r} cannot be a topic's name")
        found.append(find_topic(files, name, topic_id))
    return found


def _live(files: Files, names: Iterable[str]) -> list[Topic]:
    found = []
    for name in sorted(names):
        try:
            found.append(find_topic(files, name, None))
        except (UnknownTopicError, DeletedTopicError):
            continue
    return found


def _all_partitions(topics: Iterable[Topic]) -> dict[NamedPartition, Topic]:
    return {
        NamedPartition(topic.name, partition): topic
        for topic in topics
        for partition in range(topic.partitions)
    }
