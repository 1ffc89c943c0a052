"""The requested offsets and times, in the form of Spark's Kafka source.

    starting_offsets   "earliest" | {0: 5, 1: -2} | {"flights": {"0": 5}} | its JSON
    ending_offsets     "latest"   | {0: 9, 1: -1} | …
    timestamps         epoch milliseconds | datetime with a time zone

As in Spark, −2 is earliest, −1 is latest, and an end is exclusive.  A partition that is missing in
a mapping is read from its earliest or to its latest offset (Spark's source refuses that).

Pure.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from driftlog_spark_reader.common.errors import OffsetOutOfRangeError

Offsets: TypeAlias = str | Mapping[int, int] | Mapping[str, Mapping[str, int]]
Timestamp: TypeAlias = int | datetime

EARLIEST: Final = -2
LATEST: Final = -1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_INT64: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Timestamps ``[start_ms, end_ms)``; None: no bound."""

    start_ms: int | None
    end_ms: int | None

    def overlaps(self, min_timestamp_ms: int, max_timestamp_ms: int) -> bool:
        """Whether records with such timestamps may be in the range."""
        return (self.start_ms is None or max_timestamp_ms >= self.start_ms) and (
            self.end_ms is None or min_timestamp_ms < self.end_ms
        )

    def covers(self, min_timestamp_ms: int, max_timestamp_ms: int) -> bool:
        """Whether all records with such timestamps are in the range."""
        return (self.start_ms is None or min_timestamp_ms >= self.start_ms) and (
            self.end_ms is None or max_timestamp_ms < self.end_ms
        )


def parse_offsets(argument: str, offsets: Offsets, topic: str, default: int) -> dict[int, int]:
    """Offsets by partition, −2 and −1 included; empty: *default* (−2 or −1) for all.

    Raises:
        ValueError: *offsets* has none of the forms above, or the wrong one of the two words.
    """
    word = "earliest" if default == EARLIEST else "latest"
    other = LATEST if default == EARLIEST else EARLIEST
    if isinstance(offsets, str):
        if offsets.strip().lower() == word:
            return {}
        offsets = _parse_json(argument, offsets, word)
    by_partition: Mapping[Any, Any] = offsets
    if not all(isinstance(key, int) for key in offsets):
        if set(offsets) != {topic}:
            raise ValueError(
                f"{argument} is of the topics {sorted(map(str, offsets))}, not of {topic!r} alone"
            )
        by_partition = next(iter(by_partition.values()))
        if not isinstance(by_partition, Mapping):
            raise ValueError(f"{argument}: {by_partition!r} are not offsets by partition")
    found = {}
    for key, offset in by_partition.items():
        partition = int(key) if isinstance(key, str) and key.isdecimal() else key
        if type(partition) is not int or type(offset) is not int:
            raise ValueError(f"{argument}: {key!r}: {offset!r} is not a partition and its offset")
        if offset == other or not EARLIEST <= offset <= _MAX_INT64:
            raise ValueError(f"{argument} of partition {partition} cannot be {offset}")
        found[partition] = offset
    return found


def _parse_json(argument: str, text: str, word: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(
            f'{argument} is {text!r}; it can be "{word}", a mapping such as {{0: 5}}, '
            'or JSON as in Spark\'s Kafka source, {"topic":{"0":5}}'
        )
    return value


def resolve_range(
    partition: int,
    starting: Mapping[int, int],
    ending: Mapping[int, int],
    log_start: int,
    sealed_end: int,
    *,
    fail_on_data_loss: bool,
) -> tuple[int, int]:
    """The half-open range of offsets to read from a partition; it may be empty.

    Raises:
        OffsetOutOfRangeError: the range begins below log start, or its end is not sealed yet.
    """
    start = starting.get(partition, EARLIEST)
    end = ending.get(partition, LATEST)
    if 0 <= start < log_start and fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"partition {partition}: offset {start} is gone, the log starts at {log_start}; start "
            "there, or read what is left with fail_on_data_loss=False"
        )
    if end > sealed_end and fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"partition {partition}: the end {end} is not in Parquet yet, which reaches to "
            f"{sealed_end}; seal the rest with `driftlog segments seal TOPIC`, or read what there "
            "is with fail_on_data_loss=False"
        )
    start = max(start, log_start)
    end = sealed_end if end == LATEST else min(end, sealed_end)
    return start, max(start, end)


def timestamp_ms(argument: str, value: Timestamp | None) -> int | None:
    """Epoch milliseconds; for a datetime, the first millisecond that is not before it.

    Raises:
        ValueError: *value* is a datetime without a time zone, or no timestamp.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{argument} has no time zone: {value!r}; add tzinfo=timezone.utc")
        return -((_EPOCH - value) // timedelta(milliseconds=1))
    if type(value) is not int or abs(value) > _MAX_INT64 // 1000:
        raise ValueError(f"{argument} is {value!r}, not a datetime nor epoch milliseconds")
    return value


def check_partitions(argument: str, asked: Iterable[int], partitions: int) -> None:
    """
    Raises:
        ValueError: the topic has no such partition.
    """
    strange = sorted(p for p in asked if not 0 <= p < partitions)
    if strange:
        raise ValueError(
            f"{argument}: the topic has partitions 0 to {partitions - 1}, not {strange}"
        )
