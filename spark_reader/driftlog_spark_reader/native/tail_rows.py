"""Pieces of the tail as a DataFrame, beside the native scans of segments.

Shell.
"""

import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from driftlog_spark_reader.common.schema import KAFKA_SCHEMA
from driftlog_spark_reader.native.plan import time_conditions
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.tail.port import TAIL_TASKS, TailRange, TailReader


def tail_rows(
    spark: SparkSession, reader: TailReader, pieces: Sequence[TailRange], time: TimeRange
) -> DataFrame:
    """The records of the pieces whose timestamp is in *time*."""
    tasks = spark.createDataFrame([(pickle.dumps(piece),) for piece in pieces], "piece BINARY")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from reader.read(*map(pickle.loads, batch.column(0).to_pylist()))

    rows = tasks.repartition(min(TAIL_TASKS, len(pieces))).mapInArrow(read, KAFKA_SCHEMA)
    conditions = time_conditions(time)
    return rows.where(" AND ".join(conditions)) if conditions else rows
