"""Decodes the batches of a segment, and says why one cannot be decoded.

    batch ──small──▶ added to the segment
          ──large──▶ in a row group of its own, when `BatchDecoder.large` has its turn
          ──corrupt, or over a limit──▶ kept as it came, neighbours in one object

These functions run in a worker thread.

Pure.
"""

from dataclasses import dataclass
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
from driftlog_tiering.foundation.types import Buffer, MiB
from driftlog_tiering.segments.columns import ColumnBuilder
from driftlog_tiering.segments.segment import SegmentWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBounds:
    """How much of a range becomes segments at once."""

    work_bytes: int = SEGMENT_WORK_BYTES
    """Decoded bytes after which a segment, and the range, ends."""

    one_bytes: int = SEGMENT_WORK_BYTES
    """The same of a range that another agent leads, and that is to be one segment."""

    undecodable_bytes: int = LIGHT_BYTES
    """What a batch that cannot be decoded counts: it may have taken as long as a light one."""

    raw_bytes: int = 4 * MiB
    """Most bytes of one object of undecodable batches, or one batch: it is read whole."""

    raw_batches: int = SEGMENT_WORK_BYTES // LIGHT_BYTES
    """Most batches of one such object: each may have taken as long as a light one."""


class BatchFault(StrEnum):
    """Why a batch was not added: a limit of `BatchLimits`, or another reason."""

    CORRUPT = ""
    LARGE = "large"
    """It needs `BatchDecoder.large` to be decoded, if it can be."""
    RECORDS = RECORDS
    HEADERS = HEADERS
    DECOMPRESSED_BYTES = DECOMPRESSED_BYTES


def append_batches(
    writer: SegmentWriter, batches: list[Buffer], headers: list[BatchHeader], work_bytes: int
) -> tuple[int, BatchFault | None]:
    """Add batches until one fails, or *work_bytes* are decoded; returns how many were added, and
    why that one failed."""
    for taken, batch in enumerate(batches):
        if writer.work_bytes >= work_bytes:
            return taken, None
        try:
            headers.append(writer.append(batch, LIGHT_BYTES))
        except CorruptError as error:
            return taken, _why(error, LIGHT_BYTES)
    return len(batches), None


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
