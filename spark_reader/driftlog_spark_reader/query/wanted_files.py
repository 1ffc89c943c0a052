"""The files that hold what a query asks for, and which of them hold other records, too.

    segments of a partition   ──┬────────┬────────┬────────┬──
    asked for                     [ cut  | whole  | cut )

The records of a whole file are all asked for: it needs no filter.

Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final

from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.tail.port import TailRange
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef

MAX_CUT_PARTITIONS: Final = 64
"""Partitions in one filter: beyond ~100 terms Spark's generated code is too large to compile."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The requested offsets of one partition, and the segments that hold them, in order.

    ``tail``: the pieces of what is not sealed.
    """

    named: NamedPartition
    start: int
    end: int
    segments: Sequence[SegmentRef]
    tail: Sequence[TailRange] = ()


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A Parquet segment with records that are asked for, or all of whose records are."""

    segment: SegmentRef
    wanted: PartitionRange
    is_whole: bool


def wanted_files(ranges: Iterable[PartitionRange], time: TimeRange) -> Iterator[WantedFile]:
    """By partition and offset; segments without records, and undecodable ones, are left out."""
    for wanted in ranges:
        for segment in wanted.segments:
            least, most = segment.min_timestamp_ms, segment.max_timestamp_ms
            if (
                segment.kind is SegmentKind.PARQUET
                and segment.records > 0
                and time.overlaps(least, most)
            ):
                yield WantedFile(
                    segment,
                    wanted,
                    wanted.start <= segment.base
                    and segment.end <= wanted.end
                    and time.covers(least, most),
                )


def cut_groups(
    files: Iterable[WantedFile],
) -> Iterator[tuple[list[PartitionRange], list[WantedFile]]]:
    """The files that are not whole, in groups that one filter serves, each with its ranges."""
    by_partition = groupby(
        (file for file in files if not file.is_whole), key=lambda file: file.wanted
    )
    pending = ((wanted, list(some)) for wanted, some in by_partition)
    while together := list(islice(pending, MAX_CUT_PARTITIONS)):
        yield (
            [wanted for wanted, _ in together],
            [file for _, some in together for file in some],
        )


def undecodable(ranges: Iterable[PartitionRange]) -> Iterator[tuple[NamedPartition, SegmentRef]]:
    """The segments that hold batches as they came.

    In any range of times: such a batch may hold any timestamp.
    """
    for wanted in ranges:
        for segment in wanted.segments:
            if segment.kind is SegmentKind.RAW:
                yield wanted.named, segment
