"""How an import is cut: pieces of one partition, each a range of time with known offsets.

    count, least and greatest time of each partition ──▶ splits: partitions of several pieces
    count of each slice of time of a split           ──▶ pieces, packed into tasks

    partition 0   ├── piece 0 ──┼── piece 1 ──┤        one piece is written by one task
    offsets       0             n             end

Offsets are dense from 0, as the counts are exact: a task that finds another count fails.

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SLICES: Final = 16
"""Slices of time for a piece.  More: pieces of more equal size, where times are not spread
evenly."""

_ALL_TIME: Final = 2**62


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """The records of a partition, and the times of its oldest and newest, in ms."""

    partition: int
    records: int
    least_ms: int
    greatest_ms: int


@dataclass(frozen=True, slots=True)
class Split:
    """A partition that is cut into *slices* slices of *width_ms*, the first of which begins at
    *least_ms*."""

    partition: int
    least_ms: int
    width_ms: int
    slices: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of a partition at the offsets ``[base, base + records)``."""

    number: int
    partition: int
    base: int
    records: int
    task: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The pieces of one partition, and their tasks, by slice of time."""

    partition: int
    least_ms: int
    width_ms: int
    pieces: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """See the module.  Each partition has a piece; that of an empty one has no records."""

    pieces: tuple[Piece, ...]
    lookups: tuple[Lookup, ...]
    tasks: int


def split_large(counts: Sequence[PartitionCount], piece_records: int) -> list[Split]:
    """The partitions that have more than one piece of *piece_records* records."""
    splits = []
    for count in counts:
        span = count.greatest_ms - count.least_ms + 1
        slices = min(-(-count.records // piece_records) * _SLICES, span)
        if count.records > piece_records and slices > 1:
            width = -(-span // slices)
            splits.append(Split(count.partition, count.least_ms, width, -(-span // width)))
    return splits


def plan_import(
    partitions: int,
    counts: Sequence[PartitionCount],
    splits: Sequence[Split],
    slices: Mapping[tuple[int, int], int],
    piece_records: int,
) -> ImportPlan:
    """The pieces of *counts*.  *slices*: the records of a split's slices, by partition and slice.

    Raises:
        ValueError: the slices of a split have other records than the partition.
    """
    records = {count.partition: count.records for count in counts}
    by_partition = {split.partition: split for split in splits}
    pieces: list[Piece] = []
    lookups: list[Lookup] = []
    tasks = _Tasks(piece_records)
    for partition in range(partitions):
        split = by_partition.get(partition, Split(partition, 0, _ALL_TIME, 1))
        if partition in by_partition:
            sizes = [slices.get((partition, number), 0) for number in range(split.slices)]
        else:
            sizes = [records.get(partition, 0)]
        if sum(sizes) != records.get(partition, 0):
            raise ValueError(f"partition {partition}: {sum(sizes)} and {records.get(partition, 0)}")
        base = 0
        of_slices: list[int] = []
        for run in _runs(sizes, piece_records):
            size = sum(sizes[slice_] for slice_ in run)
            pieces.append(Piece(len(pieces), partition, base, size, tasks.take(size)))
            of_slices += [len(pieces) - 1] * len(run)
            base += size
        lookups.append(
            Lookup(
                partition,
                split.least_ms,
                split.width_ms,
                tuple(of_slices),
                tuple(pieces[number].task for number in of_slices),
            )
        )
    return ImportPlan(tuple(pieces), tuple(lookups), tasks.count)


def _runs(sizes: Sequence[int], piece_records: int) -> Iterator[range]:
    """Neighbours that have *piece_records* together; a larger one is alone."""
    start, size = 0, 0
    for number, more in enumerate(sizes):
        if number > start and size + more > piece_records:
            yield range(start, number)
            start, size = number, 0
        size += more
    yield range(start, len(sizes))


class _Tasks:
    """Packs small pieces into one task."""

    def __init__(self, piece_records: int) -> None:
        self._most = piece_records
        self._size = 0
        self.count = 1

    def take(self, size: int) -> int:
        if self._size and self._size + size > self._most:
            self.count += 1
            self._size = 0
        self._size += size
        return self.count - 1
