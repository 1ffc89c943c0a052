"""`df.write` to ``driftlog`` beside Spark's Kafka sink, both to one agent.

    python -m benchmarks.spark_sink [--mib 256] [--value-bytes 1024] [--runs 5] [--compression lz4]

Keyed rows in four tasks, two at a time, to a topic of eight partitions; each sink with its defaults
(ours compresses with lz4, Java's producer does not), or both with one compression; the sinks in
turns, the first turn not counted.  Medians, and the ratio of Spark's Kafka sink to ours.

Shell.
"""

import argparse
import tempfile
import time
from statistics import median
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from benchmarks.spark import spark_session
from driftlog import Admin
from driftlog_spark_reader.sink.rows_writer import rows_writer
from tests.support.driftlog_process import DriftlogProcess

MiB: Final = 1024 * 1024
PARTITIONS: Final = 8
TASKS: Final = 4
SINKS: Final = ("driftlog", "kafka")


class Sink(DataSource):
    """The format "driftlog" with nothing but its writer."""

    @classmethod
    def name(cls) -> str:
        return "driftlog"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return rows_writer(self.options, schema, overwrite)


def main() -> None:
    """Write with both sinks, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--compression", help="of both; without it: each sink's default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-sink-") as folder, DriftlogProcess() as agent:
        with Admin(bootstrap_servers=agent.bootstrap) as admin:
            for sink in SINKS:
                admin.topics.create(sink, partitions=PARTITIONS)
        with spark_session(folder) as spark:
            spark.dataSource.register(Sink)
            given = {"kafka.bootstrap.servers": agent.bootstrap}
            if options.compression:
                given["kafka.compression.type"] = options.compression
            rows = options.mib * MiB // options.value_bytes
            measure(spark, given, rows, options.value_bytes, options.runs)


def measure(
    spark: SparkSession, options: dict[str, str], rows: int, value_bytes: int, runs: int
) -> None:
    """Print rows and MB of values per second of each sink."""
    df = spark.range(0, rows, 1, TASKS).selectExpr(
        "cast(id as string) as key",
        f"rpad(cast(id as string), {value_bytes}, uuid()) as value",
    )
    seconds: dict[str, list[float]] = {sink: [] for sink in SINKS}
    for turn in range(runs + 1):
        # The second sink finds warm code: the sinks take turns at that too.
        for sink in sorted(SINKS, reverse=turn % 2 == 1):
            began = time.perf_counter()
            df.write.format(sink).mode("append").options(topic=sink, **options).save()
            seconds[sink].append(time.perf_counter() - began)
    medians = {sink: median(times[1:]) for sink, times in seconds.items()}
    print(f"{rows:,} rows of {value_bytes} bytes, {TASKS} tasks, {PARTITIONS} partitions")
    for sink, taken in medians.items():
        speed = rows * value_bytes / taken / 1e6
        print(f"{sink:10}{taken:>8.2f} s{rows / taken:>12,.0f} rows/s{speed:>8.1f} MB/s")
    print(f"ratio     {medians['kafka'] / medians['driftlog']:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
