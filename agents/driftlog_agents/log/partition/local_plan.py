"""Plans fetches of the recent log: which batches fit, and by which reads of buffer files.

    offset, max bytes ──▶ `local_spans`: batches, flush by flush ──▶ `file_reads` of each

One read covers batches that lie near each other in a buffer file (48 bytes of entry header apart,
where one partition is written alone): 64 batches of 16 KiB cost one system call and not 64.

Pure.
"""

from collections.abc import Iterator
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import FlushBatches, last_that_fits, span_bytes

MOST_BATCHES: Final = 10_000
"""Most batches of one read, and of one answer: they take a few milliseconds.  Bytes alone do not
bound a fetch of small batches."""

_READ_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one ``pread``, for which the event loop waits."""

_GAP_BYTES: Final = 1024
"""Most bytes between two batches that one read covers: copying them takes less than a second system
call."""


FileRead = tuple[int, int, int, int, int]
"""One read of a buffer file: its number in `FlushBatches.files`, position, size in bytes, and first
and end of the batches that it covers.  A plain tuple, for each fetch makes some."""


def local_spans(
    log: PartitionLog, offset: int, max_bytes: int
) -> Iterator[tuple[FlushBatches, int, int]]:
    """The batches that a fetch from *offset* gets: ``[first, end)`` of one flush after another,
    below the high watermark, at most *max_bytes* and `MOST_BATCHES`, but always the first batch.

    None at all: *offset* is below log start, above the high watermark, or forgotten here, or the
    partition is closed.  A batch may be in the bucket only: there the caller stops.
    """
    if log.state is State.CLOSED or offset < log.log_start:
        return
    room, count = max_bytes, 0
    while (tail := log.find_here(offset)) is not None:
        data = tail.data
        assert isinstance(data, FlushBatches)
        first = data.index_of(offset, tail.first, tail.count)
        stop = tail.first + tail.count
        end = last_that_fits(data, first, stop, room)
        if end == first:
            if count:
                return
            end = first + 1
        end = min(end, first + MOST_BATCHES - count)
        yield data, first, end
        count += end - first
        room -= span_bytes(data, first, end)
        if end < stop or room <= 0 or count >= MOST_BATCHES:
            return
        offset = tail.end


def file_reads(data: FlushBatches, first: int, end: int) -> list[FileRead]:
    """The reads of the batches ``[first, end)``, in their order: one if that wastes little, else
    those of either half."""
    numbers, positions, lengths = data.file_numbers, data.file_positions, data.lengths
    assert numbers is not None
    assert positions is not None
    reads: list[FileRead] = []
    pending = [(first, end)]
    while pending:
        first, end = pending.pop()
        number, start, last = numbers[first], positions[first], end - 1
        # A partition's batches are written in offset order, so those between are in that file too.
        if number == numbers[last]:
            size = positions[last] + lengths[last] - start
            wanted = size if first == last else span_bytes(data, first, end)
            waste = max(wanted >> 2, _GAP_BYTES * (last - first))
            if first == last or (size <= _READ_BYTES and 0 <= size - wanted <= waste):
                reads.append((number, start, size, first, end))
                continue
        middle = (first + end) // 2
        pending.append((middle, end))
        pending.append((first, middle))
    return reads
