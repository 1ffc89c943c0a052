"""The arguments of `read_topic` and `scan`, as options: Python's values beside Spark's JSON.

    starting_offsets    "earliest" | {0: 5, 1: -2} | {"flights": {0: 5}} | Spark's JSON
    starting_timestamp  epoch milliseconds | a datetime with a time zone

A partition that is missing in a mapping is read from its earliest offset or to its latest one;
Spark's JSON in the option of a data source must name all of them.

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack
from uuid import UUID

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
    parse_offsets,
)
from driftlog_spark_reader.options.source_options import (
    Assign,
    Selection,
    SourceOptions,
    Subscribe,
    check_batch,
)
from driftlog_spark_reader.options.time_range import TimeRange, Timestamp, timestamp_ms

ByPartition: TypeAlias = Mapping[int, Any] | Mapping[str, Mapping[Any, Any]]
OffsetsArgument: TypeAlias = str | ByPartition


class Wanted(TypedDict, total=False):
    """What to read of topics; all of it where nothing is given.  `read_topic` explains each."""

    partitions: Collection[int] | None
    starting_offsets: OffsetsArgument
    ending_offsets: OffsetsArgument
    starting_timestamp: Timestamp | None
    ending_timestamp: Timestamp | None
    starting_offsets_by_timestamp: ByPartition | None
    ending_offsets_by_timestamp: ByPartition | None
    starting_offsets_by_timestamp_strategy: str
    since: Timestamp | None
    until: Timestamp | None
    topic_id: UUID | str | None
    fail_on_data_loss: bool


def batch_options(
    location: str, topic: str | Sequence[str], **wanted: Unpack[Wanted]
) -> tuple[SourceOptions, TimeRange]:
    """The options of a batch query, and the range of ``since`` and ``until``.

    Raises:
        ValueError: an argument is invalid.
    """
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    no_match = wanted.get("starting_offsets_by_timestamp_strategy", "error")
    topic_id = wanted.get("topic_id")
    options = SourceOptions(
        location=location,
        selection=_selection(topics, wanted.get("partitions")),
        starting=bound_of(
            "starting",
            topics,
            wanted.get("starting_offsets", "earliest"),
            wanted.get("starting_timestamp"),
            wanted.get("starting_offsets_by_timestamp"),
            no_match,
            EARLIEST,
        ),
        ending=bound_of(
            "ending",
            topics,
            wanted.get("ending_offsets", "latest"),
            wanted.get("ending_timestamp"),
            wanted.get("ending_offsets_by_timestamp"),
            no_match,
            LATEST,
        ),
        topic_id=None if topic_id is None else str(topic_id),
        fail_on_data_loss=wanted.get("fail_on_data_loss", True),
    )
    check_batch(options.starting, options.ending)
    time = TimeRange(
        timestamp_ms("since", wanted.get("since")), timestamp_ms("until", wanted.get("until"))
    )
    return options, time


def _selection(topics: tuple[str, ...], partitions: Collection[int] | None) -> Selection:
    if not topics:
        raise ValueError("no topic is named")
    if partitions is None:
        return Subscribe(topics)
    return Assign(tuple(NamedPartition(topic, p) for topic in topics for p in set(partitions)))


def bound_of(
    which: str,
    topics: Sequence[str],
    offsets: OffsetsArgument,
    timestamp: Timestamp | None,
    by_timestamp: ByPartition | None,
    no_match: str,
    default: int,
) -> Bound:
    """The bound *which* (``"starting"``, ``"ending"``); a timestamp wins over offsets.

    Raises:
        ValueError: an argument has none of the forms above.
    """
    if no_match not in tuple(NoMatch):
        raise ValueError(
            f"starting_offsets_by_timestamp_strategy is {no_match!r}; it can be error or latest"
        )
    strategy = NoMatch(no_match)
    moment = timestamp_ms(f"{which}_timestamp", timestamp)
    if moment is not None:
        return OneTime(moment, strategy)
    if by_timestamp is not None:
        argument = f"{which}_offsets_by_timestamp"
        found = {}
        for named, value in _by_partition(argument, by_timestamp, topics).items():
            at = timestamp_ms(f"{argument} of {named}", value)
            assert at is not None
            found[named] = at
        return Times(found, strategy)
    return _offsets(f"{which}_offsets", offsets, topics, default)


def _offsets(
    argument: str, offsets: OffsetsArgument, topics: Sequence[str], default: int
) -> Everywhere | Offsets:
    word = "earliest" if default == EARLIEST else "latest"
    if isinstance(offsets, str):
        if offsets.strip().lower() == word:
            return Everywhere(default)
        if not offsets.strip().startswith("{"):
            raise ValueError(
                f'{argument} is {offsets!r}; it can be "{word}", a mapping such as {{0: 5}}, '
                'or JSON as in Spark\'s Kafka source, {"topic":{"0":5}}'
            )
        return Offsets(parse_offsets(argument, offsets), default)
    found = {}
    for named, offset in _by_partition(argument, offsets, topics).items():
        if type(offset) is not int or not EARLIEST <= offset < 2**63:
            raise ValueError(f"{argument} of {named} is {offset!r}, which is no offset")
        found[named] = offset
    return Offsets(found, default)


def _by_partition(
    argument: str, values: ByPartition, topics: Sequence[str]
) -> dict[NamedPartition, Any]:
    found: dict[NamedPartition, Any] = {}
    for key, value in values.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            for partition, inner in value.items():
                found[NamedPartition(key, _partition(argument, partition))] = inner
        elif len(topics) == 1 and not isinstance(value, Mapping):
            found[NamedPartition(topics[0], _partition(argument, key))] = value
        else:
            raise ValueError(
                f"{argument}: {key!r}: {value!r} is not a topic with values by partition"
            )
    return found


def _partition(argument: str, key: object) -> int:
    if isinstance(key, str) and key.isdecimal():
        return int(key)
    if type(key) is int and key >= 0:
        return key
    raise ValueError(f"{argument}: {key!r} is no partition")
