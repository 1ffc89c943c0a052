"""Bounds become offsets, from the log's ends and the offsets of the times that were looked up.

    bound ──▶ times to look up ──▶ offsets ──▶ ranges [start, end) inside the log

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from driftlog_spark_reader.common.errors import OffsetOutOfRangeError
from driftlog_spark_reader.options.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    Everywhere,
    NamedPartition,
    NoMatch,
    Offsets,
    OneTime,
    Times,
)

_PARTITIONS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The log start of a partition, and the end of what can be read of it."""

    start: int
    end: int


def check_all_named(which: str, bound: Bound, partitions: Iterable[NamedPartition]) -> None:
    """A bound by partition names exactly those that are read.

    Raises:
        ValueError: it does not.
    """
    match bound:
        case Offsets(by_partition, None) | Times(by_partition):
            named, read = set(by_partition), set(partitions)
            required = True
        case Offsets(by_partition):
            named, read = set(by_partition), set(partitions)
            required = False
        case _:
            return
    if strange := named - read:
        raise ValueError(f"{which} names partitions that are not read: {_shown(strange)}")
    if required and (missing := read - named):
        raise ValueError(
            f"{which} must name all partitions (-1 is latest, -2 is earliest); it lacks "
            f"{_shown(missing)}"
        )


def times_of(bound: Bound, partitions: Iterable[NamedPartition]) -> dict[NamedPartition, int]:
    """The times to look up, epoch milliseconds by partition."""
    match bound:
        case OneTime(timestamp_ms):
            return dict.fromkeys(partitions, timestamp_ms)
        case Times(by_partition):
            return dict(by_partition)
        case _:
            return {}


def resolve_bound(
    bound: Bound,
    ends: Mapping[NamedPartition, LogEnds],
    at_times: Mapping[NamedPartition, int | None],
    *,
    is_start: bool,
) -> dict[NamedPartition, int]:
    """Offsets of the bound, as the user gave them or as they are now.

    *at_times*: offsets of the first records that are late enough; None: there is none.

    Raises:
        ValueError: no record is late enough, and the strategy is "error".
    """
    found = {}
    for named, log in ends.items():
        match bound:
            case Everywhere(offset):
                pass
            case Offsets(by_partition, others):
                offset = by_partition.get(named, LATEST if others is None else others)
            case OneTime() | Times():
                at_time = at_times[named]
                if at_time is None and is_start and bound.no_match is NoMatch.ERROR:
                    wanted = times_of(bound, [named])[named]
                    raise ValueError(
                        f"{named}: no record has timestamp {wanted} or a later one; set "
                        "startingOffsetsByTimestampStrategy=latest to start at the end of such "
                        "partitions"
                    )
                offset = LATEST if at_time is None else at_time
        found[named] = {EARLIEST: log.start, LATEST: log.end}.get(offset, offset)
    return found


def resolve_range(
    named: NamedPartition, start: int, end: int, log: LogEnds, *, fail_on_data_loss: bool
) -> tuple[int, int]:
    """The half-open range of offsets to read from a partition; it may be empty.

    Raises:
        ValueError: the start is behind an end inside the log.
        OffsetOutOfRangeError: it begins below log start, or begins or ends behind what can be read.
    """
    if start > end and end < log.end:
        raise ValueError(
            f"{named}: the start {start} is behind the end {end}; the log has {log.start} to "
            f"{log.end}"
        )
    if start < log.start and start < end and fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{named}: offset {start} is gone, the log starts at {log.start}: retention or "
            "DeleteRecords removed what was before.  Start there, or read what is left with "
            "failOnDataLoss=false"
        )
    if max(start, end) > log.end and fail_on_data_loss:
        which = f"start {start}" if start > log.end else f"end {end}"
        raise OffsetOutOfRangeError(
            f"{named}: the {which} cannot be read yet, the log in Parquet ends at {log.end}; "
            "seal the rest with `driftlog segments seal TOPIC`, read it with includeTail, or "
            "read what there is with failOnDataLoss=false"
        )
    start = max(start, log.start)
    return start, max(start, min(end, log.end))


def _shown(partitions: Iterable[NamedPartition]) -> str:
    names = [str(named) for named in sorted(partitions)]
    more = len(names) - _PARTITIONS_SHOWN
    return ", ".join(names[:_PARTITIONS_SHOWN]) + (f" and {more} more" if more > 0 else "")
