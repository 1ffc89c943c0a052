"""What a Fetch asks for: how many partitions, each named once; and whether an answer has an error.

Pure.
"""

from typing import Final
from uuid import UUID

from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchTopic,
)

MANY_PARTITIONS: Final = 1_000
"""A request of more is read in slices and encoded by a thread: some milliseconds each."""

UNKNOWN_PARTITION: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
)
"""Errors of partitions that are not there."""


def is_large(request: FetchRequest) -> bool:
    """Whether *request* names more than is checked and read in one turn of the event loop."""
    topics = request.topics
    if len(topics) > MANY_PARTITIONS:
        return True
    return sum(len(topic.partitions) for topic in topics) > MANY_PARTITIONS


def named_once(request: FetchRequest) -> None:
    """Keep the last entry of a partition that is named twice, and drop topics without partitions
    (FetchRequest#fetchData)."""
    if not all(topic.partitions for topic in request.topics):
        request.topics = [topic for topic in request.topics if topic.partitions]
    if len({(topic.topic, topic.topic_id) for topic in request.topics}) < len(request.topics):
        topics: dict[tuple[str, UUID], FetchTopic] = {}
        for topic in request.topics:
            first = topics.setdefault((topic.topic, topic.topic_id), topic)
            if first is not topic:
                first.partitions += topic.partitions
        request.topics = list(topics.values())
    if not all(topic.partitions for topic in request.topics):
        request.topics = [topic for topic in request.topics if topic.partitions]
    for topic in request.topics:
        if len(topic.partitions) > 1:
            named = {asked.partition: asked for asked in topic.partitions}
            if len(named) < len(topic.partitions):
                topic.partitions = list(named.values())


def has_error(responses: list[FetchableTopicResponse], partitions: int) -> bool:
    """Whether a partition has an error that is answered at once, or diverges.

    A topic or partition that is not known is no such error while the request asks for another one,
    of its *partitions* (KafkaApis#handleFetchRequest).
    """
    failed = [
        data.error_code
        for topic in responses
        for data in topic.partitions
        if data.error_code or data.diverging_epoch.epoch >= 0
    ]
    return bool(failed) and (len(failed) == partitions or not UNKNOWN_PARTITION.issuperset(failed))
