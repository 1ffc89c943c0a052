"""`df.write` and `df.writeStream` to topics: each task produces its rows, and flushes.

    driver     options and schema ──▶ RowsWriter, or ValueError before a task runs
    executor   Arrow batches ──▶ records ──▶ Producer ──▶ agents
                                                │
               a task succeeds when all its records are acknowledged; the first failure fails it

A write is at least once, as with Spark's Kafka sink: a task that fails has written some of its
rows, Spark repeats the task, and those rows are in the topic twice.  Within one attempt of a task
the producer is idempotent: a batch that is sent again is written once, and in its order.  Neither
commit nor abort does anything: what is acknowledged is in the log, and nothing can be taken back.
Source: org.apache.spark.sql.kafka010.KafkaDataWriter.
Shell.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaException
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from driftlog import Producer
from driftlog.errors import (
    DeliveryError,
    DriftlogError,
    FlushTimeoutError,
    RequestError,
    UnreachableError,
)
from driftlog_spark_reader.common.errors import WriteTopicError
from driftlog_spark_reader.sink.columns import Column, RecordColumns, record_columns
from driftlog_spark_reader.sink.producer_options import SinkOptions, in_options, sink_options
from driftlog_spark_reader.sink.records import SinkRecord, records

_LOOK_S: Final = 1.0
"""How often a flush looks for failed records."""
_AGAIN_S: Final = 0.2
_LOG: Final = logging.getLogger("driftlog.librdkafka")
_OF_EXECUTORS: Final = ("sasl.", "security.", "ssl.")
"""Configs that may name files: executors have them, and the driver may not."""
_OVERWRITE: Final = (
    "Save mode Overwrite not allowed for driftlog. Allowed save mode is Append: use "
    'mode("append"). Records of a topic cannot be replaced.'
)


@dataclass(frozen=True, slots=True)
class RowsWritten(WriterCommitMessage):
    """All rows of a task are acknowledged."""

    records: int


class RowsWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, options: SinkOptions, columns: RecordColumns) -> None:
        self._options, self._columns = options, columns

    def write(self, iterator: Iterator[Any]) -> RowsWritten:
        """Produce the rows of one task; returns when all are acknowledged.

        Raises:
            WriteTopicError: a row cannot be a record, or a record was not acknowledged.
        """
        return _write(self._options, self._columns, iterator)


class RowsStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch of a streaming query."""

    def __init__(self, options: SinkOptions, columns: RecordColumns) -> None:
        self._options, self._columns = options, columns

    def write(self, iterator: Iterator[Any]) -> RowsWritten:
        """As `RowsWriter.write`."""
        return _write(self._options, self._columns, iterator)


def rows_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> RowsWriter:
    """The writer of ``df.write.format("driftlog").mode("append")``.

    Raises:
        ValueError: the mode is overwrite, or an option or a column is wrong.
    """
    if overwrite:
        raise ValueError(_OVERWRITE)
    return RowsWriter(*_checked(options, schema))


def rows_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> RowsStreamWriter:
    """The writer of ``df.writeStream.format("driftlog")``.

    Args:
        overwrite: the output mode is complete.  As with Spark's Kafka sink, each micro-batch then
            appends all rows of the result.

    Raises:
        ValueError: an option or a column is wrong.
    """
    del overwrite
    return RowsStreamWriter(*_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, RecordColumns]:
    """
    Raises:
        ValueError: an option or a column is wrong.
    """
    found = sink_options(options)
    columns = [Column(column.name, column.dataType.simpleString()) for column in schema.fields]
    fields = record_columns(columns, found.topic)
    _check_configs(found)
    return found, fields


def _check_configs(options: SinkOptions) -> None:
    """
    Raises:
        ValueError: librdkafka refuses a config, or two of them together.
    """
    configs = {
        name: value for name, value in options.config.items() if not name.startswith(_OF_EXECUTORS)
    }
    # One by one, for the name of the wrong one; then together, over the client's settings.
    for name, value in configs.items():
        _check(f"Kafka option '{name}'", {name: value})
    _check("the options that begin with kafka.", {**options.settings.configs(), **configs})


def _check(what: str, configs: Mapping[str, Any]) -> None:
    try:
        # Without an address it connects to nothing.
        confluent_kafka.Producer({**configs, "log_level": 0, "logger": _LOG})
    except KafkaException as error:
        raise ValueError(f"{what}: librdkafka refuses it: {error.args[0].str()}") from None


def _write(options: SinkOptions, columns: RecordColumns, batches: Iterator[Any]) -> RowsWritten:
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:  # a task without rows connects to nothing
        return RowsWritten(0)
    producer: Producer[bytes, bytes] = Producer(
        bootstrap_servers=options.servers, settings=options.settings, config=options.config
    )
    try:
        rows = (
            record
            for batch in chain((first,), batches)
            for record in records(batch, columns, options.topic)
        )
        _produce_first(producer, options, next(rows))
        written = 1
        for record in rows:
            _produce(producer, record)
            written += 1
        _flush(producer)
    except DeliveryError as error:
        raise WriteTopicError(_not_acknowledged(error)) from None
    except DriftlogError as error:
        raise WriteTopicError(in_options(str(error))) from None
    finally:
        with suppress(DriftlogError):  # after a failure, records that wait are given up
            producer.close(timeout_s=0)
    return RowsWritten(written)


def _produce(producer: Producer[bytes, bytes], record: SinkRecord) -> None:
    """
    Raises:
        DriftlogError: an earlier record failed, or no broker answers, or there is no room.
        WriteTopicError: this record is not taken.
    """
    topic, key, value, headers, partition = record
    try:
        producer.produce(topic, value, key, partition=partition, headers=headers)
    except RequestError as error:
        size = len(key or b"") + len(value or b"")
        raise WriteTopicError(
            f"{_where(topic, partition)}: a row with {size:,} bytes of key and value was not "
            f"taken: {in_options(str(error))}"
        ) from None


def _produce_first(
    producer: Producer[bytes, bytes], options: SinkOptions, record: SinkRecord
) -> None:
    """Wait for a cluster for ``max.block.ms``, as Java's producer does.

    Raises:
        DriftlogError: the record is not taken.
        WriteTopicError: no broker answers.
    """
    deadline = time.monotonic() + options.settings.max_block_ms / 1000
    while True:
        try:
            _produce(producer, record)
        except UnreachableError as error:
            if time.monotonic() > deadline:
                raise WriteTopicError(
                    f"no agent answered at {options.servers} within kafka.max.block.ms "
                    f"({options.settings.max_block_ms} ms). Check kafka.bootstrap.servers, and "
                    f"that executors reach the agents. The client's error: {error}"
                ) from None
            time.sleep(_AGAIN_S)
        else:
            return


def _flush(producer: Producer[bytes, bytes]) -> None:
    """Wait until all records are acknowledged, or one has failed.

    Raises:
        DeliveryError: records failed.
    """
    while True:
        try:
            producer.flush(_LOOK_S)
        except FlushTimeoutError:
            continue
        return


def _not_acknowledged(error: DeliveryError) -> str:
    failure = error.failures[0]
    where = _where(failure.topic, failure.partition)
    written = "may have been written" if failure.outcome_unknown else "was not written"
    others = f" {error.count - 1:,} more records failed." if error.count > 1 else ""
    return (
        f"{where}: a record {written}: {failure.reason}. {in_options(failure.advice)}{others} "
        "Acknowledged rows of this task stay in the topic; Spark's next attempt writes them again."
    )


def _where(topic: str, partition: int | None) -> str:
    return f"topic {topic!r}" + ("" if partition is None else f", partition {partition}")
