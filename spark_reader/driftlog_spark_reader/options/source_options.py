"""The options of a query, named and behaving as in Spark's Kafka source.

    location                 where the log is
    subscribe | subscribePattern | assign                 which topics and partitions
    startingOffsets, startingTimestamp, … endingOffsets …                     which records
    includeHeaders, failOnDataLoss, minPartitions, maxRecordsPerPartition     how
    maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay               streams
    includeTail, kafka.bootstrap.servers, etcd, …         what is not sealed yet: `tail.open_tail`

Source: org.apache.spark.sql.kafka010.KafkaSourceProvider#validateGeneralOptions and others.

Pure.
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, TypeAlias

from driftlog_spark_reader.options.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    Everywhere,
    NamedPartition,
    Offsets,
    Times,
    parse_bound,
    parse_partitions,
)

DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000

_KNOWN: Final = {
    name.lower(): name
    for name in (
        *("location", "subscribe", "subscribePattern", "assign"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        *("startingOffsetsByTimestampStrategy", "includeHeaders", "failOnDataLoss"),
        *("minPartitions", "maxRecordsPerPartition"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("topicId", "includeTail", "etcd", "etcd.cacert", "etcd.cert", "etcd.key"),
        *("etcd.user", "etcd.password"),
        # `load(path)`; and how long a read of the tail from agents waits.
        *("path", "kafkaConsumer.pollTimeoutMs"),
        # Of Spark's Kafka source and sink, without a meaning here.
        *("groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "topic"),
    )
}
_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")
_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics in whose name the regular expression finds a match."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: tuple[NamedPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query reads.

    ``min_partitions``: of Spark, at least; ``max_records``: offsets of one Spark partition;
    ``max_offsets``, ``min_offsets``, ``max_delay_ms``: of one micro-batch.
    ``tail``: the options as they were given, for `tail.open_tail`.
    """

    location: str | None
    selection: Selection
    starting: Bound
    ending: Bound
    topic_id: str | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records: int | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    tail: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may have passwords


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a batch query, or of a stream.  Names are case-insensitive.

    Raises:
        ValueError: an option is unknown, misses, contradicts another one, or has another form.
    """
    given = _named(options)
    _check_kafka(options)
    if streaming:
        _check_stream(given)
    starting = parse_bound(given, "starting", LATEST if streaming else EARLIEST)
    ending = parse_bound(given, "ending", LATEST)
    if not streaming:
        check_batch(starting, ending)
    most = _number(given, "maxOffsetsPerTrigger")
    least = _number(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ValueError(
            f"minOffsetsPerTrigger ({least}) is larger than maxOffsetsPerTrigger ({most})"
        )
    return SourceOptions(
        location=given.get("location") or given.get("path"),
        selection=_selection(given),
        starting=starting,
        ending=ending,
        topic_id=given.get("topicId"),
        include_headers=_flag(given, "includeHeaders", default=False),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        min_partitions=_number(given, "minPartitions"),
        max_records=_number(given, "maxRecordsPerPartition"),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=_duration_ms(given, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        tail=dict(options),
    )


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options without ``kafka.…``, under the names of this module.

    Spark's Kafka source ignores options that it does not know, and so does this, but for a name
    that is nearly one of its own.
    """
    found: dict[str, str] = {}
    for name, text in options.items():
        if name.lower().startswith("kafka."):
            continue
        if (known := _KNOWN.get(name.lower())) is not None:
            found[known] = text
        elif similar := get_close_matches(name.lower(), _KNOWN, 1, cutoff=0.8):
            raise ValueError(f"unknown option {name!r}; did you mean {_KNOWN[similar[0]]!r}?")
    return found


