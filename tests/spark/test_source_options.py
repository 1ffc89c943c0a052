"""Options and arguments become one description of a query, or an error that says what to write.

If it failed: a wrong option would be taken for another, and a query would read other records.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from driftlog_spark_reader.options.arguments import bound_of
from driftlog_spark_reader.options.bounds import (
    EARLIEST,
    LATEST,
    Everywhere,
    NamedPartition,
    NoMatch,
    Offsets,
    OneTime,
    Times,
    offsets_json,
    parse_offsets,
)
from driftlog_spark_reader.options.source_options import (
    Assign,
    Subscribe,
    SubscribePattern,
    parse_options,
)

P0, P1 = NamedPartition("t", 0), NamedPartition("t", 1)


def test_defaults_are_those_of_spark_s_kafka_source() -> None:
    """
    A batch reads everything; a stream starts at the latest offsets; losses fail both.
    """
    batch = parse_options({"subscribe": "t"}, streaming=False)
    stream = parse_options({"subscribe": "t"}, streaming=True)

    assert (Everywhere(EARLIEST), Everywhere(LATEST)) == (batch.starting, batch.ending)
    assert Everywhere(LATEST) == stream.starting
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert (None, None, 15 * 60_000) == (
        batch.min_partitions,
        batch.max_records,
        batch.max_delay_ms,
    )


@pytest.mark.parametrize(
    ("options", "selection"),
    [
        ({"subscribe": " a, b,,a "}, Subscribe(("a", "b"))),
        ({"SubscribePattern": " a.* "}, SubscribePattern("a.*")),
        ({"subscribePattern": r"[a\[]{0,3}[{,]\{,"}, SubscribePattern(r"[a\[]{0,3}[{,]\{,")),
        ({"assign": '{"t":[1,0,1]}'}, Assign((P0, P1))),
    ],
)
def test_topics_are_named_in_one_of_three_ways(options: dict[str, str], selection: object) -> None:
    """
    With spaces, twice, and in any case of the option's name.
    """
    assert selection == parse_options(options, streaming=False).selection


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "set one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": "t", "assign": "{}"}, "only one"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "t", "minPartitions": "few"}, "positive number"),
        ({"subscribe": "t", "failOnDataLoss": "no"}, "true or false"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"subscribePattern": "[a-z&&[^b]]"}, "no regular expression of Python's"),
        ({"subscribePattern": "^t[a-c[d-f]]$"}, "'\\[' in a class of characters"),
        ({"subscribePattern": "[]a[b]"}, "'\\[' in a class of characters"),
        ({"subscribePattern": "[a]b{,3}"}, "'{,'"),
        ({"subscribe": "t", "startingTimestamp": "1_000"}, "single long value"),
        ({"subscribe": "t", "startingTimestamp": "9223372036854775808"}, "single long value"),
        ({"subscribe": "t", "startingOffsets": '{"t":[1]}'}, "expected e.g."),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":-3}}'}, "expected e.g."),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":true}}'}, "expected e.g."),
        ({"subscribe": "t", "maxTriggerDelay": "soon"}, "500ms, 30s"),
    ],
)
def test_a_wrong_option_says_what_to_write(options: dict[str, str], said: str) -> None:
    """
    With its name, and an example.
    """
    with pytest.raises(ValueError, match=said):
        parse_options(options, streaming=False)


@pytest.mark.parametrize("option", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    """
    As in Spark's Kafka source, which takes no notice of `endingTimestamp`.
    """
    with pytest.raises(ValueError, match=f"{option} is not valid in streaming"):
        parse_options({"subscribe": "t", option: "1"}, streaming=True)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1500", 1500),
        ("5ms", 5),
        ("2 s", 2_000),
        ("15m", 900_000),
        ("1h", 3_600_000),
        ("1D", 86_400_000),
    ],
)
def test_durations_are_spark_s(text: str, milliseconds: int) -> None:
    """
    Without a unit: milliseconds.
    """
    options = parse_options({"subscribe": "t", "maxTriggerDelay": text}, streaming=True)

    assert milliseconds == options.max_delay_ms


def test_offsets_are_read_back_from_their_json() -> None:
    """
    The form of a stream's checkpoint, which is that of Spark's Kafka source.
    """
    offsets = {P1: 7, P0: 0, NamedPartition("s", 10): 2**62}

    text = str(offsets_json(offsets)).replace("'", '"')

    assert offsets == parse_offsets("it", text)


def bound(offsets: Any = "earliest", timestamp: Any = None, by_timestamp: Any = None) -> object:
    """The starting bound of `read_topic`'s arguments."""
    return bound_of("starting", ["t"], offsets, timestamp, by_timestamp, "latest", EARLIEST)


def test_arguments_take_python_s_forms() -> None:
    """
    Mappings by partition, by topic, JSON, datetimes; what is not named starts at the earliest.
    """
    named = Offsets({P0: 5}, EARLIEST)

    assert Everywhere(EARLIEST) == bound(" EARLIEST ")
    assert named == bound({0: 5}) == bound({"t": {"0": 5}}) == bound('{"t":{"0":5}}')
    assert OneTime(1_000, NoMatch.LATEST) == bound(timestamp=datetime(1970, 1, 1, 0, 0, 1, 0, UTC))
    assert Times({P0: 9}, NoMatch.LATEST) == bound(by_timestamp={0: 9})


@pytest.mark.parametrize(
    "offsets", ["5", "latest", {"t": 5}, {0: {0: 5}}, {-1: 5}, {0: -3}, {0: 1.5}]
)
def test_wrong_arguments_are_refused(offsets: object) -> None:
    """
    With a ValueError.
    """
    with pytest.raises(ValueError, match="starting_offsets"):
        bound(offsets)
