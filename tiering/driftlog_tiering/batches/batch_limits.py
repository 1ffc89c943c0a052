"""What the records of one batch may come to: memory that a client makes others need.

    a batch ── over a limit ──▶ kept as it came: consumers get it, no agent decodes it
       │
       └────── over `LIGHT_BYTES` ──▶ decoded one after the other, in the whole process

In columns an empty record or header is tens of bytes, and zstd packs zeros 30,000 to 1: a batch of
23 kB could come to gigabytes.

Pure.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_tiering.batches.batch import MAX_RECORDS, CorruptRecordsError

MiB: Final = 1024 * 1024

LIGHT_BYTES: Final = 8 * MiB
"""Records of a batch, decompressed: up to here any thread may decode it at any time."""

RECORDS: Final = "records"
HEADERS: Final = "headers"
DECOMPRESSED_BYTES: Final = "decompressed.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Of one batch.  More: larger batches become columns, for more memory of each agent."""

    records: int = MAX_RECORDS
    headers: int = 1_000_000
    decompressed_bytes: int = 48 * MiB
    """Of its records.  Sealing one takes four times as much, if it is one record."""


class OverBatchLimitError(CorruptRecordsError):
    """A batch is more than may be decoded; *limit*: of `BatchLimits`, with dots."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit
