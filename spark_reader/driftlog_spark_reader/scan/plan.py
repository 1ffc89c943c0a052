"""Decides which files Spark scans, and which of them only in part.

    segments of a partition   ──┬────────┬────────┬────────┬──
    asked for                     [ cut  | whole  | cut )

Files inside the requested range need no filter.  Files at its borders are scanned with a filter,
which reads only their row groups and pages in the range.

Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.ranges import PartitionRange
from driftlog_tiering.formats.layout import SegmentKind

MAX_CUT_PARTITIONS: Final = 64
"""Partitions in one filter: beyond ~100 terms Spark's generated code is too large to compile."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Files to scan together; ``condition`` is SQL, None when every row is requested."""

    keys: tuple[str, ...]
    condition: str | None


def plan_scans(ranges: Sequence[PartitionRange], time: TimeRange) -> tuple[Scan, ...]:
    """The scans whose union is the answer; segments without records, and undecodable ones, are in
    none."""
    several_topics = len({wanted.named.topic for wanted in ranges}) > 1
    whole: list[str] = []
    cut: list[tuple[str, tuple[str, ...]]] = []
    for wanted in ranges:
        cut_keys: list[str] = []
        for segment in wanted.segments:
            match segment.kind:
                case SegmentKind.RAW:
                    pass
                case SegmentKind.PARQUET if segment.records == 0 or not time.overlaps(
                    segment.min_timestamp_ms, segment.max_timestamp_ms
                ):
                    pass
                case SegmentKind.PARQUET if (
                    wanted.start <= segment.base
                    and segment.end <= wanted.end
                    and time.covers(segment.min_timestamp_ms, segment.max_timestamp_ms)
                ):
                    whole.append(segment.key)
                case SegmentKind.PARQUET:
                    cut_keys.append(segment.key)
        if cut_keys:
            cut.append((_condition(wanted, with_topic=several_topics), tuple(cut_keys)))
    return (*_whole_scan(whole), *_cut_scans(cut, time))


def time_conditions(time: TimeRange) -> list[str]:
    """SQL for records in *time*, to be joined by AND; empty where every time is in it."""
    return [
        *([] if time.start_ms is None else [f"timestamp >= timestamp_millis({time.start_ms}L)"]),
        *([] if time.end_ms is None else [f"timestamp < timestamp_millis({time.end_ms}L)"]),
    ]


def _condition(wanted: PartitionRange, *, with_topic: bool) -> str:
    topic = f"topic = '{wanted.named.topic}' AND " if with_topic else ""  # a name needs no escape
    return (
        f"{topic}partition = {wanted.named.partition} "
        f"AND offset >= {wanted.start}L AND offset < {wanted.end}L"
    )


def _whole_scan(keys: Sequence[str]) -> Iterator[Scan]:
    if keys:
        yield Scan(tuple(keys), None)


def _cut_scans(cut: Iterable[tuple[str, tuple[str, ...]]], time: TimeRange) -> Iterator[Scan]:
    pending = iter(cut)
    bounds = time_conditions(time)
    while together := list(islice(pending, MAX_CUT_PARTITIONS)):
        offsets = " OR ".join(f"({condition})" for condition, _ in together)
        keys = tuple(key for _, keys in together for key in keys)
        yield Scan(keys, " AND ".join([f"({offsets})", *bounds]))
