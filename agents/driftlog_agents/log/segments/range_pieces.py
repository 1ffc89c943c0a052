"""Which batches of the tail make up a range, and whether a source returned them.

    [base, end) ──▶ slices of the tail ──▶ pieces: batches of one flush, no longer than a chunk

Pure.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from driftlog_agents.log.partition.partition import PartitionLog, StoredAt
from driftlog_agents.log.partition.tail import FlushBatches, last_that_fits, span_bytes
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import iterate_batches
from driftlog_tiering.foundation.types import Buffer

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Read and handed to a worker at once: a quarter of a row group."""


class RangePiece(NamedTuple):
    """The batches ``[first, stop)`` of a flush, and the object that has them where no local copy
    does."""

    data: FlushBatches
    first: int
    stop: int
    stored_at: StoredAt

    @property
    def size_bytes(self) -> int:
        return span_bytes(self.data, self.first, self.stop)


def pieces_of(
    log: PartitionLog, base: int, end: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[RangePiece]:
    """The pieces of ``[base, end)``: runs of batches of one flush, no longer than a chunk, or of
    one batch."""
    for tail in [tail for tail in log.slices if tail.base < end and tail.end > base]:
        data = tail.data
        assert isinstance(data, FlushBatches)
        first, stop = tail.first, tail.first + tail.count
        if tail.base < base:
            first = data.index_of(base, tail.first, tail.count)
            assert data.base_offsets[first] == base, "sealed ends are batch borders"
        while data.base_offsets[stop - 1] >= end:
            stop -= 1
        while first < stop:
            last = max(last_that_fits(data, first, stop, chunk_bytes), first + 1)
            yield RangePiece(data, first, last, tail.stored_at)
            first = last


def is_batch(batch: Buffer, base_offset: int) -> bool:
    """Whether a buffer file returned the batch that was written: a page that the disk lost without
    an error has older bytes, and the flush object has the batch as it was."""
    sound = not isinstance(kernel.check(batch, 0, len(batch), False), int)
    return sound and int.from_bytes(batch[:8], "big") == base_offset


def batches_in(body: Buffer, piece: RangePiece, object_key: str) -> list[Buffer]:
    """The batches of *piece* in the bytes that its object returned.

    Raises:
        CorruptError: they are not there.
    """
    found = list(iterate_batches(body))
    wanted = piece.data.base_offsets[piece.first : piece.stop]
    if [header.base_offset for header, _ in found] != wanted.tolist():
        # It is cut off between two batches, or another object: that is never sealed as a gap.
        raise CorruptError(
            f"{object_key} lacks the {len(wanted)} batches from offset {wanted[0]} that its footer "
            f"lists"
        )
    return [batch for _, batch in found]
