"""A range of record timestamps: which segments may hold it, and which lie inside it.

Pure.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

Timestamp: TypeAlias = int | datetime

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_INT64: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Timestamps ``[start_ms, end_ms)``; None: no bound."""

    start_ms: int | None = None
    end_ms: int | None = None

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


ALL_TIMES: Final = TimeRange()


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
