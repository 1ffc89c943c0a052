"""The log as Spark DataFrames.

    from driftlog_spark_reader import read_topic, register
    df = read_topic(spark, "s3://bucket/prefix", "flights")
    register(spark, "s3://bucket/prefix")  # a view of each topic

Root.
"""

from driftlog_spark_reader.common.errors import (
    AmbiguousTopicError,
    DamagedTopicError,
    DataLossError,
    DeletedTopicError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
    ReadTopicError,
    StorageError,
    UnknownTopicError,
)
from driftlog_spark_reader.common.schema import KAFKA_SCHEMA
from driftlog_spark_reader.scan.topic_reader import read_topic
from driftlog_spark_reader.source.registration import register

__all__ = [
    "KAFKA_SCHEMA",
    "AmbiguousTopicError",
    "DamagedTopicError",
    "DataLossError",
    "DeletedTopicError",
    "OffsetOutOfRangeError",
    "RawSegmentSkippedWarning",
    "ReadTopicError",
    "StorageError",
    "UnknownTopicError",
    "read_topic",
    "register",
]
