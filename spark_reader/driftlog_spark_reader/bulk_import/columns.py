"""The records of an import: the columns of Spark's Kafka sink, and the partition of each record.

    DataFrame ──▶ key, value, headers, timestamp in ms, partition

A record goes to the partition that its column ``partition`` names; else to that of its key, as with
Kafka's default partitioner; else, by a hash of the record, to any.  The same record goes to the
same partition each time: Spark computes rows more than once.

Source: org.apache.spark.sql.kafka010.KafkaWriter (columns and types),
org.apache.kafka.clients.producer.internals.BuiltInPartitioner#partitionForKey.

Shell.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from confluent_kafka import murmur2
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # as everywhere
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

_TEXT: Final = "binary or string"
_TYPES: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "key": (_TEXT, lambda found: isinstance(found, BinaryType | StringType)),
    "value": (_TEXT, lambda found: isinstance(found, BinaryType | StringType)),
    "headers": ("array<struct<key:string,value:binary>>", lambda found: _are_headers(found)),
    "timestamp": ("timestamp", lambda found: isinstance(found, TimestampType)),
    "partition": ("int", lambda found: isinstance(found, IntegerType)),
}


def check_columns(rows: DataFrame) -> None:
    """
    Raises:
        ValueError: a column is missing, or has another type.
    """
    if "value" not in rows.columns:
        raise ValueError(
            "the DataFrame has no column value, which an import needs (a null value is a "
            f"tombstone); it has {', '.join(rows.columns) or 'none'}: rename one, or "
            "serialize the row, as in df.selectExpr('to_json(struct(*)) AS value')"
        )
    for field in rows.schema.fields:
        wanted, fits = _TYPES.get(field.name, ("", lambda _: True))
        if not fits(field.dataType):
            raise ValueError(
                f"the column {field.name} is {field.dataType.simpleString()}, and an import needs "
                f"{wanted}: cast it, or drop it"
            )


def check_keys(rows: DataFrame) -> None:
    """Check that each record has a key: compaction would drop the others.

    Raises:
        ValueError: some have none.
    """
    if not rows.where("key IS NULL").isEmpty():
        raise ValueError(
            "cleanup.policy has compact, and records have no key: compaction would delete them.  "
            "Give them keys, leave them out, or set cleanup.policy=delete"
        )


def _are_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in found.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def record_columns(rows: DataFrame, partitions: int, now_ms: int) -> DataFrame:
    """Key, value, headers, ``ms`` and ``partition`` of the records, whose columns are checked.

    *now_ms*: the timestamp of records that have none.
    """
    there = rows.columns
    now = F.lit(now_ms).cast("long")
    ms = F.coalesce(F.unix_millis("timestamp"), now) if "timestamp" in there else now
    headers = F.when(F.size("headers") > 0, F.col("headers"))
    records = rows.select(
        (F.col("key") if "key" in there else F.lit(None)).cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        headers.alias("headers")
        if "headers" in there
        else F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        ms.alias("ms"),
        (F.col("partition") if "partition" in there else F.lit(None).cast("int")).alias("named"),
    )
    return records.select(
        "key", "value", "headers", "ms", _partition(rows, partitions).alias("partition")
    )


def _partition(rows: DataFrame, partitions: int) -> Column:
    named = F.col("named")
    if "partition" in rows.columns and rows.where("partition IS NULL").isEmpty():
        return named  # no record costs the hash of its key
    of_record = F.expr(f"cast(pmod(xxhash64(value, ms), {partitions}) AS int)")
    if "key" not in rows.columns:
        return F.coalesce(named, of_record)

    return F.coalesce(named, partition_of_key(partitions), of_record)


def partition_of_key(partitions: int) -> Column:
    """Where Kafka's default partitioner sends the column ``key``; null where that is null."""

    @F.arrow_udf("int")  # type: ignore[attr-defined, untyped-decorator]
    def of_key(keys: pa.Array) -> pa.Array:
        found = [None if key is None else murmur2(key, partitions) for key in keys.to_pylist()]
        return pa.array(found, pa.int32())

    column: Column = of_key(F.col("key"))
    return column
