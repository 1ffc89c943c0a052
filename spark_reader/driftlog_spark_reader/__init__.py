"""Sealed segments as Spark DataFrames, and DataFrames as topics.

    from driftlog_spark_reader import read_topic
    df = read_topic(spark, "s3://bucket/prefix", "flights")

Root.
"""

from driftlog_spark_reader.bulk_import.importer import ImportReport, import_parquet
from driftlog_spark_reader.common.errors import (
    AmbiguousTopicError,
    DamagedTopicError,
    DeletedTopicError,
    ImportTopicError,
    OffsetOutOfRangeError,
    RawSegmentSkippedWarning,
    ReadTopicError,
    StorageError,
    UnknownTopicError,
)
from driftlog_spark_reader.common.schema import KAFKA_SCHEMA
from driftlog_spark_reader.scan.topic_reader import read_topic

__all__ = [
    "KAFKA_SCHEMA",
    "AmbiguousTopicError",
    "DamagedTopicError",
    "DeletedTopicError",
    "ImportReport",
    "ImportTopicError",
    "OffsetOutOfRangeError",
    "RawSegmentSkippedWarning",
    "ReadTopicError",
    "StorageError",
    "UnknownTopicError",
    "import_parquet",
    "read_topic",
]
