"""The offset of a stream, as Spark logs it in the checkpoint of a query.

    {"flights": {"0": 5, "1": 7},           the next offset to read of each partition
     "/ids": {"flights": "3203f736-…"},     of the topics: one that is made again has another
     "/first": true}                        where a query starts, before its first batch
     "/start": {"flights": {"0": 2}}}       … at the end of its first batch: where that began

The first line is the form of Spark's Kafka source, whose checkpoints have no others; no topic has a
name with a slash.  Spark asks again where a query starts when it repeats the first batch, and the
answer may be another one by then: what the batch logged as its start decides.

Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from driftlog_spark_reader.options.bounds import NamedPartition, offsets_json, parse_offsets

_IDS: Final = "/ids"
_FIRST: Final = "/first"
_START: Final = "/start"


@dataclass(frozen=True, slots=True)
class Position:
    """One offset of the stream.

    ``ids``: of topics, by name; empty in a checkpoint of Spark's Kafka source.
    ``is_first``: no batch ends before it.
    ``start``: of the first batch, at its end.
    """

    offsets: Mapping[NamedPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    is_first: bool = False
    start: Mapping[NamedPartition, int] | None = None


def encode(position: Position) -> dict[str, Any]:
    """The offset for Spark."""
    found: dict[str, Any] = offsets_json(position.offsets)
    topics = sorted({named.topic for named in position.offsets} & position.ids.keys())
    if topics:
        found[_IDS] = {topic: position.ids[topic] for topic in topics}
    if position.is_first:
        found[_FIRST] = True
    if position.start is not None:
        found[_START] = offsets_json(position.start)
    return found


def decode(offset: Mapping[str, Any]) -> Position:
    """The offset that Spark had logged.

    Raises:
        ValueError: it is of another source.
    """
    given = dict(offset)
    ids, first, start = (given.pop(key, None) for key in (_IDS, _FIRST, _START))
    return Position(
        _offsets(given), dict(ids or {}), bool(first), None if start is None else _offsets(start)
    )


def _offsets(value: Mapping[str, Any]) -> dict[NamedPartition, int]:
    return parse_offsets("the offset in the checkpoint", json.dumps(value))
