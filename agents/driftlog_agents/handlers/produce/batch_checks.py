"""Checks of a client's batch, and Kafka's error for each of them.

Source: ProduceRequest#validateRecords, LogValidator#validateBatch, LogValidator#validateTimestamp.

Pure.
"""

from typing import Final

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.configs.topic import TopicLimits
from driftlog_agents.handlers.produce.record_errors import MOST_NAMED, RefusedRecordsError
from driftlog_agents.log.partition.batch import BatchHeaderFields
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.batches import batch as batches
from driftlog_tiering.batches.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    Reason,
)

_ZSTD: Final = 4
_BATCH_RECORDS: Final = "driftlog.max.batch.records"
_LEAST_RECORD_BYTES: Final = 7
"""A record's length, attributes and two deltas, without key, value and headers."""

_REASONS: Final = {
    Reason.LENGTH: (ErrorCode.CORRUPT_MESSAGE, "the batch's length is not what there is"),
    Reason.MAGIC: (ErrorCode.INVALID_RECORD, "only record batches of magic 2 are taken"),
    Reason.CRC: (ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C does not match"),
    Reason.COUNT: (
        ErrorCode.INVALID_RECORD,
        "the record count does not agree with the last offset delta",
    ),
    Reason.CODEC: (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "an unknown compression codec"),
    Reason.NEGATIVE: (ErrorCode.INVALID_RECORD, "a negative offset, sequence, epoch or count"),
    Reason.TIMESTAMP: (
        ErrorCode.INVALID_TIMESTAMP,
        "a timestamp that does not fit int64 microseconds",
    ),
    Reason.CONTROL: (ErrorCode.INVALID_RECORD, "clients may not write control batches"),
    Reason.BASE_OFFSET: (ErrorCode.INVALID_RECORD, "the batch's base offset is not 0"),
    Reason.OFFSET_OVERFLOW: (ErrorCode.INVALID_RECORD, "the batch's offsets pass int64"),
}


class BatchChecks:
    """Checks batches whose length, CRC and header are valid.

    Args:
        most_records: limit of one batch.
    """

    def __init__(self, most_records: int, refusals: Refusals) -> None:
        self._most_records = most_records
        self._refusals = refusals

    def check(
        self, limits: TopicLimits, checked: BatchHeaderFields, size: int, version: int
    ) -> None:
        """Check the header's fields (*checked*); *version* is that of the Produce request.

        Raises:
            RefusedError: the batch may not be appended.
            RefusedRecordsError: its records are said to have log append times.
        """
        attributes = checked[1]
        records, most = checked[0], self._most_records
        if records > most:
            self._refusals.count(_BATCH_RECORDS)
            raise RefusedError(
                ErrorCode.INVALID_RECORD,
                f"a batch of {records} records, and {most} are allowed ({_BATCH_RECORDS})",
            )
        if not attributes & CODEC_MASK and records * _LEAST_RECORD_BYTES > size:
            raise RefusedError(
                ErrorCode.INVALID_RECORD, f"a batch of {size} bytes does not hold {records} records"
            )
        if attributes & CODEC_MASK == _ZSTD and version < 7:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
        if attributes & TRANSACTIONAL_FLAG:
            raise RefusedError(ErrorCode.INVALID_TXN_STATE, "this release has no transactions yet")
        if attributes & LOG_APPEND_TIME_FLAG and (
            limits.log_append_time or checked[6] == NO_TIMESTAMP
        ):
            text = "clients may not write log append times"
            named = [(index, text) for index in range(min(records, MOST_NAMED))]
            raise RefusedRecordsError(ErrorCode.INVALID_TIMESTAMP, text, named)


def too_large(limits: TopicLimits, records: memoryview) -> RefusedError:
    """The error of records over max.message.bytes.

    Several batches for one partition get an error of their own: each may be within the limit.  So
    does one that is cut off.
    """
    size = len(records)
    if size < batches.HEADER_BYTES or batches.parse_header(records).size_bytes != size:
        return bad_batch(records, Reason.LENGTH)
    return RefusedError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes is over max.message.bytes ({limits.max_message_bytes})",
    )


def bad_batch(records: memoryview, reason: int) -> RefusedError:
    """The error of a batch that the kernel refused for *reason*.

    The kernel finds several batches, and one that is cut off, by their length.  For Kafka that is
    not one batch, which is final: clients send a corrupt one again.
    """
    if reason == Reason.LENGTH:
        here = len(records)
        has_header = here >= batches.HEADER_BYTES
        if not has_header or (size := batches.parse_header(records).size_bytes) > here:
            return RefusedError(ErrorCode.INVALID_RECORD, "a record batch that is cut off")
        if size >= batches.HEADER_BYTES:
            return RefusedError(
                ErrorCode.INVALID_RECORD, "more than one record batch for one partition"
            )
    code, text = _REASONS[Reason(reason)]
    return RefusedError(code, text)
