"""The offset of a stream, as Spark logs it in the checkpoint of a query.

    {"flights": {"0": 5, "1": 7},           the next offset to read of each partition
     "/ids": {"flights": "3203f736-…",      of the topics: one that is made again has another
              "/sealed":                    of partitions whose offset is behind it: the sealed end
                  {"flights": {"1": 4}}},
     "/first": true}                        where a query starts, before its first batch
     "/start": {"flights": {"0": 2}}}       … at the end of its first batch: where that began

The first line is the form of Spark's Kafka source, whose checkpoints have no others; no topic has a
name with a slash.  Spark asks again where a query starts when it repeats the first batch, and by
then there may be no answer, or another one: what the batch logged as its start decides.  So the
answer is `UNRESOLVED`, and the log is looked at when the first batch is planned.

A log never ends before an offset that was read of it, so a log that does lost records.  What a
query read of a tail is behind the sealed end, and a later query without the tail sees the sealed
end only: ``/sealed`` says where that was.  -1: the log has not reached the start of the query yet.
Earlier builds log none, and pass over what ``/ids`` has beside topics.

Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from driftlog_spark_reader.options.bounds import NamedPartition, offsets_json, parse_offsets
from driftlog_spark_reader.options.resolution import LogEnds

_IDS: Final = "/ids"
_FIRST: Final = "/first"
_START: Final = "/start"
_SEALED: Final = "/sealed"

_NOT_REACHED: Final = -1

UNRESOLVED: Final[Mapping[str, Any]] = {"/unresolved": True}
"""Where a query starts that has no batch yet: where its options say."""


@dataclass(frozen=True, slots=True)
class Position:
    """One offset of the stream.

    ``ids``: of topics, by name; empty in a checkpoint of Spark's Kafka source.
    ``is_first``: no batch ends before it.
    ``start``: of the first batch, at its end.
    ``sealed``: the sealed ends of partitions whose offset is behind it; None: not known.
    """

    offsets: Mapping[NamedPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    is_first: bool = False
    start: Mapping[NamedPartition, int] | None = None
    sealed: Mapping[NamedPartition, int] | None = None

    def least_ends(self, *, has_tail: bool) -> dict[NamedPartition, int]:
        """Where the logs ended at least when the offset was made, as far as a query can see them.

        A checkpoint of Spark's Kafka source does not say what of its offsets is sealed, and one of
        an earlier build may have a start that the log had not reached.
        """
        if self.sealed is None:
            return dict(self.offsets) if has_tail and not self.ids else {}
        found = {}
        for named, offset in self.offsets.items():
            sealed = self.sealed.get(named, offset)
            if sealed != _NOT_REACHED:
                found[named] = offset if has_tail else sealed
        return found


def encode(position: Position) -> dict[str, Any]:
    """The offset for Spark."""
    found: dict[str, Any] = offsets_json(position.offsets)
    topics = sorted({named.topic for named in position.offsets} & position.ids.keys())
    if topics:
        found[_IDS] = {topic: position.ids[topic] for topic in topics}
        if position.sealed is not None:
            found[_IDS][_SEALED] = offsets_json(position.sealed)
    if position.is_first:
        found[_FIRST] = True
    if position.start is not None:
        found[_START] = offsets_json(position.start)
    return found


def sealed_behind(
    offsets: Mapping[NamedPartition, int],
    sealed: Mapping[NamedPartition, int],
    logs: Mapping[NamedPartition, LogEnds],
    before: Position,
) -> dict[NamedPartition, int]:
    """``sealed`` of a position with these *offsets*.

    Args:
        sealed: the sealed end of each partition.
        logs: what of each partition can be read.
        before: the position that the query goes on from.
    """
    reached = before.least_ends(has_tail=False)
    return {
        named: sealed[named] if offset <= logs[named].end or named in reached else _NOT_REACHED
        for named, offset in offsets.items()
        if named in logs and offset > sealed[named]
    }


def decode(offset: Mapping[str, Any]) -> Position:
    """The offset that Spark had logged.

    Raises:
        ValueError: it is of another source.
    """
    given = dict(offset)
    ids, first, start = (given.pop(key, None) for key in (_IDS, _FIRST, _START))
    ids = dict(ids or {})
    sealed = ids.pop(_SEALED, None)
    return Position(
        _offsets(given),
        ids,
        bool(first),
        None if start is None else _offsets(start),
        None if sealed is None else _offsets(sealed),
    )


def _offsets(value: Mapping[str, Any]) -> dict[NamedPartition, int]:
    return parse_offsets("the offset in the checkpoint", json.dumps(value))