def _selection(given: Mapping[str, str]) -> Selection:
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        which = "one" if not chosen else "only one"
        raise ValueError(f"set {which} of the options {', '.join(_STRATEGIES)}")
    text = given[chosen[0]].strip()
    match chosen[0]:
        case "subscribe":
            topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
            if not topics:
                raise ValueError(f"subscribe names no topic: {text!r}")
            return Subscribe(topics)
        case "subscribePattern":
            if not text:
                raise ValueError("subscribePattern is empty")
            try:
                with warnings.catch_warnings(action="error"):  # of what Java takes otherwise
                    re.compile(text)
            except (re.error, Warning) as error:
                raise ValueError(
                    f"subscribePattern {text!r} is no regular expression of Python's: {error}"
                ) from error
            if (strange := _other_in_java(text)) is not None:
                raise ValueError(
                    f"subscribePattern {text!r} has {strange}, which Java and Python read otherwise"
                )
            return SubscribePattern(text)
        case _:
            partitions = parse_partitions("assign", text)
            if not partitions:
                raise ValueError(f"assign names no partition: {text!r}")
            return Assign(tuple(partitions))


def _other_in_java(pattern: str) -> str | None:
    """What Python compiles without a warning and Java reads otherwise; None: nothing.

    Source: java.util.regex.Pattern, "Unions" and "Greedy quantifiers".
    """
    plain = re.sub(r"\\.", "", pattern, flags=re.DOTALL)
    if re.search(r"\[\^?\]?[^\]]*\[", plain):
        return "'[' in a class of characters; write '\\[' for the character"
    if "{," in re.sub(r"\[\^?\]?[^\]]*\]", "", plain):
        return "'{,'; write '{0,'"
    return None


def _check_kafka(options: Mapping[str, str]) -> None:
    given = {name.lower() for name in options}
    reasons = {
        "auto.offset.reset": "set startingOffsets to earliest or latest",
        "key.deserializer": "keys are binary; convert them with DataFrame operations",
        "value.deserializer": "values are binary; convert them with DataFrame operations",
        "enable.auto.commit": "the checkpoint of the query keeps its offsets",
        "interceptor.classes": "records are as they are in the log",
    }
    for name, reason in reasons.items():
        if f"kafka.{name}" in given:
            raise ValueError(f"option kafka.{name} is not supported: {reason}")


def _check_stream(given: Mapping[str, str]) -> None:
    for name in ("endingOffsets", "endingOffsetsByTimestamp"):
        if name in given:
            raise ValueError(f"{name} is not valid in streaming queries")


def check_batch(starting: Bound, ending: Bound) -> None:
    """The bounds of a batch query.

    Raises:
        ValueError: it starts at the latest offsets, ends at the earliest, or behind its end.
    """
    wrong = {
        "startingOffsets": _with_offset(starting, LATEST),
        "endingOffsets": _with_offset(ending, EARLIEST),
    }
    for option, where in wrong.items():
        if where is not None:
            word = "latest" if option == "startingOffsets" else "earliest"
            raise ValueError(f"{option}{where} cannot be {word} in batch queries")
    if isinstance(starting, Offsets) and isinstance(ending, Offsets):
        every_one = starting.others is None and ending.others is None
        _check_order(starting.by_partition, ending.by_partition, every_one=every_one)
    elif isinstance(starting, Times) and isinstance(ending, Times):
        _check_order(starting.by_partition, ending.by_partition, every_one=True)


def _with_offset(bound: Bound, offset: int) -> str | None:
    """Where *bound* has that offset, for a message; None: nowhere."""
    match bound:
        case Everywhere(found):
            return "" if found == offset else None
        case Offsets(by_partition):
            return next((f" of {p}" for p, found in by_partition.items() if found == offset), None)
        case _:
            return None


def _check_order(
    start: Mapping[NamedPartition, int], end: Mapping[NamedPartition, int], *, every_one: bool
) -> None:
    if every_one and (only_one := set(start) ^ set(end)):
        raise ValueError(
            f"the start and the end name different partitions: {', '.join(map(str, only_one))}"
        )
    for named in start.keys() & end.keys():
        if start[named] > end[named] >= 0:
            raise ValueError(f"{named}: the start {start[named]} is behind the end {end[named]}")


def _number(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    text = given[name].strip()
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name} is {text!r}; it must be a positive number")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}; it can be true or false")
    return text == "true"


def _duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    found = re.fullmatch(r"(-?[0-9]+)\s*([a-z]*)", given[name].strip().lower())
    if found is None or (found[2] and found[2] not in _UNITS_MS):
        raise ValueError(f"{name} is {given[name]!r}; write e.g. 500ms, 30s, 5m or 1h")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])
