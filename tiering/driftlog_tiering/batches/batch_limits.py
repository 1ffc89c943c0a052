"""Limits of the records of one batch, which can need far more memory than the batch has bytes.

    a batch ── over a limit ──▶ kept as it came: consumers receive it, no agent decodes it
       │
       └────── over `LIGHT_BYTES` ──▶ decoded one after the other, in the whole process

In columns an empty record or header takes tens of bytes, and zstd packs zeros 30,000 to 1: a batch
of 23 kB can decode to gigabytes.

Pure.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_tiering.batches.batch import MAX_RECORDS, CorruptRecordsError
from driftlog_tiering.foundation.types import MiB

LIGHT_BYTES: Final = 8 * MiB
"""Records of a batch, decompressed, and its headers at `HEADER_BYTES_OF_WORK`: up to here any
thread may decode it at any time."""

HEADER_BYTES_OF_WORK: Final = 64
"""A header counts as so many bytes of records: it has two bytes at least, and takes as long."""

SEGMENT_WORK_BYTES: Final = 4096 * MiB
"""Records and headers of a segment, decompressed: at most a batch more.  Larger than any
``segment.bytes`` of batches that are not compressed; seconds of a thread."""

RECORDS: Final = "records"
HEADERS: Final = "headers"
DECOMPRESSED_BYTES: Final = "decompressed.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of one batch.  More: larger batches become columns, for more memory of each agent."""

    records: int = MAX_RECORDS
    headers: int = 1_000_000
    decompressed_bytes: int = 48 * MiB
    """Size of its records.  Sealing a batch of one record takes four times as much."""


class OverBatchLimitError(CorruptRecordsError):
    """A batch is over a limit and is not decoded; *limit*: a field of `BatchLimits`, with dots."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit
