"""Queries and streams of Spark over the same records: the log's files, and Apache Kafka.

    python -m benchmarks.spark_queries [--mib 1024] [--runs 7] [--only queries,time,streams,plans]

    read_topic   native scans of the files that the manifests name
    driftlog     the data source format("driftlog"), for batches and streams
    parquet      spark.read.parquet on the same files
    kafka        Spark's Kafka source on Apache Kafka, where that is here

The same JSON records of 1 KiB are produced into a driftlog agent and into Apache Kafka; ours are
sealed.  One session with two threads runs all sources in turns; planning is in the time.  Medians
of the runs after the first.  Both brokers run all the time, and are idle in the other's turn.  The
last 1 % by time is found as each source finds it: a filter on native scans, `startingTimestamp`
elsewhere; times are those of each log's own appends.  The last lines are the time to plan a topic
of many segments, and one of many partitions, with no records read.

Shell.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.load import make_batches
from benchmarks.measure_produce import PARTITIONS
from benchmarks.peers import KAFKA, OURS, MiB, Options, brokers
from benchmarks.rawclient import connected, produce
from benchmarks.spark import spark_session
from driftlog_spark_reader import read_topic
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import AddSegments, SegmentRef
from tests.support.driftlog_process import DriftlogProcess
from tests.support.sealed_topics import Message, SealedTopic

TOPIC: Final = "to-query"
_SOURCES: Final = ("read_topic", "driftlog", "parquet", KAFKA)


def main() -> None:
    """Produce, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--only", default="queries,time,streams,plans")
    given = parser.parse_args()
    wanted = set(given.only.split(","))
    with tempfile.TemporaryDirectory(prefix="spark-queries-") as name:
        folder = Path(name)
        with spark_session(folder, {"spark.driver.memory": "2g"}) as spark:
            if wanted - {"plans"}:
                _measure(spark, folder, given.mib, given.runs, wanted)
            if "plans" in wanted:
                _plan_segments(spark, folder / "segments", given.segments)
                _plan_partitions(spark, folder / "partitions", given.partitions)


