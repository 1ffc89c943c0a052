"""Plans fetches of the recent log: which batches fit, and by which reads of buffer files.

    offset, max bytes ──▶ `local_spans`: batches, flush by flush ──▶ `file_reads` of each

One read covers batches that lie near each other in a buffer file (48 bytes of entry header apart,
where one partition is written alone): 64 batches of 16 KiB cost one system call and not 64.

Both are made as they are read: a read ends where its `Allowance` does, and plans nothing beyond.

Pure.
"""

from collections.abc import Iterator
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import FlushBatches, last_that_fits, span_bytes

MOST_BATCHES: Final = 10_000
"""Most batches of one answer: they take a few milliseconds.  Bytes alone do not bound a fetch of
small batches."""

MOST_SLICES: Final = 2_000
"""Most slices of the log that one step looks at, 3 µs each: a partition may have one a batch."""

MOST_FILE_READS: Final = 512
"""Most ``pread`` calls of one step, 5 to 40 µs each: batches of one partition may stand far apart
in a buffer file."""

MOST_FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of buffer files after which a step reads no more: they take 5 ms."""

_READ_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one ``pread``, for which the event loop waits."""

_GAP_BYTES: Final = 1024
"""Most bytes between two batches that one read covers: copying them takes less than a second system
call."""


FileRead = tuple[int, int, int, int, int]
"""One read of a buffer file: its number in `FlushBatches.files`, position, size in bytes, and first
and end of the batches that it covers.  A plain tuple, for each fetch makes some."""


class Allowance:
    """What the reads of one answer may still take: batches altogether, and what one step of the
    event loop reads."""

    __slots__ = ("batches", "cut", "file_bytes", "file_reads", "slices")

    def __init__(self) -> None:
        self.batches = MOST_BATCHES
        self.cut = False
        """A read ended here: the client's next request goes on."""
        self.next_step()

    def next_step(self) -> None:
        """Others may have run since the last read."""
        self.slices = MOST_SLICES
        self.file_reads = MOST_FILE_READS
        self.file_bytes = MOST_FILE_BYTES

    def take_batches(self, count: int) -> None:
        """The answer has *count* batches more."""
        self.batches -= count
        if self.batches <= 0:
            self.cut = True

    def goes_on(self) -> bool:
        """Whether there is something left of each."""
        if self.batches > 0 and self.slices > 0 and self.file_reads > 0 and self.file_bytes > 0:
            return True
        self.cut = True
        return False


def local_spans(
    log: PartitionLog, offset: int, max_bytes: int
) -> Iterator[tuple[FlushBatches, int, int]]:
    """The batches that a fetch from *offset* gets: ``[first, end)`` of one flush after another,
    below the high watermark, at most *max_bytes*, but always the first batch.

    None: *offset* is below log start, above the high watermark, or in the bucket only, or the
    partition is closed.
    """
    if log.state is State.CLOSED or offset < log.log_start:
        return
    room, begun = max_bytes, False
    while (tail := log.find_here(offset)) is not None:
        data = tail.data
        assert isinstance(data, FlushBatches)
        if data.views is None and data.file_positions is None:
            return
        first = data.index_of(offset, tail.first, tail.count)
        stop = tail.first + tail.count
        end = last_that_fits(data, first, stop, room)
        if end == first:
            if begun:
                return
            end = first + 1
        yield data, first, end
        begun = True
        room -= span_bytes(data, first, end)
        if end < stop or room <= 0:
            return
        offset = tail.end


def file_reads(data: FlushBatches, first: int, end: int) -> Iterator[FileRead]:
    """The reads of the batches ``[first, end)``, in their order: one if that wastes little, else
    those of either half."""
    numbers, positions, lengths = data.file_numbers, data.file_positions, data.lengths
    assert numbers is not None
    assert positions is not None
    pending = [(first, end)]
    while pending:
        first, end = pending.pop()
        number, start, last = numbers[first], positions[first], end - 1
        if first == last:
            yield number, start, lengths[first], first, end
            continue
        # A partition's batches are written in offset order, so those between are in that file too.
        if number == numbers[last]:
            size, wanted = positions[last] + lengths[last] - start, span_bytes(data, first, end)
            waste = max(wanted >> 2, _GAP_BYTES * (last - first))
            if size <= _READ_BYTES and 0 <= size - wanted <= waste:
                yield number, start, size, first, end
                continue
        middle = (first + end) // 2
        pending.append((middle, end))
        pending.append((first, middle))
