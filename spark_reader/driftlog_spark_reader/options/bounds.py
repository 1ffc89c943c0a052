"""Where a query starts and ends, as the options of Spark's Kafka source say it.

    startingTimestamp            one time for all partitions            wins over
    startingOffsetsByTimestamp   {"flights": {"0": 1700000000000}}      wins over
    startingOffsets              earliest | latest | {"flights": {"0": 5, "1": -2}}

The same for ``ending…``.  In offsets −2 is earliest and −1 is latest; an end is exclusive.

Source: org.apache.spark.sql.kafka010.KafkaSourceProvider#getKafkaOffsetRangeLimit, JsonUtils.

Pure.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

EARLIEST: Final = -2
LATEST: Final = -1

_MAX_INT64: Final = 2**63 - 1
_MAX_INT32: Final = 2**31 - 1


class NamedPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Everywhere:
    """One of `EARLIEST` and `LATEST` for every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset, `EARLIEST` or `LATEST` by partition.

    ``others``: that of the partitions that are not named; None: every partition is named.
    """

    by_partition: Mapping[NamedPartition, int]
    others: int | None = None


class NoMatch(StrEnum):
    """What a start by time does where no record is that late."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Times:
    """Epoch milliseconds by partition; a partition's bound is its first record at or after it."""

    by_partition: Mapping[NamedPartition, int]
    no_match: NoMatch


@dataclass(frozen=True, slots=True)
class OneTime:
    """Epoch milliseconds for every partition."""

    timestamp_ms: int
    no_match: NoMatch


Bound: TypeAlias = Everywhere | Offsets | Times | OneTime


def parse_bound(options: Mapping[str, str], which: str, default: int) -> Bound:
    """The bound that the options ``startingOffsets`` … (*which* is ``"starting"``) describe.

    Raises:
        ValueError: an option has another form.
    """
    strategy = options.get("startingOffsetsByTimestampStrategy", NoMatch.ERROR).strip().lower()
    if strategy not in tuple(NoMatch):
        raise ValueError(
            f"startingOffsetsByTimestampStrategy is {strategy!r}; it can be error or latest"
        )
    no_match = NoMatch(strategy)
    if (text := options.get(f"{which}Timestamp")) is not None:
        return OneTime(_timestamp(f"{which}Timestamp", text), no_match)
    if (text := options.get(f"{which}OffsetsByTimestamp")) is not None:
        return Times(parse_timestamps(f"{which}OffsetsByTimestamp", text), no_match)
    text = options.get(f"{which}Offsets")
    match None if text is None else text.strip().lower():
        case None:
            return Everywhere(default)
        case "earliest":
            return Everywhere(EARLIEST)
        case "latest":
            return Everywhere(LATEST)
        case _:
            assert text is not None
            return Offsets(parse_offsets(f"{which}Offsets", text))


def parse_offsets(option: str, text: str) -> dict[NamedPartition, int]:
    """Offsets by partition, of JSON such as ``{"topicA":{"0":23,"1":-1}}``.

    Raises:
        ValueError: it is none.
    """
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    return _numbers(option, text, example, lowest=EARLIEST)


def parse_timestamps(option: str, text: str) -> dict[NamedPartition, int]:
    """Epoch milliseconds by partition, of JSON such as ``{"topicA":{"0":123456789}}``.

    Raises:
        ValueError: it is none.
    """
    return _numbers(option, text, '{"topicA":{"0":123456789,"1":123456789}}', lowest=-_MAX_INT64)


def parse_partitions(option: str, text: str) -> list[NamedPartition]:
    """Partitions, of JSON such as ``{"topicA":[0,1]}``.

    Raises:
        ValueError: it is none.
    """
    found: list[NamedPartition] = []
    for topic, partitions in _json(option, text, '{"topicA":[0,1],"topicB":[0,1]}').items():
        if not isinstance(partitions, list) or not all(map(_is_partition, partitions)):
            raise ValueError(
                f'{option}: expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}'
            )
        found += (NamedPartition(topic, partition) for partition in partitions)
    return sorted(set(found))


def offsets_json(offsets: Mapping[NamedPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, as `parse_offsets` reads their JSON."""
    found: dict[str, dict[str, int]] = {}
    for named in sorted(offsets):
        found.setdefault(named.topic, {})[str(named.partition)] = offsets[named]
    return found


def _numbers(option: str, text: str, example: str, *, lowest: int) -> dict[NamedPartition, int]:
    found = {}
    for topic, values in _json(option, text, example).items():
        if not isinstance(values, dict):
            raise ValueError(f"{option}: expected e.g. {example}, got {text}")
        for key, value in values.items():
            if not key.isdecimal() or type(value) is not int or not lowest <= value <= _MAX_INT64:
                raise ValueError(f"{option}: expected e.g. {example}, got {text}")
            found[NamedPartition(topic, int(key))] = value
    return found


def _json(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{option}: expected e.g. {example}, got {text}")
    return value


def _is_partition(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INT32


def _timestamp(option: str, text: str) -> int:
    if re.fullmatch(r"[-+]?\d+", text.strip()) and abs(found := int(text)) <= _MAX_INT64:
        return found
    raise ValueError(f"{option}: expected a single long value, got {text}")
