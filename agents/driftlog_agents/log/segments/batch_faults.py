"""Decodes the batches of a segment, and says why one cannot be decoded.

    batch ──small──▶ added to the segment
          ──large──▶ in a row group of its own, when `BatchDecoder.large` has its turn
          ──corrupt, or over a limit──▶ kept as it came, neighbours in one object

These functions run in a worker thread.

Pure.
"""

from enum import StrEnum

from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import BatchHeader
from driftlog_tiering.batches.batch_limits import (
    DECOMPRESSED_BYTES,
    HEADERS,
    LIGHT_BYTES,
    RECORDS,
    SEGMENT_WORK_BYTES,
    BatchLimits,
    OverBatchLimitError,
)
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.columns import ColumnBuilder
from driftlog_tiering.segments.segment import SegmentWriter


class BatchFault(StrEnum):
    """Why a batch was not added: a limit of `BatchLimits`, or another reason."""

    CORRUPT = ""
    LARGE = "large"
    """It needs `BatchDecoder.large` to be decoded, if it can be."""
    RECORDS = RECORDS
    HEADERS = HEADERS
    DECOMPRESSED_BYTES = DECOMPRESSED_BYTES


def append_batches(
    writer: SegmentWriter, batches: list[Buffer], headers: list[BatchHeader]
) -> tuple[int, BatchFault | None]:
    """Add batches until one fails, or the segment is full; returns how many were added, and why
    that one failed."""
    for taken, batch in enumerate(batches):
        if is_full(writer):
            return taken, None
        try:
            headers.append(writer.append(batch, LIGHT_BYTES))
        except CorruptError as error:
            return taken, _why(error, LIGHT_BYTES)
    return len(batches), None


def is_full(writer: SegmentWriter) -> bool:
    """Whether the next batch belongs to another segment: a few kilobytes as received may take a
    minute to decode."""
    return writer.work_bytes >= SEGMENT_WORK_BYTES


def append_large(
    writer: SegmentWriter, batch: Buffer, headers: list[BatchHeader]
) -> BatchFault | None:
    """Add one batch, in a row group of its own; returns why it was not."""
    writer.flush()
    try:
        headers.append(writer.append(batch))
    except CorruptError as error:
        return _why(error, None)
    writer.flush()
    return None


def find_faults(batches: list[Buffer], limits: BatchLimits) -> list[BatchFault | None]:
    """The fault of each batch, up to the first that can be decoded, or perhaps can."""
    faults: list[BatchFault | None] = []
    for batch in batches:
        faults.append(fault_of(batch, limits, LIGHT_BYTES))
        if faults[-1] in (None, BatchFault.LARGE):
            break
    return faults


def fault_of(batch: Buffer, limits: BatchLimits, most_bytes: int | None) -> BatchFault | None:
    """Why one batch of at most *most_bytes* decompressed bytes cannot be decoded; None: it can."""
    try:
        ColumnBuilder("", 0, limits).add(batch, 0, most_bytes)
    except CorruptError as error:
        return _why(error, most_bytes)
    return None


def _why(error: CorruptError, most_bytes: int | None) -> BatchFault:
    if not isinstance(error, OverBatchLimitError):
        return BatchFault.CORRUPT
    if error.limit == DECOMPRESSED_BYTES and most_bytes is not None:
        return BatchFault.LARGE
    return BatchFault(error.limit)
