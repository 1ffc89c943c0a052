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

from driftlog_spark_reader.options.ranges import TimeRange
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import SegmentRef

MAX_CUT_PARTITIONS: Final = 64
"""Partitions in one filter: beyond ~100 terms Spark's generated code is too large to compile."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The requested offsets of one partition, and the segments that hold them, in order."""

    partition: int
    start: int
    end: int
    segments: Sequence[SegmentRef]


@dataclass(frozen=True, slots=True)
class Scan:
    """Files to scan together; ``condition`` is SQL, None when every row is requested."""

    keys: tuple[str, ...]
    condition: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Scans whose union is the answer, and the undecodable segments that are not in it."""

    scans: tuple[Scan, ...]
    raw: tuple[tuple[int, SegmentRef], ...]
    """Each with its partition."""


def plan_scans(ranges: Iterable[PartitionRange], time: TimeRange) -> Plan:
    """Sort the segments into whole, cut and undecodable ones; leave out those without records."""
    whole: list[str] = []
    cut: list[tuple[str, tuple[str, ...]]] = []
    raw: list[tuple[int, SegmentRef]] = []
    for wanted in ranges:
        cut_keys: list[str] = []
        for segment in wanted.segments:
            match segment.kind:
                case SegmentKind.RAW:
                    # In any time range: a batch that cannot be decoded may hold any timestamp.
                    raw.append((wanted.partition, segment))
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
            cut.append((_condition(wanted), tuple(cut_keys)))
    return Plan((*_whole_scan(whole), *_cut_scans(cut, time)), tuple(raw))


def _condition(wanted: PartitionRange) -> str:
    return (
        f"partition = {wanted.partition} AND offset >= {wanted.start}L AND offset < {wanted.end}L"
    )


def _whole_scan(keys: Sequence[str]) -> Iterator[Scan]:
    if keys:
        yield Scan(tuple(keys), None)


def _cut_scans(cut: Iterable[tuple[str, tuple[str, ...]]], time: TimeRange) -> Iterator[Scan]:
    pending = iter(cut)
    bounds = [
        *([] if time.start_ms is None else [f"timestamp >= timestamp_millis({time.start_ms}L)"]),
        *([] if time.end_ms is None else [f"timestamp < timestamp_millis({time.end_ms}L)"]),
    ]
    while together := list(islice(pending, MAX_CUT_PARTITIONS)):
        offsets = " OR ".join(f"({condition})" for condition, _ in together)
        keys = tuple(key for _, keys in together for key in keys)
        yield Scan(keys, " AND ".join([f"({offsets})", *bounds]))
