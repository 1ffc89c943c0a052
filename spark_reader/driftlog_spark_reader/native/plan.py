"""Decides which files Spark scans, and which of them only in part.

    segments of a partition   ──┬────────┬────────┬────────┬──
    asked for                     [ cut  | whole  | cut )

Files inside the requested range need no filter.  Files at its borders are scanned with a filter,
which reads only their row groups and pages in the range.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import PartitionRange, cut_groups, wanted_files
from driftlog_tiering.formats.manifest import SegmentRef


@dataclass(frozen=True, slots=True)
class Scan:
    """Files to scan together; ``condition`` is SQL, None when every row is requested."""

    segments: tuple[SegmentRef, ...]
    condition: str | None


def plan_scans(ranges: Sequence[PartitionRange], time: TimeRange) -> tuple[Scan, ...]:
    """The scans whose union is the answer; segments without records, and undecodable ones, are in
    none."""
    with_topic = len({wanted.named.topic for wanted in ranges}) > 1
    files = list(wanted_files(ranges, time))
    whole = tuple(file.segment for file in files if file.is_whole)
    cut = (
        Scan(tuple(file.segment for file in some), _condition(wanted, time, with_topic))
        for wanted, some in cut_groups(files)
    )
    return (*([Scan(whole, None)] if whole else []), *cut)


def _condition(ranges: Iterable[PartitionRange], time: TimeRange, with_topic: bool) -> str:
    offsets = " OR ".join(f"({_in_offsets(wanted, with_topic)})" for wanted in ranges)
    return " AND ".join([f"({offsets})", *time_conditions(time)])


def time_conditions(time: TimeRange) -> list[str]:
    """SQL for records in *time*, to be joined by AND; empty where every time is in it."""
    return [
        *([] if time.start_ms is None else [f"timestamp >= timestamp_millis({time.start_ms}L)"]),
        *([] if time.end_ms is None else [f"timestamp < timestamp_millis({time.end_ms}L)"]),
    ]


def _in_offsets(wanted: PartitionRange, with_topic: bool) -> str:
    topic = f"topic = '{wanted.named.topic}' AND " if with_topic else ""  # a name needs no escape
    return (
        f"{topic}partition = {wanted.named.partition} "
        f"AND offset >= {wanted.start}L AND offset < {wanted.end}L"
    )
