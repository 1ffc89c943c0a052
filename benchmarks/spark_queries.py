"""Queries and streams of Spark over the same records: the log's files, and Apache Kafka.

    python -m benchmarks.spark_queries [--mib 1024] [--runs 7]

    read_topic   native scans of the files that the manifests name
    driftlog     the data source format("driftlog"), for batches and streams
    parquet      spark.read.parquet on the same files
    kafka        Spark's Kafka source on Apache Kafka, where that is here

The same JSON records of 1 KiB are produced into a driftlog agent and into Apache Kafka; ours are
sealed.  One session with two threads runs all sources in turns; planning is in the time.  Medians
of the runs after the first.  Apache Kafka is not running while ours is read, and the other way
round: each is read in its own turn.  The last lines are the time to plan a topic of many segments,
and one of many partitions, with no records read.

Shell.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.load import make_batches
from benchmarks.measure_produce import PARTITIONS
from benchmarks.peers import KAFKA, OURS, MiB, Options, brokers
from benchmarks.rawclient import connected, produce
from driftlog_spark_reader import read_topic
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import AddSegments, SegmentRef
from tests.support.driftlog_process import DriftlogProcess
from tests.support.sealed_topics import Message, SealedTopic

TOPIC: Final = "to-query"
_JARS: Final = Path(__file__).resolve().parents[1] / ".cache" / "spark-jars"
_SOURCES: Final = ("read_topic", "driftlog", "parquet", KAFKA)


def main() -> None:
    """Produce, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-queries-") as name:
        folder = Path(name)
        with _session(folder) as spark:
            _measure(spark, folder, given.mib, given.runs)
            _plan_segments(spark, folder / "segments", given.segments)
            _plan_partitions(spark, folder / "partitions", given.partitions)


