"""How long Spark takes to count a topic's records and add up their lengths, from one source.

    python -m benchmarks.spark_source kafka    BOOTSTRAP TOPIC    Spark's own Kafka source
    python -m benchmarks.spark_source segments LOCATION  TOPIC    driftlog_spark_reader.read_topic
    python -m benchmarks.spark_source parquet  LOCATION  TOPIC    spark.read.parquet, same files

Prints ``{"records": n, "bytes": n, "seconds": […]}``, a time for every run; the first one
warms up the code and is not to be compared.  Two threads, as the machine has.
Shell.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.spark import spark_session
from driftlog_spark_reader import read_topic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", choices=("kafka", "segments", "parquet"))
    parser.add_argument("location")
    parser.add_argument("topic")
    parser.add_argument("--runs", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-") as folder, spark_session(folder) as spark:
        read = _reader(spark, options.source, options.location, options.topic)
        print(json.dumps(_measure(read, options.runs)))


def _reader(spark: SparkSession, source: str, location: str, topic: str) -> Callable[[], DataFrame]:
    """A reader of *source*; its time includes planning: manifests, listings, offsets."""
    match source:
        case "kafka":
            return lambda: (
                spark.read.format("kafka")
                .option("kafka.bootstrap.servers", location)
                .option("subscribe", topic)
                .load()
            )
        case "segments":
            return lambda: read_topic(spark, location, topic)
        case _:
            files = [str(path) for path in Path(location).glob(f"topics/{topic}/*/*/*.parquet")]
            return lambda: spark.read.parquet(*files)


def _measure(read: Callable[[], DataFrame], runs: int) -> dict[str, object]:
    seconds = []
    counted: set[tuple[int, int]] = set()
    for _ in range(runs):
        began = time.perf_counter()
        row = read().agg(f.count("*"), f.sum(f.length("value"))).collect()[0]
        seconds.append(time.perf_counter() - began)
        counted.add((row[0], row[1]))
    if len(counted) != 1:
        raise AssertionError(f"runs disagree: {counted}")
    ((records, size),) = counted
    return {"records": records, "bytes": size, "seconds": seconds}


if __name__ == "__main__":
    main()
