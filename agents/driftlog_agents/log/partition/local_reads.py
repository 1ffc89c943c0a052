"""Fetches of the recent log: whole batches from memory and buffer files, without an await.

Nearly every fetch takes this path.  A bisection over the byte positions of the flush object finds
what fits.  One ``pread`` reads batches that lie near each other in a buffer file (48 bytes of entry
header apart, where one partition is written alone) as slices of one buffer: 64 batches of 16 KiB
cost one system call and not 64.

Shell.
"""

from bisect import bisect_right
from operator import add
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.stores.object_store import Buffer

_READ_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one ``pread``, for which the event loop waits."""

MOST_BATCHES: Final = 10_000
"""Most batches of one read, and of one answer: they take a few milliseconds.  Bytes alone do not
bound a fetch of small batches."""

_GAP_BYTES: Final = 1024
"""Most bytes between two batches that one read covers: copying them takes less than a second system
call."""

_COPIED_BYTES: Final = 2048
"""Batches smaller than this are copied: a view of one would keep the whole buffer of the read from
being used again."""


def read_local(log: PartitionLog, offset: int, max_bytes: int) -> list[Buffer] | None:
    """Batches in memory or buffer files from the one that holds *offset* on, below the high
    watermark: at most *max_bytes* and `MOST_BATCHES`, but always the first.

    None: the first is not local (in the bucket only, or the disk failed), not committed, below log
    start, or the partition is closed; `LogReader.read` tells which.
    """
    if log.state is State.CLOSED or offset < log.log_start:
        return None
    out: list[Buffer] = []
    room = max_bytes
    while (tail := log.find_here(offset)) is not None:
        data = tail.data
        assert isinstance(data, FlushBatches)
        index = data.index_of(offset, tail.first, tail.count)
        stop = tail.first + tail.count
        end = last_that_fits(data, index, stop, room)
        if end == index:
            if out:
                break
            end = index + 1
        most = index + MOST_BATCHES - len(out)
        if end > most:
            stop = end = most
        if not _take(data, index, end, out) or end < stop:
            break
        room -= span_bytes(data, index, end)
        if room <= 0 or len(out) >= MOST_BATCHES:
            break
        offset = tail.end
    return out or None


def span_bytes(data: FlushBatches, first: int, end: int) -> int:
    """Bytes of the batches ``[first, end)``, which stand back to back in the flush object."""
    return data.positions[end - 1] + data.lengths[end - 1] - data.positions[first]


def last_that_fits(data: FlushBatches, first: int, stop: int, room_bytes: int) -> int:
    """The largest *end* ≤ *stop* with ``[first, end)`` within *room_bytes*; *first* if none."""
    limit = data.positions[first] + room_bytes
    end = bisect_right(data.positions, limit, first, stop)
    if end > first and data.positions[end - 1] + data.lengths[end - 1] > limit:
        end -= 1
    return max(end, first)


def is_local(data: FlushBatches) -> bool:
    """Whether memory or buffer files hold all its batches."""
    return data.views is not None or data.in_files


def _take(data: FlushBatches, first: int, end: int, out: list[Buffer]) -> bool:
    """Append the batches ``[first, end)``; False: from some batch on they are not local."""
    if data.views is not None:
        out += data.views[first:end]
        return True
    if data.file_positions is None or data.file_numbers is None:
        return False
    try:
        return _read_files(data, first, end, out)
    except UnavailableError:
        return False  # the disk failed; the flush object has them too


def _read_files(data: FlushBatches, first: int, end: int, out: list[Buffer]) -> bool:
    """As `_take`: in one read if that wastes little, else in two halves."""
    assert data.file_numbers is not None
    assert data.file_positions is not None
    number = data.file_numbers[first]
    # A partition's batches are written in offset order, so those between are in that file too.
    if number == data.file_numbers[end - 1]:
        file = data.files[number]
        if not (file.alive and file.trusted):
            return False
        start = data.file_positions[first]
        span = data.file_positions[end - 1] + data.lengths[end - 1] - start
        if end - first == 1:
            out.append(file.read(start, span))
            return True
        wanted = span_bytes(data, first, end)
        waste = max(wanted >> 2, _GAP_BYTES * (end - first - 1))
        if span <= _READ_BYTES and 0 <= span - wanted <= waste:
            whole = file.read(start, span)
            small = span < _COPIED_BYTES * (end - first)
            view = memoryview(whole)
            starts = [at - start for at in data.file_positions[first:end]]
            ends = map(add, starts, data.lengths[first:end])
            views = map(view.__getitem__, map(slice, starts, ends))
            out += map(memoryview.tobytes, views) if small else views
            return True
    middle = (first + end) // 2
    return _read_files(data, first, middle, out) and _read_files(data, middle, end, out)