@contextmanager
def _session(folder: Path) -> Iterator[SparkSession]:
    # Without these, workers are of another Python, and the driver binds a public address.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.jars", ",".join(map(str, sorted(_JARS.glob("*.jar")))))
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _measure(spark: SparkSession, folder: Path, mib: int, runs: int) -> None:
    options = Options()
    volume = mib * MiB
    batches = make_batches(options.payloads[-1], 65_536)
    with brokers(options) as found:
        opened: dict[str, Callable[[], DataFrame]] = {}
        streams: dict[str, dict[str, str]] = {}
        records = 0
        for name, peer in found.items():
            with connected(peer.bootstrap) as connection:
                # The load has one timestamp; records get the time of their append.
                stamped = {"message.timestamp.type": "LogAppendTime"}
                connection.create_topic(TOPIC, len(PARTITIONS), stamped)
            sent = produce(peer.bootstrap, TOPIC, PARTITIONS, batches, volume, acks=-1, window=64)
            records = sent.records
            if name == OURS:
                assert isinstance(peer, DriftlogProcess)
                peer.seal(TOPIC)
                location = str(next(peer.directory.rglob("cluster.json")).parent)
                files = [str(path) for path in Path(location).glob("topics/*/*/*/*.parquet")]
                ours = {"location": location, "subscribe": TOPIC}
                opened["read_topic"] = partial(read_topic, spark, location, TOPIC)
                opened["driftlog"] = partial(_load, spark, "driftlog", ours)
                opened["parquet"] = partial(spark.read.parquet, *files)
                streams["driftlog"] = ours
                print(f"{records} records in {len(files)} files", flush=True)
            else:
                theirs = {"kafka.bootstrap.servers": peer.bootstrap, "subscribe": TOPIC}
                opened[KAFKA] = partial(_load, spark, "kafka", theirs)
                streams[KAFKA] = theirs
        _queries(opened, records, runs)
        _streams(spark, streams, folder, records, max(2, runs // 2))


def _load(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format(source).options(**options).load()


def _queries(opened: dict[str, Callable[[], DataFrame]], records: int, runs: int) -> None:
    names = [name for name in _SOURCES if name in opened]
    bounds = opened[names[0]]().agg(f.min("timestamp"), f.max("timestamp")).collect()[0]
    late = bounds[1] - (bounds[1] - bounds[0]) / 100
    queries: dict[str, Callable[[DataFrame], DataFrame]] = {
        "values, aggregate": lambda df: df.agg(f.count("*"), f.sum(f.length("value"))),
        "count()": lambda df: df.agg(f.count("*")),
        "last 1 % by time": lambda df: df.where(f.col("timestamp") >= f.lit(late)).agg(
            f.count("*"), f.sum(f.length("value"))
        ),
    }
    print(f"{'seconds':20}" + "".join(f"{name:>12}" for name in names), flush=True)
    for query, build in queries.items():
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(runs + 1):
            for name in names if turn % 2 else reversed(names):
                began = time.perf_counter()
                row = build(opened[name]()).collect()[0]
                seconds[name].append(time.perf_counter() - began)
                if "time" not in query and row[0] != records:
                    raise AssertionError(f"{name}: {row[0]} of {records} records")
        print(
            f"{query:20}" + "".join(f"{median(seconds[name][1:]):>12.2f}" for name in names),
            flush=True,
        )


def _streams(
    spark: SparkSession, streams: dict[str, dict[str, str]], folder: Path, records: int, runs: int
) -> None:
    """AvailableNow from the first record to the last, into a sink that adds up."""
    for name, options in streams.items():
        seconds = []
        for run in range(runs + 1):
            seen = [0]

            def add(df: DataFrame, _: int, seen: list[int] = seen) -> None:
                seen[0] += df.agg(f.count("*"), f.sum(f.length("value"))).collect()[0][0]

            began = time.perf_counter()
            source = "kafka" if name == KAFKA else name
            reader = spark.readStream.format(source).options(**options)
            query = (
                reader.option("startingOffsets", "earliest")
                .load()
                .writeStream.foreachBatch(add)
                .option("checkpointLocation", str(folder / f"checkpoint-{name}-{run}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            if seen[0] != records:
                raise AssertionError(f"stream {name}: {seen[0]} of {records} records")
            seconds.append(time.perf_counter() - began)
        print(f"stream, {name:12}{median(seconds[1:]):>12.2f}", flush=True)


def _plan_segments(spark: SparkSession, folder: Path, count: int) -> None:
    topic = SealedTopic(str(folder), "many").create()
    (first,) = topic.put(0, 0, [Message(1_700_000_000_000, value=b"x")])
    tp = topic.tp(0)
    refs: list[SegmentRef] = []
    for base in range(count):
        key = layout.segment_key("many", tp, base, base + 1, "n")
        os.link(folder / first.key, folder / key)
        refs.append(replace(first, key=key, base=base, end=base + 1))
    for at in range(0, count, 500):
        part = tuple(refs[at : at + 500])
        topic.edit(
            0,
            AddSegments(
                base=part[0].base,
                end=part[-1].end,
                segments=part,
                leader_epochs=(),
                producers=None,
            ),
        )
    _print_plan(spark, folder, "many", f"{count} segments")


def _plan_partitions(spark: SparkSession, folder: Path, count: int) -> None:
    topic = SealedTopic(str(folder), "wide", partitions=count).create()
    for partition in range(count):
        topic.seal(partition, 0, [Message(1_700_000_000_000, value=b"x")])
    _print_plan(spark, folder, "wide", f"{count} partitions")


def _print_plan(spark: SparkSession, folder: Path, topic: str, what: str) -> None:
    """Seconds until Spark has the plan: manifests, files and tasks, and no record."""
    options = {"location": str(folder), "subscribe": topic}
    plans: dict[str, Callable[[], DataFrame]] = {
        "read_topic": lambda: read_topic(spark, str(folder), topic),
        "driftlog": lambda: _load(spark, "driftlog", options),
    }
    for name, build in plans.items():
        seconds = []
        for _ in range(4):
            began = time.perf_counter()
            planned: Any = build()._jdf  # pyspark shows plans nowhere else
            planned.queryExecution().executedPlan()
            seconds.append(time.perf_counter() - began)
        print(f"plan {what}, {name:12}{median(seconds[1:]):>12.2f}", flush=True)


if __name__ == "__main__":
    main()
