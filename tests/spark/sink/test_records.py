"""A row of a batch is one record, with its bytes as they are.

If it failed: rows would be lost where a batch is cut, text would change, or a key would go to the
partition of its neighbour.
Pure.
"""

from typing import Any

import pyarrow as pa
import pytest

from driftlog_spark_reader.common.errors import WriteTopicError
from driftlog_spark_reader.sink.columns import RecordColumns
from driftlog_spark_reader.sink.records import SinkRecord, records

Headers = list[dict[str, Any] | None] | None

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ALL = RecordColumns(topic=0, key=1, value=2, headers=3, partition=4)
VALUES = RecordColumns(topic=None, key=None, value=0, headers=None, partition=None)


def batch(
    topics: list[str | None],
    headers: list[Headers],
    partitions: list[int | None],
) -> Any:
    count = len(topics)
    return pa.record_batch(
        [
            pa.array(topics, pa.string()),
            pa.array([b"k"] * count, pa.binary()),
            pa.array(["ü"] * count, pa.string()),
            pa.array(headers, HEADERS),
            pa.array(partitions, pa.int32()),
        ],
        names=["topic", "key", "value", "headers", "partition"],
    )


def test_every_field_is_the_row_s() -> None:
    """
    Nulls stay nulls, headers keep their order and their repetitions, and no headers are none.
    """
    found: Headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]

    given = list(records(batch(["a", "b", "c"], [found, [], None], [2, None, 0]), ALL, None))

    assert given == [
        SinkRecord("a", b"k", "ü".encode(), [("h", b"1"), ("h", None)], 2),
        SinkRecord("b", b"k", "ü".encode(), None, None),
        SinkRecord("c", b"k", "ü".encode(), None, 0),
    ]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_no_row_is_lost_where_a_batch_is_cut(type_: Any) -> None:
    """
    Many small rows, and few that are larger than a slice.
    """
    small = [None if i % 7 == 0 else str(i).encode() for i in range(10_001)]
    large = [b"a", b"b" * 5_000_000, b"", b"c" * 3_000_000, b"d" * 3_000_000]

    for values in (small, large, []):
        given = pa.record_batch([pa.array(values, pa.binary()).cast(type_)], names=["value"])
        assert values == [record.value for record in records(given, VALUES, "t")]


def test_text_is_not_decoded() -> None:
    """
    A string of Spark may hold bytes that are no UTF-8; Spark's Kafka sink writes them as they are.
    """
    raw = b"\xff\xfe broken"
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([raw], pa.binary()).buffers())

    given = list(records(pa.record_batch([text], names=["value"]), VALUES, "t"))

    assert [SinkRecord("t", None, raw, None, None)] == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            batch(["a", None], [None, None], [0, 0]),
            "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a "
            "null topic. Use the `topic` option for setting a default topic.",
        ),
        (batch([""], [None], [0]), "a row has an empty topic"),
        (
            batch(["a"], [None], [-1]),
            "Invalid partition: -1. Partition number should always be non-negative or null.",
        ),
        (batch(["a"], [[None]], [0]), "Null header keys are not permitted"),
        (batch(["a"], [[{"key": None, "value": b""}]], [0]), "Null header keys are not permitted"),
    ],
)
def test_a_row_that_is_no_record_is_refused(given: Any, message: str) -> None:
    """
    In the words of Spark and of Java's producer.
    """
    with pytest.raises(WriteTopicError) as raised:
        list(records(given, ALL, None))

    assert str(raised.value).startswith(message)