def _measure(spark: SparkSession, folder: Path, mib: int, runs: int, wanted: set[str]) -> None:
    options = Options()
    volume = mib * MiB
    batches = make_batches(options.payloads[-1], 65_536)
    with brokers(options) as found:
        opened: dict[str, Callable[[], DataFrame]] = {}
        recent: dict[str, Callable[[datetime], DataFrame]] = {}
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
                for native in ("read_topic", "parquet"):
                    recent[native] = partial(_filtered, opened[native])
                recent["driftlog"] = partial(_load_since, spark, "driftlog", ours)
                streams["driftlog"] = ours
                print(f"{records} records in {len(files)} files", flush=True)
            else:
                theirs = {"kafka.bootstrap.servers": peer.bootstrap, "subscribe": TOPIC}
                opened[KAFKA] = partial(_load, spark, "kafka", theirs)
                recent[KAFKA] = partial(_load_since, spark, "kafka", theirs)
                streams[KAFKA] = theirs
        if "queries" in wanted:
            _queries(opened, records, runs)
        if "time" in wanted:
            _by_time(opened, recent, runs)
        if "streams" in wanted:
            _streams(spark, streams, folder, records, max(2, runs // 2))


def _load(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format(source).options(**options).load()


def _load_since(
    spark: SparkSession, source: str, options: dict[str, str], since: datetime
) -> DataFrame:
    bound = {
        "startingTimestamp": str(int(since.timestamp() * 1000)),
        # A partition may have no record that is so late.
        "startingOffsetsByTimestampStrategy": "latest",
    }
    return _load(spark, source, {**options, **bound})


def _filtered(opened: Callable[[], DataFrame], since: datetime) -> DataFrame:
    return opened().where(f.col("timestamp") >= f.lit(since))


def _in_turns(sides: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Median seconds of each side, in turns (A B B A …); the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(runs + 1):
        for name in sides if turn % 2 else reversed(list(sides)):
            began = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - began)
    return {name: median(found[1:]) for name, found in seconds.items()}


def _values(df: DataFrame) -> DataFrame:
    return df.agg(f.count("*"), f.sum(f.length("value")))


def _collected(build: Callable[[DataFrame], DataFrame], opened: Callable[[], DataFrame]) -> int:
    """Run the query; how many records it saw."""
    found: int = build(opened()).collect()[0][0]
    return found


def _all(build: Callable[[DataFrame], DataFrame], opened: Callable[[], DataFrame], n: int) -> None:
    if (found := _collected(build, opened)) != n:
        raise AssertionError(f"{found} of {n} records")


def _queries(opened: dict[str, Callable[[], DataFrame]], records: int, runs: int) -> None:
    names = [name for name in _SOURCES if name in opened]
    queries: dict[str, Callable[[DataFrame], DataFrame]] = {
        "values, aggregate": _values,
        "count()": lambda df: df.agg(f.count("*")),
    }
    print(f"{'seconds':20}" + "".join(f"{name:>12}" for name in names), flush=True)
    for query, build in queries.items():
        sides = {name: partial(_all, build, opened[name], records) for name in names}
        _print_medians(query, _in_turns(sides, runs))


def _by_time(
    opened: dict[str, Callable[[], DataFrame]],
    recent: dict[str, Callable[[datetime], DataFrame]],
    runs: int,
) -> None:
    """The last 1 % of the time that each log's appends took."""
    sides = {}
    for name in (name for name in _SOURCES if name in recent):
        first, last = opened[name]().agg(f.min("timestamp"), f.max("timestamp")).collect()[0]
        since = partial(recent[name], last - (last - first) / 100)
        sides[name] = partial(_collected, _values, since)
    print("records of 1 %      " + "".join(f"{side():>12}" for side in sides.values()), flush=True)
    _print_medians("last 1 % by time", _in_turns(sides, runs))


def _print_medians(what: str, seconds: dict[str, float]) -> None:
    print(f"{what:20}" + "".join(f"{each:>12.2f}" for each in seconds.values()), flush=True)


def _streams(
    spark: SparkSession, streams: dict[str, dict[str, str]], folder: Path, records: int, runs: int
) -> None:
    """AvailableNow from the first record to the last, into a sink that adds up."""
    number = count()

    def stream(name: str, options: dict[str, str]) -> None:
        seen = 0

        def add(df: DataFrame, _: int) -> None:
            nonlocal seen
            seen += _values(df).collect()[0][0]

        source = "kafka" if name == KAFKA else name
        reader = spark.readStream.format(source).options(**options)
        query = (
            reader.option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(add)
            .option("checkpointLocation", str(folder / f"checkpoint-{next(number)}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if seen != records:
            raise AssertionError(f"stream {name}: {seen} of {records} records")

    sides = {name: partial(stream, name, options) for name, options in streams.items()}
    for name, seconds in _in_turns(sides, runs).items():
        print(f"stream, {name:12}{seconds:>12.2f}", flush=True)


def _plan_segments(spark: SparkSession, folder: Path, segments: int) -> None:
    topic = SealedTopic(str(folder), "many").create()
    (first,) = topic.put(0, 0, [Message(1_700_000_000_000, value=b"x")])
    tp = topic.tp(0)
    refs: list[SegmentRef] = []
    for base in range(segments):
        key = layout.segment_key("many", tp, base, base + 1, "n")
        os.link(folder / first.key, folder / key)
        refs.append(replace(first, key=key, base=base, end=base + 1))
    for at in range(0, segments, 500):
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
    _print_plan(spark, folder, "many", f"{segments} segments")


def _plan_partitions(spark: SparkSession, folder: Path, partitions: int) -> None:
    topic = SealedTopic(str(folder), "wide", partitions=partitions).create()
    for partition in range(partitions):
        topic.seal(partition, 0, [Message(1_700_000_000_000, value=b"x")])
    _print_plan(spark, folder, "wide", f"{partitions} partitions")


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
