"""Divides the ranges of a query into tasks: runs of segments, of about equal size.

    segments   │ 0-0 ───── │ 0-10 ──── │ 1-0 ─ │ 1-5 ──── …
    tasks      [          ][     cut           ][     …

A task has segments of several partitions where they are small.  Segments are cut where
``minPartitions`` or ``maxRecordsPerPartition`` ask for it: each cut decodes one row group twice.

Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_spark_reader.tail.port import TailRange
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef

TASK_BYTES: Final = 64 * 1024 * 1024
"""Of Parquet in one task.  More: fewer tasks to schedule; less: short queries use more cores."""


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The records of a segment with offsets in ``[start, end)``."""

    segment: SegmentRef
    start: int
    end: int

    @property
    def weight(self) -> float:
        """Its share of the segment's bytes."""
        offsets = self.segment.end - self.segment.base
        return self.segment.size_bytes * (self.end - self.start) / offsets


def segment_slices(ranges: Iterable[PartitionRange]) -> Iterator[SegmentSlice]:
    """What of each Parquet segment is in its range, in order."""
    for wanted in ranges:
        for segment in wanted.segments:
            start, end = max(segment.base, wanted.start), min(segment.end, wanted.end)
            if segment.kind is SegmentKind.PARQUET and segment.records and start < end:
                yield SegmentSlice(segment, start, end)


def plan_tasks(
    slices: Sequence[SegmentSlice],
    *,
    min_tasks: int | None = None,
    max_records: int | None = None,
    task_bytes: int = TASK_BYTES,
) -> list[tuple[SegmentSlice, ...]]:
    """The slices by task, in order.

    Args:
        min_tasks: at least so many, unless there are fewer offsets.
        max_records: most offsets of one task.
    """
    total = sum(piece.weight for piece in slices)
    most = task_bytes if min_tasks is None else min(task_bytes, total / min_tasks)
    tasks = _packed(slices, most, cut=min_tasks is not None)
    if max_records is None:
        return tasks
    return [part for task in tasks for part in _of_records(task, max_records)]


def tail_tasks(
    pieces: Sequence[TailRange], most: int, *, cut: bool = False, max_records: int | None = None
) -> list[tuple[TailRange, ...]]:
    """The pieces of the tail in tasks of about equal numbers of offsets; each by partition and
    offset.

    Args:
        most: tasks, unless *max_records* needs more.
        cut: cut pieces, so that there are so many where there are as many offsets.
        max_records: most offsets of one task.
    """
    total = sum(piece.end - piece.start for piece in pieces)
    size = max(1, total // most) if cut else total
    if max_records is not None:
        size = min(size, max_records)
    parts = [part for piece in pieces for part in _cut_piece(piece, size)]
    count = len(parts) if max_records is not None else min(most, len(parts))
    tasks: list[list[TailRange]] = [[] for _ in range(count)]
    sizes = [0] * count
    for part in sorted(parts, key=lambda part: part.start - part.end):
        smallest = sizes.index(min(sizes))
        tasks[smallest].append(part)
        sizes[smallest] += part.end - part.start
    return [
        tuple(sorted(task, key=lambda part: (part.topic, part.partition, part.start)))
        for task in tasks
    ]


def _cut_piece(piece: TailRange, size: int) -> Iterator[TailRange]:
    """The piece in parts of at most *size* offsets; a part has the batches that it needs."""
    for start in range(piece.start, piece.end, size):
        end = min(start + size, piece.end)
        spans = tuple(span for span in piece.spans if span.base < end and start < span.end)
        yield replace(piece, start=start, end=end, spans=spans)


def _packed(
    slices: Sequence[SegmentSlice], most: float, *, cut: bool
) -> list[tuple[SegmentSlice, ...]]:
    tasks: list[tuple[SegmentSlice, ...]] = []
    task: list[SegmentSlice] = []
    room = most
    for piece in slices:
        rest = piece
        while cut and rest.weight > room and (parts := _cut(rest, room)):
            tasks.append((*task, parts[0]))
            task, room, rest = [], most, parts[1]
        if task and rest.weight > room:
            tasks.append(tuple(task))
            task, room = [], most
        task.append(rest)
        room -= rest.weight
    if task:
        tasks.append(tuple(task))
    return tasks


def _cut(piece: SegmentSlice, room: float) -> tuple[SegmentSlice, SegmentSlice] | None:
    """The slice in two, the first of about *room* bytes; None: it has one offset."""
    offsets = piece.end - piece.start
    if offsets < 2:
        return None
    at = piece.start + min(max(1, round(offsets * room / piece.weight)), offsets - 1)
    return replace(piece, end=at), replace(piece, start=at)


def _of_records(
    task: tuple[SegmentSlice, ...], max_records: int
) -> Iterator[tuple[SegmentSlice, ...]]:
    part: list[SegmentSlice] = []
    room = max_records
    for piece in task:
        start = piece.start
        while start < piece.end:
            end = min(piece.end, start + room)
            part.append(replace(piece, start=start, end=end))
            room -= end - start
            start = end
            if not room:
                yield tuple(part)
                part, room = [], max_records
    if part:
        yield tuple(part)
