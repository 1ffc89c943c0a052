"""Batches that may not go through as they came: Kafka's contract leaves no choice.

* `compression.type` of the topic is a codec, and the batch has another: recompressed.
* The topic is compacted: records without a key are refused.
* The client left max timestamp unset: it is computed from the records.

Runs on a worker thread, per batch.  Source: LogValidator#validateMessagesAndAssignOffsets.

Pure.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_agents.configs.topic import TopicLimits
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.batches import batch as batches
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import HEADER_BYTES, Codec
from driftlog_tiering.batches.compression import compress, decompress

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A batch to be admitted in place of the one that came."""

    records: memoryview
    checked: tuple[int, ...]


def needs_rewrite(limits: TopicLimits, checked: tuple[int, ...]) -> bool:
    """Whether the batch must be looked into."""
    codec = limits.codec
    return (
        limits.compacted
        or (codec is not None and checked[1] & _CODEC_MASK != codec)
        or (checked[6] < 0 and not limits.log_append_time)
    )


def rewrite(
    limits: TopicLimits, records: memoryview, checked: tuple[int, ...], most_bytes: int
) -> Rewrite:
    """Look into the batch, and make the one that is to be admitted.

    *most_bytes*: of its records, decompressed.

    Raises:
        RefusedError: INVALID_RECORD for a null key on a compacted topic; MESSAGE_TOO_LARGE: it
            would be.
        CorruptRecordsError: it cannot be decoded.
        OverBatchLimitError: the same, for it is too much.
    """
    header = batches.parse_header(records)
    codec = Codec(header.codec_id)
    section = records[HEADER_BYTES:]
    plain = decompress(codec, section, most_bytes)
    sizes = kernel.scan(plain, header.record_count, header.last_offset_delta, header.base_timestamp)
    if limits.compacted and sizes[5]:
        raise RefusedError(
            ErrorCode.INVALID_RECORD,
            f"{sizes[5]} records have no key, and the topic's cleanup.policy is compact",
        )
    max_timestamp = header.max_timestamp
    if max_timestamp < 0 and not limits.log_append_time:
        max_timestamp, _ = kernel.max_timestamp(plain, header.record_count, header.base_timestamp)
    target = codec if limits.codec is None else Codec(limits.codec)
    body = (
        records[HEADER_BYTES:]
        if target is codec
        else memoryview(compress(target, plain, limits.compression_level))
    )
    del plain  # before there is a copy of the other
    size = HEADER_BYTES + len(body)
    if size > limits.max_message_bytes:
        raise RefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes is over max.message.bytes ({limits.max_message_bytes})",
        )
    attributes = header.attributes & ~_CODEC_MASK | target
    out = memoryview(
        batches.build_batch(
            body,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            record_count=header.record_count,
            attributes=attributes,
            base_timestamp=header.base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    )
    return Rewrite(out, (*checked[:1], attributes, *checked[2:6], max_timestamp))
