"""Sealed segments as Spark DataFrames.

    from driftlog_spark_reader import read_topic
    df = read_topic(spark, "s3://bucket/prefix", "flights")

Root.
"""

from driftlog_spark_reader.errors import (
    AmbiguousTopicError,
    DamagedTopicError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
    ReadTopicError,
    StorageError,
    UnknownTopicError,
)
from driftlog_spark_reader.schema import KAFKA_SCHEMA
from driftlog_spark_reader.topic import read_topic

__all__ = [
    "KAFKA_SCHEMA",
    "AmbiguousTopicError",
    "DamagedTopicError",
    "DeletedTopicError",
    "OffsetOutOfRangeError",
    "RawSegmentSkippedWarning",
    "ReadTopicError",
    "StorageError",
    "UnknownTopicError",
    "read_topic",
]
