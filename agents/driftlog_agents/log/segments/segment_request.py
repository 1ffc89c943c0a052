"""What a leader sends to an agent that writes a range's segment for it, and the answer.

    request   frame of JSON: cluster, session that is asked, its secret, topic, partition, range
              frames of batches, in offset order
              an empty frame: the range is complete
    answer    JSON: the reference of the segment

A frame is its length in bytes (4, big-endian) and its content.  Without the empty frame a range
that was cut off would look complete.

The secret stands in the metadata store alone (`keys.secret_key`): who repeats it reads that store,
as agents do.  A request without one is of an older build, or of a stranger.

Pure.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from driftlog_agents.log.segments.partition_range import PartitionRange
from driftlog_agents.log.segments.range_pieces import CHUNK_BYTES
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import BatchHeader, iterate_batches
from driftlog_tiering.formats.layout import SegmentKind, is_topic_name, parse_segment_key
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_segments
from driftlog_tiering.formats.stored_json import decode_json, encode_json, integer, string
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.transfer_time import transfer_s

LENGTH_BYTES: Final = 4

MOST_CHUNK_BYTES: Final = 2 * CHUNK_BYTES
"""Of a frame of several batches: `range_reader` yields no larger chunk, but for one batch."""

_REQUEST: Final = "driftlog.segment-request"
_FORMAT: Final = 1

_PARTITIONS: Final = 2**31
"""Kafka's numbers of partitions are int32."""

_RANGE_BYTES: Final = 5 * 1024**3 // 2
"""More than the largest `segment.bytes` and one flush."""


class BusyError(Exception):
    """The other agent writes as many segments as it can."""


class RemoteError(Exception):
    """The other agent gave no answer, or refused."""


class StrangerError(RemoteError):
    """The sender of a request does not prove that it reads the cluster's metadata store."""


class UndecodableError(Exception):
    """The range is not one segment: a batch of it cannot be decoded, or there is too much to
    decode.  Its leader writes it itself."""


class CorruptAnswerError(CorruptError):
    """The answer is damaged, of a newer release, or to another request."""


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """A request's first frame: the leader's cluster, the session that is asked, and the range.
    ``secret``: as the metadata store has it; empty: it has none."""

    cluster_id: str
    session_id: str
    named: PartitionRange
    secret: str = field(default="", repr=False)

    def proves(self, secret: str | None) -> bool:
        """Whether the request repeats *secret*, which is that of the session that is asked; in a
        time that does not tell how much of it is right."""
        said = self.secret.encode(errors="replace")
        return secret is not None and hmac.compare_digest(said, secret.encode())


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
            "session_id": request.session_id,
            "secret": request.secret,
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
        cluster_id, session_id = string(fields, "cluster_id"), string(fields, "session_id")
        secret = string(fields, "secret") if "secret" in fields else ""
    except ValueError as error:
        raise CorruptError(f"request for segments: {error}") from error
    if not is_topic_name(topic):
        raise CorruptError(f"request for segments: not a topic name: {topic!r}")
    if tp.partition >= _PARTITIONS:
        raise CorruptError(f"request for segments: {tp.partition} is no number of a partition")
    if named.base >= named.end:
        raise CorruptError(f"request for segments: [{named.base}, {named.end}) is empty")
    return SegmentRequest(cluster_id, session_id, named, secret)


class RangeBudget:
    """The time and the size of a range that another agent sends.

    Args:
        silent_s: how long a sender may be silent, all its frames together.
    """

    def __init__(self, silent_s: float) -> None:
        self._left_s = silent_s
        self._size_bytes = 0

    @property
    def left_s(self) -> float:
        """How long the next frame may take.

        A range that comes more slowly is given up: its turn is another's.
        """
        return self._left_s + transfer_s(self._size_bytes)

    def add(self, size_bytes: int, took_s: float) -> None:
        """Count a frame that took so long to come.  What this agent does between two frames is not
        the sender's time.

        Raises:
            CorruptError: no segment is as large.
        """
        self._left_s -= took_s
        self._size_bytes += size_bytes
        if self._size_bytes > _RANGE_BYTES:
            raise CorruptError(f"a range of more than {_RANGE_BYTES} bytes")


def batches_from(
    content: Buffer, named: PartitionRange, next_offset: int
) -> tuple[list[Buffer], int]:
    """The batches of a frame, which begin at *next_offset* or after it; and where they end.

    Raises:
        CorruptError: they are not the next batches of the range *named*; or the frame is larger
            than a chunk, and not one batch alone.
    """
    batches: list[Buffer] = []
    for header, batch in iterate_batches(content):
        if len(batch) < len(content) > MOST_CHUNK_BYTES:
            raise CorruptError(f"{named.name}: a frame of {len(content)} bytes of many batches")
        if header.base_offset < next_offset or header.end_offset > named.end or header.is_control:
            raise CorruptError(
                f"{named.name}: a batch of [{header.base_offset}, {header.end_offset}) where "
                f"records of offsets from {next_offset} to {named.end} were expected"
            )
        next_offset = header.end_offset
        batches.append(batch)
    return batches, next_offset


def written(answer: Buffer, named: PartitionRange, headers: list[BatchHeader]) -> SegmentRef:
    """The segment of the batches with *headers*, as *answer* says.

    Raises:
        CorruptAnswerError: see there.
    """
    try:
        (segment,) = decode_segments(answer)
        key = parse_segment_key(segment.key)
    except (CorruptError, ValueError) as error:
        raise CorruptAnswerError(str(error)) from error
    records = sum(header.record_count for header in headers)
    wanted = (named.topic, named.tp, named.base, named.end, SegmentKind.PARQUET)
    said = (segment.base, segment.end, segment.kind, segment.records)
    if (key.topic, key.tp, key.base, key.end, key.kind) != wanted or said != (
        named.base,
        named.end,
        SegmentKind.PARQUET,
        records,
    ):
        raise CorruptAnswerError(
            f"{named.name}: a segment of other offsets or records than [{named.base}, {named.end}) "
            f"and {records}: {segment.key}, {segment.records}"
        )
    return segment
