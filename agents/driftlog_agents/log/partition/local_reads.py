"""Fetches of the recent log: whole batches from memory and buffer files, without an await.

Nearly every fetch takes this path.  `local_plan` says what is read, and how much at most; batches
that one ``pread`` has read are slices of one buffer.

Shell.
"""

from operator import add
from typing import Final

from driftlog_agents.log.partition.local_plan import Allowance, file_reads, local_spans
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.foundation.types import Buffer

_COPIED_BYTES: Final = 2048
"""Batches smaller than this are copied: a view of one would keep the whole buffer of the read from
being used again."""


def read_local(
    log: PartitionLog, offset: int, max_bytes: int, allowance: Allowance | None = None
) -> list[Buffer] | None:
    """Batches in memory or buffer files from the one that holds *offset* on: see `local_spans`.
    Empty: the *allowance* of the answer is used up (without one the read has its own).

    None: the first is not local (in the bucket only, or the disk failed), not committed, below log
    start, or the partition is closed; `LogReader.read` tells which.
    """
    if allowance is None:
        allowance = Allowance()
    out: list[Buffer] = []
    for data, first, end in local_spans(log, offset, max_bytes):
        if not allowance.goes_on():
            return out
        before = len(out)
        end = min(end, first + allowance.batches)
        if data.views is not None:
            out += data.views[first:end]
        else:
            _read_files(data, first, end, out, allowance)
        allowance.slices -= 1
        allowance.take_batches(len(out) - before)
        if len(out) - before < end - first:
            break
    return out or None


def _read_files(
    data: FlushBatches, start: int, stop: int, out: list[Buffer], allowance: Allowance
) -> None:
    """Append the batches ``[start, stop)``, up to where no buffer file has them or the *allowance*
    is used up."""
    assert data.file_positions is not None
    for number, position, size, first, end in file_reads(data, start, stop):
        if not allowance.goes_on():
            return
        file = data.files[number]
        if not (file.alive and file.trusted):
            return
        try:
            whole = file.read(position, size)
        except UnavailableError:
            return  # the disk failed; the flush object has them too
        allowance.file_reads -= 1
        allowance.file_bytes -= size
        if end - first == 1:
            out.append(whole)
            continue
        view = memoryview(whole)
        starts = [at - position for at in data.file_positions[first:end]]
        ends = map(add, starts, data.lengths[first:end])
        views = map(view.__getitem__, map(slice, starts, ends))
        out += map(memoryview.tobytes, views) if size < _COPIED_BYTES * (end - first) else views
