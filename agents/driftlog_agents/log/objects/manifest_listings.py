"""Which listings show whether the bucket has newer manifests than the keys of claimed partitions.

    led before ──▶ one listing each
    never led ──▶ one listing of the topic: has any partition an object? ──yes──▶ one listing each

Partitions' folders sort before the topic's files, so the first key of a topic shows whether any
partition has an object.  An agent that starts with thousands of new partitions makes one request
per topic.

Pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout


@dataclass(slots=True)
class Newest:
    """The newest manifests of claimed partitions by the listings."""

    versions: dict[TopicPartition, int] = field(default_factory=dict)
    """Version of the newest manifest; 0: the listing shows none."""
    unreadable: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions whose listing failed, and why."""


def topic_prefixes(
    logs: Mapping[TopicPartition, PartitionLog], fresh: Collection[TopicPartition]
) -> dict[UUID, str]:
    """The topics of *fresh*, partitions that were never led, and the prefix of each in the
    bucket."""
    topics = {tp.topic_id: logs[tp].topic for tp in fresh}
    return {topic_id: layout.topic_prefix(name, topic_id) for topic_id, name in topics.items()}


def shows_use(key: str, topic_prefix: str) -> bool:
    """Whether *key*, the first one of a topic, is an object of a partition."""
    return not key.startswith(f"{topic_prefix}topic/")


def unlisted(
    fresh: Collection[TopicPartition], failed: Mapping[UUID, str]
) -> dict[TopicPartition, str]:
    """Those of *fresh* whose topics could not be listed, and why."""
    return {tp: failed[tp.topic_id] for tp in fresh if tp.topic_id in failed}


def to_list(
    logs: Mapping[TopicPartition, PartitionLog],
    fresh: Collection[TopicPartition],
    used: Mapping[UUID, bool],
) -> dict[TopicPartition, PartitionLog]:
    """The partitions that need a listing of their own; *used*: topics that have objects of
    partitions, as far as they could be listed."""
    return {tp: log for tp, log in logs.items() if tp not in fresh or used.get(tp.topic_id)}
