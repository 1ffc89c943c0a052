"""Converts or refuses batches that Kafka's contract does not let through as they are.

* The topic's `compression.type` is another codec than the batch's: the batch is recompressed.
* The topic is compacted: a batch that has a record without a key is refused.
* The header's max timestamp is out of range, or the topic refuses old timestamps: a batch that
  has a record with a timestamp out of range is refused.
* Max timestamp is unset, before the base timestamp or out of range: it is computed from the
  records.  Searches by time (ListOffsets) skip batches by it, and kafka-go's Conn writes the last
  record's time.

Conversion runs on a worker thread, per batch.
Source: LogValidator#validateMessagesAndAssignOffsets.

Pure.
"""

from dataclasses import dataclass

from driftlog_agents.configs.topic import TopicLimits
from driftlog_agents.handlers.produce.record_errors import check_records
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import INT64_MAX
from driftlog_tiering.batches import batch as batches
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    Codec,
)
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.batches.compression import compress, decompress


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The batch that is admitted in place of the client's."""

    records: memoryview
    checked: tuple[int, ...]


def needs_rewrite(limits: TopicLimits, checked: tuple[int, ...], now_ms: int) -> bool:
    """Whether the batch's records must be read.  *now_ms*: the agent's wall clock."""
    codec, max_timestamp = limits.codec, checked[6]
    if limits.compacted or (codec is not None and checked[1] & CODEC_MASK != codec):
        return True
    if limits.log_append_time:
        return False
    return (  # runs for every batch: `bounds_age` inlined
        max_timestamp < 0
        or max_timestamp < checked[5]
        or max_timestamp > now_ms + limits.timestamp_after_max_ms
        or limits.timestamp_before_max_ms != INT64_MAX
    )


def rewrite(
    now_ms: int, limits: TopicLimits, records: memoryview, checked: tuple[int, ...], most_bytes: int
) -> Rewrite:
    """Check the batch's records, and build the batch that is admitted.

    *most_bytes*: limit of the decompressed records.

    Raises:
        RefusedRecordsError: some of the records are not allowed.
        RefusedError: MESSAGE_TOO_LARGE: the new batch is over the topic's limit.
        CorruptRecordsError: the batch cannot be decoded.
        OverBatchLimitError: it is over a limit of decoding.
    """
    header = batches.parse_header(records)
    codec = Codec(header.codec_id)
    section = records[HEADER_BYTES:]
    plain = decompress(codec, section, most_bytes)
    sizes = kernel.scan(plain, header.record_count, header.last_offset_delta, header.base_timestamp)
    max_timestamp = header.max_timestamp
    if not limits.log_append_time:  # the header may say less, or more
        max_timestamp = kernel.max_timestamp(plain, header.record_count, header.base_timestamp)
    too_new = not limits.log_append_time and max_timestamp > now_ms + limits.timestamp_after_max_ms
    if (limits.compacted and sizes[5]) or too_new or limits.bounds_age:
        check_records(limits, records, BatchLimits(decompressed_bytes=most_bytes), now_ms)
    target = codec if limits.codec is None else Codec(limits.codec)
    body = (
        records[HEADER_BYTES:]
        if target is codec
        else memoryview(compress(target, plain, limits.compression_level))
    )
    del plain  # before the new batch is built
    size = HEADER_BYTES + len(body)
    if size > limits.max_message_bytes:
        raise RefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes is over max.message.bytes ({limits.max_message_bytes})",
        )
    attributes = header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME_FLAG) | target
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
