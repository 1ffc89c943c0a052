"""Which Produce requests are handled at once, and how the others are read.

    decoded with few elements? ──▶ few bytes to check, short names ──▶ at once
             │                                  │
             └──────────────────────────────────┴──▶ large: read by a thread, admitted in slices

Pure.
"""

from typing import Final

from driftlog_agents.limits import KiB, MiB
from driftlog_agents.protocol.api import RequestHeader
from driftlog_agents.protocol.errors import (
    ELEMENTS,
    RESPONSE_BYTES,
    CorruptFrameError,
    OverLimitError,
)
from driftlog_agents.protocol.messages.produce import API, LARGE_API, ProduceRequest

AT_ONCE_ELEMENTS: Final = 256
"""Topics and partitions of a request that is handled in one go: a millisecond or two."""

_AT_ONCE_BYTES: Final = 4 * MiB
"""Of several batches, whose CRCs are computed in one go: some milliseconds."""

ONE_BATCH_BYTES: Final = 32 * MiB
"""The same of one batch, which nobody sends by default."""

_AT_ONCE_NAME_BYTES: Final = 64 * KiB
"""Of names, which the answer repeats; those of 256 topics are less."""

ELEMENT_BYTES: Final = 1_024
"""What a partition holds until it is answered: of the request, of the answer, who waits."""

LEAST_ANSWER_BYTES: Final = 33
"""Of a partition, without an error."""

MOST_ANSWER_BYTES: Final = 400
"""The same with one, which says twice what is wrong."""

_LEAST_ELEMENT_BYTES: Final = 6
"""Partition, no records, no tags."""


def decode_small(
    header: RequestHeader, frame: memoryview, max_elements: int, max_tagged_fields: int
) -> ProduceRequest | None:
    """The request, if it can be handled at once; None: it is large.

    Raises:
        CorruptFrameError: it is no request.
        OverLimitError: it has more than *max_tagged_fields*.
    """
    most = min(AT_ONCE_ELEMENTS, max_elements)
    try:
        request = API.decode_request(
            header.api_version, frame, header.body_offset, most, max_tagged_fields
        )
    except OverLimitError as error:
        if error.limit != ELEMENTS:
            raise
        return None
    topics = request.topic_data
    if len(frame) <= _AT_ONCE_NAME_BYTES:
        return request
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return request if len(frame) <= ONE_BATCH_BYTES else None
    if len(frame) > _AT_ONCE_BYTES or sum(len(t.name) for t in topics) > _AT_ONCE_NAME_BYTES:
        return None
    return request


def decode_large(
    header: RequestHeader,
    frame: memoryview,
    max_elements: int,
    max_tagged_fields: int,
    max_answer_bytes: int,
) -> ProduceRequest:
    """A request of any size that is allowed.

    Raises:
        CorruptFrameError: it is no request, or names what cannot be a topic, or a partition twice.
        OverLimitError: it has more than *max_elements* or *max_tagged_fields*, or its answer would
            have more than *max_answer_bytes*.
    """
    request = LARGE_API.decode_request(
        header.api_version, frame, header.body_offset, max_elements, max_tagged_fields
    )
    refuse_twice(request)
    least, _ = answer_bytes(request)
    if least > max_answer_bytes:
        raise OverLimitError(
            RESPONSE_BYTES,
            f"a Produce request whose answer has {least} bytes, where {max_answer_bytes} are "
            "allowed",
        )
    return request


def decoded_bytes(frame: memoryview, max_elements: int) -> int:
    """What a large request comes to, beside its frame, at most."""
    return min(len(frame) // _LEAST_ELEMENT_BYTES, max_elements) * ELEMENT_BYTES


def elements(request: ProduceRequest) -> int:
    """Topics and partitions."""
    topics = request.topic_data
    return len(topics) + sum(len(topic.partition_data) for topic in topics)


def answer_bytes(request: ProduceRequest) -> tuple[int, int]:
    """What the answer comes to: without any error, and at most."""
    if request.acks == 0:
        return 0, 0
    names = sum(len(topic.name.encode()) for topic in request.topic_data)
    count = elements(request)
    return names + count * LEAST_ANSWER_BYTES, names + count * MOST_ANSWER_BYTES


def refuse_twice(request: ProduceRequest) -> None:
    """Kafka appends the last batch of those for one partition, and answers it alone: producers
    send one (`ProduceRequest`), and what happened to others could not be told.

    Raises:
        CorruptFrameError: a partition is named twice.
    """
    topics = request.topic_data
    if len(topics) == 1:
        data = topics[0].partition_data
        twice = len({each.index for each in data}) < len(data)
    else:
        named = [(t.name, t.topic_id, each.index) for t in topics for each in t.partition_data]
        twice = len(set(named)) < len(named)
    if twice:
        raise CorruptFrameError("a Produce request that names a partition twice")
