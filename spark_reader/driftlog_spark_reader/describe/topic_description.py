"""What manifests say of a topic, as values and as a table of text.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.formats.manifest import SegmentListRef, SegmentRef

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition, from log start to the end of what is sealed."""

    partition: int
    log_start: int
    sealed_end: int
    """Offsets below it are in Parquet."""
    records: int
    """At most, unless ``records_are_exact``: log start is in a file with gaps between offsets.
    Records that could not be decoded are not counted."""
    records_are_exact: bool
    size_bytes: int
    """Of the files."""
    files: int
    min_timestamp: datetime | None
    """Of the records in the files, milliseconds cut to what Python can hold; None: no records."""
    max_timestamp: datetime | None
    log_end: int | None = None
    """The end of the log, as agents say it; None: they were not asked."""

    @property
    def lag(self) -> int | None:
        """Offsets that are not sealed yet."""
        return None if self.log_end is None else self.log_end - self.sealed_end


def describe_partition(
    partition: int,
    log_start: int,
    sealed_end: int,
    entries: Iterable[SegmentRef | SegmentListRef],
) -> PartitionDescription:
    """The sums of *entries*, which have the offsets from log start on."""
    records = files = size_bytes = 0
    is_exact = True
    times: list[int] = []
    for entry in entries:
        size_bytes += entry.size_bytes
        files += entry.segments if isinstance(entry, SegmentListRef) else 1
        if entry.records == 0:
            continue
        times += [entry.min_timestamp_ms, entry.max_timestamp_ms]
        left = entry.end - max(entry.base, log_start)
        is_dense = entry.records == entry.end - entry.base
        is_exact &= is_dense or entry.base >= log_start
        records += left if is_dense else min(entry.records, left)
    return PartitionDescription(
        partition=partition,
        log_start=log_start,
        sealed_end=max(log_start, sealed_end),
        records=records,
        records_are_exact=is_exact,
        size_bytes=size_bytes,
        files=files,
        min_timestamp=_moment(min(times, default=NO_TIMESTAMP)),
        max_timestamp=_moment(max(times, default=NO_TIMESTAMP)),
    )


def must_open(entry: SegmentListRef, log_start: int) -> bool:
    """Whether the sums of a list do not say what there is from log start on."""
    return entry.base < log_start or entry.min_timestamp_ms == NO_TIMESTAMP


def to_dict(partition: PartitionDescription) -> dict[str, Any]:
    """By name, in the order of the columns."""
    return {**asdict(partition), "lag": partition.lag}


def table(partitions: Sequence[PartitionDescription]) -> str:
    """Aligned columns, a line for each partition, and the sums."""
    with_ends = any(each.log_end is not None for each in partitions)
    head = ["partition", "log start", "sealed end", "records", "size", "files", "oldest", "newest"]
    lines = [
        head + (["log end", "lag"] if with_ends else []),
        *(_cells(each, with_ends=with_ends) for each in partitions),
    ]
    oldest = [each.min_timestamp for each in partitions if each.min_timestamp is not None]
    newest = [each.max_timestamp for each in partitions if each.max_timestamp is not None]
    lines.append(
        [
            "all",
            "",
            "",
            _records(
                sum(each.records for each in partitions),
                is_exact=all(each.records_are_exact for each in partitions),
            ),
            _size(sum(each.size_bytes for each in partitions)),
            f"{sum(each.files for each in partitions):,}",
            _text(min(oldest, default=None)),
            _text(max(newest, default=None)),
            *(["", f"{sum(each.lag or 0 for each in partitions):,}"] if with_ends else []),
        ]
    )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(each: PartitionDescription, *, with_ends: bool) -> list[str]:
    return [
        str(each.partition),
        f"{each.log_start:,}",
        f"{each.sealed_end:,}",
        _records(each.records, is_exact=each.records_are_exact),
        _size(each.size_bytes),
        f"{each.files:,}",
        _text(each.min_timestamp),
        _text(each.max_timestamp),
        *([_number(each.log_end), _number(each.lag)] if with_ends else []),
    ]


def _records(count: int, *, is_exact: bool) -> str:
    return f"{count:,}" if is_exact else f"≤ {count:,}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(size_bytes: int) -> str:
    """As ``ls -h`` has sizes: ``4.1 KiB``, ``12 MiB``."""
    value, unit = float(size_bytes), "B"
    for larger in _UNITS:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "B" and value < 10 else f"{value:.0f} {unit}"


def _text(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _moment(timestamp_ms: int) -> datetime | None:
    if timestamp_ms == NO_TIMESTAMP:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return _LATEST
