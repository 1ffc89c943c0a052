"""The columns of a topic: those of Spark's Kafka source with ``includeHeaders``, in its order.

    key            binary      NULL where the record has none
    value          binary      NULL where the record has none (a tombstone)
    topic          string
    partition      int
    offset         bigint
    timestamp      timestamp   of the record; milliseconds
    timestampType  int         0 CreateTime, 1 LogAppendTime
    headers        array<struct<key:string,value:binary>>   NULL where the record has none

Source: org.apache.spark.sql.kafka010.KafkaRecordToRowConverter#kafkaSchema.

Shell.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

KAFKA_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)


def column_names(*, include_headers: bool) -> list[str]:
    """The names of the columns, in order."""
    names = KAFKA_SCHEMA.fieldNames()
    return names if include_headers else names[:-1]


def schema_of(*, include_headers: bool) -> StructType:
    """The schema with or without ``headers``, as Spark's Kafka source has it."""
    return KAFKA_SCHEMA if include_headers else StructType(KAFKA_SCHEMA.fields[:-1])
