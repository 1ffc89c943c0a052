"""Arrow batches as records: bytes as they are in the batch, text in its UTF-8.

A batch of Spark has up to 10,000 rows of any size.  Its rows become Python objects in slices of at
most `_SLICE_BYTES`, so that a batch is not in memory twice.
Source: org.apache.spark.sql.kafka010.KafkaRowWriter#sendRow.
Pure.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from driftlog_spark_reader.common.errors import WriteTopicError
from driftlog_spark_reader.sink.columns import RecordColumns

_SLICE_ROWS: Final = 2_000
_SLICE_BYTES: Final = 4 << 20


class SinkRecord(NamedTuple):
    """A record to produce; partition None: by the key's hash."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None


def records(batch: Any, columns: RecordColumns, topic: str | None) -> Iterator[SinkRecord]:
    """The records of the rows of a `pyarrow.RecordBatch`, in their order.

    Args:
        topic: of all records; None: each row's column has it.

    Raises:
        WriteTopicError: a row has no topic, a negative partition, or a header without a key.
    """
    for part in _slices(batch):
        topics = repeat(topic) if columns.topic is None else part.column(columns.topic).to_pylist()
        keys = _bytes(part, columns.key)
        values = _bytes(part, columns.value)
        headers = _values(part, columns.headers)
        partitions = _values(part, columns.partition)
        # A field without a column is endless: zip ends with the values, which are always there.
        for row in zip(topics, keys, headers, partitions, values, strict=False):
            yield _record(*row)


def _record(
    topic: str | None,
    key: bytes | None,
    headers: list[dict[str, Any] | None] | None,
    partition: int | None,
    value: bytes | None,
) -> SinkRecord:
    if not topic:
        raise WriteTopicError(_NULL_TOPIC if topic is None else _EMPTY_TOPIC)
    if partition is not None and partition < 0:
        raise WriteTopicError(
            f"Invalid partition: {partition}. Partition number should always be non-negative or "
            f"null. The row is for topic {topic!r}."
        )
    return SinkRecord(topic, key, value, _headers(topic, headers), partition)


def _headers(
    topic: str, headers: list[dict[str, Any] | None] | None
) -> list[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    found = []
    for header in headers:
        name, value = (None, None) if header is None else header.values()
        if name is None:
            raise WriteTopicError(
                f"Null header keys are not permitted: a row for topic {topic!r} has a header "
                "without a key. Filter such headers out, or give them a key."
            )
        found.append((name, value))
    return found


def _slices(batch: Any) -> Iterator[Any]:
    rows = batch.num_rows
    if rows > 1 and (rows > _SLICE_ROWS or batch.nbytes > _SLICE_BYTES):
        yield from _slices(batch.slice(0, rows // 2))
        yield from _slices(batch.slice(rows // 2))
    elif rows:
        yield batch


def _bytes(batch: Any, index: int | None) -> Any:
    """The values of a text or binary column as bytes, without decoding."""
    if index is None:
        return repeat(None)
    column = batch.column(index)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()


def _values(batch: Any, index: int | None) -> Any:
    return repeat(None) if index is None else batch.column(index).to_pylist()


_NULL_TOPIC: Final = (
    "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic. "
    "Use the `topic` option for setting a default topic."
)
_EMPTY_TOPIC: Final = "a row has an empty topic: fill the column 'topic', or use the topic option"
