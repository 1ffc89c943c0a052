"""What a leader sends to an agent that writes a range's segments for it, and the answer.

    request   frame of JSON: cluster, topic, partition, range
              frames of batches, in offset order
              an empty frame: the range is complete
    answer    JSON: the references of the segments

A frame is its length in bytes (4, big-endian) and its content.  Without the empty frame a range
that was cut off would look complete.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from driftlog_agents.log.sealing.partition_range import PartitionRange
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import BatchHeader, Buffer, iterate_batches
from driftlog_tiering.formats.layout import SegmentKind, is_topic_name
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_segments
from driftlog_tiering.formats.stored_json import decode_json, encode_json, integer, string

LENGTH_BYTES: Final = 4

_REQUEST: Final = "driftlog.segment-request"
_FORMAT: Final = 1


class CorruptAnswerError(CorruptError):
    """The answer is damaged, of a newer release, or to another request."""


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """A request's first frame: the range, and the leader's cluster."""

    cluster_id: str
    named: PartitionRange


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """The segments that another agent wrote of a range, and the headers of its batches."""

    segments: list[SegmentRef]
    headers: list[BatchHeader]


def frame(content: Sequence[Buffer]) -> list[Buffer]:
    """A frame of *content*, in pieces."""
    return [sum(map(len, content)).to_bytes(LENGTH_BYTES, "big"), *content]


END: Final = bytes(LENGTH_BYTES)
"""The empty frame."""


def encode_request(request: SegmentRequest) -> bytes:
    """The content of a request's first frame."""
    named = request.named
    return encode_json(
        _REQUEST,
        _FORMAT,
        {
            "cluster_id": request.cluster_id,
            "topic": named.topic,
            "topic_id": str(named.tp.topic_id),
            "partition": named.tp.partition,
            "base": named.base,
            "end": named.end,
        },
    )


def decode_request(content: Buffer) -> SegmentRequest:
    """Invert :func:`encode_request`.

    Raises:
        CorruptError: it is none, or one of a newer release.
    """
    try:
        fields = decode_json(_REQUEST, _FORMAT, content)
        topic = string(fields, "topic")
        tp = TopicPartition(UUID(string(fields, "topic_id")), integer(fields, "partition"))
        named = PartitionRange(topic, tp, integer(fields, "base"), integer(fields, "end"))
        cluster_id = string(fields, "cluster_id")
    except ValueError as error:
        raise CorruptError(f"request for segments: {error}") from error
    if not is_topic_name(topic):
        raise CorruptError(f"request for segments: not a topic name: {topic!r}")
    if named.base >= named.end:
        raise CorruptError(f"request for segments: [{named.base}, {named.end}) is empty")
    return SegmentRequest(cluster_id, named)


def batches_from(
    content: Buffer, named: PartitionRange, next_offset: int
) -> tuple[list[Buffer], int]:
    """The batches of a frame, which begin at *next_offset* or after it; and where they end.

    Raises:
        CorruptError: they are not the next batches of the range *named*.
    """
    batches: list[Buffer] = []
    for header, batch in iterate_batches(content):
        if header.base_offset < next_offset or header.end_offset > named.end:
            raise CorruptError(
                f"{named.name}: a batch of [{header.base_offset}, {header.end_offset}) where "
                f"offsets from {next_offset} to {named.end} were expected"
            )
        next_offset = header.end_offset
        batches.append(batch)
    return batches, next_offset


def written(
    answer: Buffer, named: PartitionRange, headers: list[BatchHeader]
) -> WrittenRange | None:
    """What *answer* says was written of the batches with *headers*; None: some could not be
    decoded there, and the leader looks at them itself.

    Raises:
        CorruptAnswerError: see there.
    """
    try:
        segments = list(decode_segments(answer))
    except CorruptError as error:
        raise CorruptAnswerError(str(error)) from error
    if any(ref.kind is SegmentKind.RAW for ref in segments):
        return None
    borders = [named.base, *(ref.end for ref in segments)]
    records = sum(header.record_count for header in headers)
    if (
        [ref.base for ref in segments] != borders[:-1]
        or borders[-1] != named.end
        or sum(ref.records for ref in segments) != records
    ):
        raise CorruptAnswerError(
            f"{named.name}: segments of other offsets or records were written than of "
            f"[{named.base}, {named.end}) and {records}"
        )
    return WrittenRange(segments, headers)
