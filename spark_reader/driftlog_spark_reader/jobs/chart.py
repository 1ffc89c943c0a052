"""Histograms over time as lines of block characters, one for each partition.

    0  ▁▂▅█▇▃▁          5,120
    1     ▂▅█▇▃         4,873
       2023-11-14 22:13 … 2023-11-14 23:13

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_BARS: Final = " ▁▂▃▄▅▆▇█"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LEAST_BUCKETS: Final = 10


@dataclass(frozen=True, slots=True)
class Histogram:
    """Records by time: buckets of equal width from ``start_ms`` on."""

    start_ms: int
    bucket_ms: int
    buckets: int
    counts: Mapping[int, Sequence[int]]
    """Of each partition, a count for each bucket."""

    @property
    def end_ms(self) -> int:
        """Where the last bucket ends."""
        return self.start_ms + self.bucket_ms * self.buckets


def bucket_width(start_ms: int, last_ms: int, buckets: int) -> int:
    """The width of at most *buckets* buckets that hold ``[start_ms, last_ms]``."""
    return -(-(last_ms - start_ms + 1) // buckets)


def columns_for_bars(width: int, partitions: Sequence[int], most: int) -> int:
    """The columns that the bars have on a line of *width*, beside partition and count."""
    beside = max((len(str(partition)) for partition in partitions), default=1) + len(f"{most:,}")
    return max(LEAST_BUCKETS, width - beside - 4)


def lines(histogram: Histogram) -> Iterator[str]:
    """A line for each partition, all to one scale, and the axis."""
    tallest = max((max(row, default=0) for row in histogram.counts.values()), default=0)
    label = max((len(str(partition)) for partition in histogram.counts), default=1)
    total = max((len(f"{sum(row):,}") for row in histogram.counts.values()), default=1)
    for partition, row in sorted(histogram.counts.items()):
        bars = "".join(bar(count, tallest) for count in row)
        yield f"{partition:>{label}}  {bars}  {sum(row):>{total},}"
    first, last = moment(histogram.start_ms), moment(histogram.end_ms)
    gap = max(1, histogram.buckets - len(first) - len(last))
    yield f"{' ' * label}  {first}{' ' * gap}{last}"
    each = timedelta(milliseconds=histogram.bucket_ms)
    yield f"{' ' * label}  a column is {each}, a full one {tallest:,} records; times are UTC"


def bar(count: int, tallest: int) -> str:
    """One column; any record is visible."""
    if not count:
        return _BARS[0]
    return _BARS[max(1, round(count / tallest * (len(_BARS) - 1)))]


def moment(timestamp_ms: int) -> str:
    """UTC to the second; beyond what Python's dates hold, epoch milliseconds."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=timestamp_ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{timestamp_ms} ms"
