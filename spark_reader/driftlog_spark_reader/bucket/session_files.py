"""The files of a location as a Spark session's process reaches them: `session_files`.

Root.
"""

from typing import TYPE_CHECKING

from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.locations import open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def has_jvm(spark: "SparkSession") -> bool:
    """Whether the driver's JVM is beside this process: a session of Spark Connect has it on a
    server."""
    return not type(spark).__module__.startswith("pyspark.sql.connect.")


def session_files(spark: "SparkSession | None", location: str) -> Files:
    """Files through the session's Hadoop file systems, or without a JVM where it has none here.

    Raises:
        StorageError: there is no file system for the location.
    """
    if spark is None or not has_jvm(spark):
        return open_files(location)
    from driftlog_spark_reader.bucket.hadoop_files import HadoopFiles  # noqa: PLC0415  # optional

    return HadoopFiles(spark, location)
