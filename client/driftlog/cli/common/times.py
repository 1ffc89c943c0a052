"""Times and durations, as people write them.

    1700000000000 | 2026-11-22[T01:02:03[.456]][Z|+01:00]        P1D | PT90M | P1DT2H

A number is milliseconds since 1970; a date is in UTC unless it ends with an offset; a duration is
ISO 8601's.
Pure.
"""

import re
from datetime import UTC, datetime
from typing import Final

_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MS: Final = {
    "weeks": 604_800_000,
    "days": 86_400_000,
    "hours": 3_600_000,
    "minutes": 60_000,
    "seconds": 1_000,
}


def parse_time(text: str) -> int:
    """Milliseconds since 1970.

    Raises:
        ValueError: *text* is no time.
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no time: milliseconds since 1970, or 2026-11-22T01:02:03, in UTC unless "
            f"it ends with an offset such as +01:00"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def parse_duration(text: str) -> int:
    """Milliseconds.

    Raises:
        ValueError: *text* is no duration.
    """
    match = _DURATION.fullmatch(text)
    parts = {} if match is None else {n: v for n, v in match.groupdict().items() if v and n in _MS}
    if match is None or not parts:
        raise ValueError(f"{text!r} is no duration: P1D, PT2H, P1DT2H30M, PT90S")
    ms = sum(round(float(value) * _MS[name]) for name, value in parts.items())
    return -ms if match["sign"] == "-" else ms
